"""kumite's own tasks: gymnasium environments with the ids `kumite/<name>`, registered when one is asked for."""

from __future__ import annotations

_PROBES = ("One", "Delay", "Endless", "Echo", "Recall", "Hybrid", "Mask", "Sensors", "Clock")
IDS: dict[str, str] = {f"kumite/{name}-v0": f"kumite.envs.suite.probes:{name}" for name in _PROBES} | {
    "kumite/CartPoleNoVel-v0": "kumite.envs.suite.hidden:cartpole",
    "kumite/PendulumNoVel-v0": "kumite.envs.suite.hidden:pendulum",
}
LIMITS = {"kumite/CartPoleNoVel-v0": 500, "kumite/PendulumNoVel-v0": 200}
"""Steps after which an episode is cut; the others end by themselves."""


def register() -> None:
    """Make the ids known to gymnasium; safe to call again."""
    import gymnasium

    for name, entry in IDS.items():
        if name not in gymnasium.registry:
            gymnasium.register(name, entry_point=entry, max_episode_steps=LIMITS.get(name))
