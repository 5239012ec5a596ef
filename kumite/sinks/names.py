"""What others call our metrics: the one table behind `--log.style` and the table in docs/logging.md.

A style changes names, and numbers where others count differently (a loss that is a whole square there and half of one
here, an entropy with its sign turned). What a library has no name for keeps ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

STYLES = ("kumite", "sb3", "cleanrl", "rl_games")


class Theirs(NamedTuple):
    """A name and the factor that turns our number into theirs."""

    name: str
    factor: float = 1.0


class Row(NamedTuple):
    """One of our metrics in the words of others; None: they have nothing like it."""

    ours: str
    sb3: Theirs | None
    cleanrl: Theirs | None
    rl_games: Theirs | None
    about: str


def _row(ours: str, sb3: str, cleanrl: str, rl_games: str, about: str) -> Row:
    """'name', 'factor name' or '' for nothing."""

    def theirs(text: str) -> Theirs | None:
        factor, _, name = text.rpartition(" ")
        return Theirs(name, float(factor or 1)) if name else None

    return Row(ours, theirs(sb3), theirs(cleanrl), theirs(rl_games), about)


TABLE = (
    _row("env_step", "time/total_timesteps", "global_step", "", "environment steps; the x axis everywhere"),
    _row("time_s", "time/time_elapsed", "", "", "seconds of training"),
    _row(
        "rollout/ep_rew_mean",
        "rollout/ep_rew_mean",
        "charts/episodic_return",
        "rewards/step",
        "mean return of the last 100 training episodes (CleanRL: of each episode)",
    ),
    _row(
        "rollout/ep_len_mean",
        "rollout/ep_len_mean",
        "charts/episodic_length",
        "episode_lengths/step",
        "their mean length",
    ),
    _row("rollout/success_rate", "rollout/success_rate", "", "", "share of them that succeeded, where that is known"),
    _row("rollout/restarts", "", "", "", "broken copies of the environment replaced so far, if any"),
    _row("rollout/exploration_rate", "rollout/exploration_rate", "", "", "DQN: share of random choices"),
    _row(
        "time/fps", "time/fps", "charts/SPS", "performance/step_inference_rl_update_fps", "environment steps a second"
    ),
    _row("eval/mean_reward", "eval/mean_reward", "eval/episodic_return", "", "mean return of an evaluation"),
    _row("eval/mean_ep_length", "eval/mean_ep_length", "", "", "mean length of its episodes"),
    _row("eval/success_rate", "eval/success_rate", "", "", "share of them that succeeded"),
    _row("train/n_updates", "train/n_updates", "", "", "gradient steps so far"),
    _row("train/learning_rate", "train/learning_rate", "charts/learning_rate", "info/last_lr", "step size"),
    _row("train/loss", "train/loss", "", "", "PPO, A2C, DQN: the whole loss"),
    _row(
        "train/policy_gradient_loss",
        "train/policy_gradient_loss",
        "losses/policy_loss",
        "losses/a_loss",
        "PPO, A2C: the policy's part",
    ),
    _row(
        "train/value_loss",
        "2 train/value_loss",
        "losses/value_loss",
        "2 losses/c_loss",
        "PPO, A2C: half the squared error of the value",
    ),
    _row("train/entropy", "-1 train/entropy_loss", "losses/entropy", "losses/entropy", "entropy of the policy"),
    _row(
        "train/kl",
        "train/approx_kl",
        "losses/approx_kl",
        "info/kl",
        "PPO, A2C: divergence from the policy that acted (exact; theirs are estimates)",
    ),
    _row("train/clip_fraction", "train/clip_fraction", "losses/clipfrac", "", "PPO: share of clipped ratios"),
    _row("train/actor_loss", "train/actor_loss", "losses/actor_loss", "losses/a_loss", "SAC, TD3: the policy's loss"),
    _row(
        "train/critic_loss",
        "0.5 train/critic_loss",
        "0.5 losses/qf_loss",
        "0.5 losses/c1_loss",
        "SAC, TD3: squared errors, summed over the critics; the factor makes the mean of two",
    ),
    _row("train/q", "", "losses/qf1_values", "", "mean value of what was done (CleanRL: the first critic's)"),
    _row("train/ent_coef", "train/ent_coef", "losses/alpha", "info/alpha", "SAC: the temperature"),
)

BESIDE = ("env_step", "time_s")
"""Columns of their own, which stay as they are: a style may show them once more under its name."""


def styled(values: Mapping[str, float], style: str, env_step: int, time_s: float) -> dict[str, float]:
    """A row of metrics under the names of this style."""
    if style == "kumite":
        return dict(values)
    theirs: dict[str, Theirs | None] = {row.ours: getattr(row, style) for row in TABLE}
    out: dict[str, float] = {}
    for name, value in values.items():
        other = theirs.get(name) or Theirs(name)
        out[other.name] = value if other.factor == 1 else value * other.factor
    for name, value in zip(BESIDE, (env_step, time_s), strict=True):
        if again := theirs[name]:
            out[again.name] = value
    return out


EVALUATION = {"mean": "eval/mean_reward", "std": "eval/std_reward", "mean_length": "eval/mean_ep_length"}
EVALUATION |= {"min": "eval/min_reward", "max": "eval/max_reward"}


def evaluated(row: Mapping[str, float], style: str, env_step: int, time_s: float) -> dict[str, float]:
    """A row of evals.csv as metrics, which is how TensorBoard and trackers show it."""
    ours = {EVALUATION.get(name, f"eval/{name}"): value for name, value in row.items() if name != "episodes"}
    return styled(ours, style, env_step, time_s)


def style_of(config: Mapping[str, Any]) -> str:
    """A run's style, from its config."""
    return str(config.get("log", {}).get("style", "kumite"))
