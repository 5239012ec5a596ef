"""kumite, by its Python interface; nothing is set but what the work's numbers say."""

from __future__ import annotations

from typing import Any

import clock

import kumite

given, n = clock.given, clock.given.numbers
if given.threads:
    clock.limit_torch()
LONG = 100_000_000  # a long run, as the compiler's choice sees it; the clock ends it
COMMON = {
    "seed": given.seed,
    "steps": LONG,
    "quiet": True,
    "threads": given.threads,
    "lr": n["lr"],
    "gamma": n["gamma"],
}
QUIET = {"eval": {"every": -1}, "save": {"every": -1}}


def replay() -> dict[str, Any]:
    numbers = {
        "num_envs": n["envs"],
        "batch_size": n["batch"],
        "buffer_size": n["buffer"],
        "warmup": n["random_steps"],
        "normalize_obs": False,
        "normalize_reward": False,
        "lr_schedule": "constant",
    }
    return numbers | COMMON | QUIET


def sac(**more: Any) -> Any:
    net = {"layers": n["layers"]}
    return kumite.SAC(n["env"], tau=n["tau"], policy_delay=1, actor=net, critic=net, **replay(), **more)


def td3(**more: Any) -> Any:
    net = {"layers": n["layers"]}
    noise = {"kind": "gaussian", "std": n["noise"]}
    return kumite.TD3(
        n["env"], tau=n["tau"], policy_delay=n["delay"], noise=noise, actor=net, critic=net, **replay(), **more
    )


def dqn(**more: Any) -> Any:
    pong = n["env"] == "Pong"
    net = {"encoder": "nature", "layers": [512]} if pong else {"layers": n["layers"]}
    env = f"atari:{n['env']}" if pong else n["env"]
    every = {"update_ratio": 1 / n["every"], "target_every": n["target_every"]}
    return kumite.DQN(env, critic=net, **every, **replay(), **more)


def ppo(env: str, net: dict[str, Any], **more: Any) -> Any:
    numbers = {
        "num_envs": n["envs"],
        "horizon": n["horizon"],
        "batch_size": n["batch"],
        "minibatches": 0,
        "epochs": n["epochs"],
        "lam": n["lam"],
        "clip": n["clip"],
        "clip_value": 0.0,
        "clip_schedule": "constant",
        "lr_schedule": "constant",
        "entropy_coef": n.get("entropy", 0.0),
        "value_coef": 2 * n["value"],  # ours is half a squared error
        "grad_clip": n["grad_norm"],
        "normalize_obs": False,
        "normalize_reward": False,
        "actor": net,
        "critic": net,
    }
    return kumite.PPO(env, **(numbers | COMMON | QUIET | more))


def agent(**more: Any) -> Any:
    off_policy = {"sac": sac, "td3": td3, "dqn": dqn}.get(given.work.partition("-")[0])
    if off_policy is not None:
        return off_policy(**more)
    if given.work == "ppo-pool":  # rl_games counts its value loss as we do: half a squared error times critic_coef
        net = {"layers": n["layers"], "activation": "elu", "init": "uniform"}
        return ppo(
            f"envpool:{n['env']}",
            net,
            share=True,
            value_coef=n["value"],
            lr_schedule="kl",
            kl_aim=0.008,
            adam_eps=1e-8,
            smooth_clamp=True,
            norm_adv="batch",
            normalize_obs=True,
            obs_clip=5.0,
            normalize_value=True,
        )
    if given.work == "ppo-pong":
        net = {"encoder": "nature", "layers": [512], "activation": "relu", "init": "orthogonal"}
        return ppo(f"atari:{n['env']}", net, share=True)
    net = {"layers": n["layers"], "activation": "tanh", "init": "orthogonal"}
    if "lstm" in n:
        net |= {"memory": "lstm", "memory_width": n["lstm"], "memory_place": "before"}
        more["chunk"] = n["horizon"] if given.entrant == "kumite-whole" else 16
    return ppo(n["env"], net, **more)


def main() -> None:
    watch = clock.Clock()
    learner = agent(profile=given.work == "sac-update")
    off_policy = not given.work.startswith(("ppo", "rppo"))
    seen = 0
    updates: dict[str, tuple[float, int]] = {}

    def callback(run: Any) -> bool:
        nonlocal seen
        if not off_policy and run.algo.updates == seen:
            return True
        seen = run.algo.updates
        over = watch.mark(run.env_step)
        if learner.profile and watch.begin is not None:
            now = (learner.profile.seconds["update"], learner.profile.calls["update"])
            updates.setdefault("begin", now)
            updates["end"] = now
        return not over

    learner.learn(callback=callback)
    run = learner.run
    facts = {
        "threads_used": run.threads,
        "precision": run.precision,
        "compiled": bool(run.compiled and learner.algo.graph is not None),
    }
    watch.report("torch", "gymnasium", **facts)
    if updates:
        (s0, n0), (s1, n1) = updates["begin"], updates["end"]
        clock.say(figure=1e3 * (s1 - s0) / (n1 - n0), updates=n1 - n0)


main()
