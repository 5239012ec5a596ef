"""Agent: the friendly face over config, nets and the loop. One class per algorithm name."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from kumite import checkpoint, tree
from kumite.algos import ROWS, algorithm
from kumite.algos.base import Algorithm
from kumite.checkpoint import CheckpointWarning, rescue
from kumite.config import coerce, dump, fitted, intervals, load_yaml, parse_yaml, resolve, to_yaml
from kumite.envs import make_env, name_of, source
from kumite.envs.base import ASKED, MEASURED, VecEnv, derive
from kumite.errors import RunError, UserError
from kumite.evaluate import Evaluation, copies, evaluate
from kumite.log import Logger
from kumite.machine import (
    Known,
    free_memory,
    keep_memory,
    manifest,
    pays_to_be_thorough,
    pays_to_compile,
    pick_device,
    pick_precision,
    pick_threads,
    products,
    threads,
)
from kumite.nn.cores import forget
from kumite.profile import Profile
from kumite.rng import Randomness
from kumite.runs import Stop, alone, find, is_run, open_folder, pick_checkpoint
from kumite.schedules import Every
from kumite.sinks import ready
from kumite.sinks.files import replace_file
from kumite.sinks.tensorboard import EVENTS
from kumite.train import Hook, Interrupted, RunState, log_metrics, online
from kumite.types import ActionSpec, Spec
from kumite.video import has_display, video, window

FOLDER_KEYS = ("dir", "name", "track")
"""In Python a run writes files only if one of these was given."""
UNTRACED = {"seed", "steps", "device", "name", "dir", "track", "compile", "quiet", "profile", "stop_at"}
UNTRACED |= {"env", "eval", "log", "save"}
"""What does not change the graphs of a run."""
HOST = torch.device("cpu")

Callback = Callable[[RunState], Any]


class _Enough(Exception):
    """A callback or a reached score ends the run."""


class Agent:
    algo_name: ClassVar[str] = ""

    def __init__(
        self, env: Any, /, *, algo: str = "", config: Any = None, file: str | Path | None = None, **parameters: Any
    ) -> None:
        """`env`: an id, a gymnasium Env, a vector env, or a callable that makes one.

        `parameters` are those of the command line: `lr=1e-3`, `actor={"width": 128}`, `env={"action_repeat": 2}`. They
        come after the preset of the environment and after `file`; a finished `config` replaces them all.
        """
        self.name = (algo or self.algo_name).lower()
        self.env_id, self.source = name_of(env), env
        self.writes = config is not None or any(key in parameters for key in FOLDER_KEYS)
        layer = load_yaml(file) if file else {}
        if _is_one_copy(env) and not any(key.replace("-", "_") == "num_envs" for key in (*layer, *parameters)):
            parameters["num_envs"] = 1  # whatever a preset says: an object is one copy
        self.config = config or resolve(self.name, self.env_id, layer, parameters)
        self.path: Path | None = None
        self.env: VecEnv | None = self._make_env()
        self.config = fitted(self.config, self.env.slots, self.env.horizon)
        self.native = self.env.native
        self._build(self.env.obs_space, self.env.action)

    def _build(self, obs_space: dict[str, Spec], action: ActionSpec) -> None:
        kind = algorithm(self.name)
        if action.kind not in kind.actions:
            able = [row.title for name, row in ROWS.items() if action.kind in algorithm(name).actions]
            raise UserError(f"{self.name} cannot do the {action.kind} actions of {self.env_id}; {', '.join(able)} can")
        self.obs_space, self.action = obs_space, action
        self.device = pick_device(self.config.device)
        self.rng = Randomness(self.config.seed, self.device)
        with self.rng.active():
            self.algo: Algorithm = kind(obs_space, action, self.config.num_envs, self.config).to(self.device)
        self.run: RunState | None = None
        self.saved: dict[str, Any] = {}  # a checkpoint's state until the run is set up
        self.last_save = -1
        self.save_failed = False
        self.stop = Stop()
        self.profile: Profile | None = None  # of the last `learn`, with profile=True

    def _make_env(self) -> VecEnv:
        c = self.config
        return make_env(self.source, c.num_envs, c.seed, c.env)

    # -- learning -----------------------------------------------------------------------------------------------------

    @property
    def env_step(self) -> int:
        return self.run.env_step if self.run else int(self.saved.get("env_step", 0))

    def learn(self, steps: int | str | None = None, callback: Callback | None = None) -> Agent:
        """Train for `steps` more environment steps; None = what is left of the configured ones.

        `callback(run)` is called after every step, and returning False stops. After Ctrl-C or SIGTERM everything is
        saved, where the run has a folder, before `Interrupted` (a KeyboardInterrupt) is raised.

        With `profile=True` the seconds and shares of acting, environment, updates and so on are printed at the end,
        and `agent.profile` holds them.
        """
        until = self.config.steps if steps is None else self.env_step + coerce(steps, int, "steps")
        if steps is not None and until < self.env_step:
            raise UserError(f"steps: expected at least 0, got {steps}")
        self.config = replace(self.config, steps=until)
        self.stop = stop = Stop()
        with ExitStack() as stack:
            stack.enter_context(stop.listening())
            stack.enter_context(self.rng.active())
            before = self.folder
            stack.enter_context(alone(before))
            self._settle()
            run = self.run or self._start()
            if before is None:
                stack.enter_context(alone(self.folder))
            self._plan(run, until)
            stack.enter_context(threads(run.threads))
            stack.enter_context(products(run.precision))
            self.profile = Profile(self.device) if self.config.profile else None
            if self.profile is not None:
                stack.callback(self._show_profile)
                stack.enter_context(self.profile.watching(run, self))
            hooks: dict[str, Hook] = {"eval": self._evaluate_hook, "log": log_metrics, "save": self._save_hook}
            try:
                self._train(run, until, hooks, callback)
            except RunError as error:
                name = checkpoint.broken(self.algo)
                where = f"; first broken tensor: '{name}'" if name else ""
                raise RunError(f"{error}{where}{self._kept()}") from error
            finally:
                self.stop = Stop()
                run.logger.close()
        return self

    def _settle(self) -> None:
        """The config.yaml of a run that goes on says how long it is now; a folder that takes nothing is refused."""
        if self.folder is not None:
            try:
                replace_file(self.folder / "config.yaml", self._yaml().encode())
            except OSError as error:
                raise UserError(f"cannot write to {self.folder}: {error.strerror}") from None

    def _show_profile(self) -> None:
        if not self.config.quiet:
            print(self.profile)

    def _train(self, run: RunState, until: int, hooks: dict[str, Hook], callback: Callback | None) -> None:
        try:
            online(run, until, hooks, lambda: self._check(run, callback))
            if run.timers["eval"].n and run.eval_step != run.env_step:
                self._evaluate_hook(run)
                self.last_save = -1  # what was saved at this step does not know of it
        except _Enough:
            pass
        except Interrupted:
            self._save_last(run)
            raise
        if self.algo.graph is not None and self.algo.graph.works:
            self._known(run).keep()
        self._finish(run)

    def _start(self) -> RunState:
        """The first call: the folder, the storage, the first observations; or what a checkpoint says of them."""
        self.env = self.env or self._make_env()
        self._check_fit(self.env)
        if self.env.slots != self.config.num_envs:
            raise UserError(
                f"what was saved has {self.config.num_envs} copies of the environment, this one has {self.env.slots};"
                " give as many, or train anew"
            )
        storage = self._storage()
        if self.writes and self.config.eval.every >= 0:
            source(self.source)  # what cannot be made again for evaluation is refused before anything is written
        if self.writes and self.path is None:
            ready(self.config.track, dump(self.config.log))
            parent = Path(self.config.dir) / self.env_id.replace("/", "-") / self.name
            facts = json.dumps(manifest(self.env_id, self.name, self.config.seed), indent=1)
            texts = {"manifest.json": facts, "config.yaml": self._yaml()}
            self.path = open_folder(parent, self.config.name, self.config.seed, texts)
        run = RunState(self.algo, self.env, self.config.seed, self._logger(), self.device, storage)
        widest = max((p.shape[-1] for p in self.algo.parameters() if p.dim() > 1), default=1)
        run.threads, run.precision = pick_threads(self.config.threads, self.algo.work()), pick_precision(widest)
        run.timers = {name: Every(0) for name in ("eval", "log", "save")}
        if self.saved:
            run.restore(self.saved)
            self.saved = {}
        if storage != self.device:
            run.logger.say(f"rows of the past stay in the host's memory: they do not fit on {self.device}")
        self.run = run
        return run

    def _check_fit(self, env: VecEnv) -> None:
        """Another environment than the agent was made for, given to one that was loaded."""
        for what, mine, theirs in (
            ("observations", self.obs_space, env.obs_space),
            ("actions", (self.action.continuous, self.action.branches), (env.action.continuous, env.action.branches)),
        ):
            if mine != theirs:
                raise UserError(f"this environment has other {what} than {self.env_id}, for which the agent was made")

    def _storage(self) -> torch.device:
        """Where the stream lies: beside the nets if all that this run will write fits there, otherwise on the host.

        What fits nowhere is refused before anything is written.
        """
        stream = self.algo.make_stream(HOST)
        rows = min(stream.rows * stream.slots, self.config.steps)
        each, free = stream.row_bytes(self.obs_space, self.action), free_memory(HOST)
        if self.device != HOST and stream.rows * stream.slots * each < 0.8 * free_memory(self.device):
            return self.device
        if rows * each > free:
            raise UserError(
                f"{rows:,} rows of {each:,} bytes take {rows * each / 1e9:.1f} GB and {free / 1e9:.1f} GB of memory are"
                f" free; --buffer-size {int(0.8 * free / each):,} fits"
            )
        return HOST

    def _logger(self) -> Logger:
        facts = {"algo": self.name, "env_id": self.env_id, **dump(self.config)}
        return Logger(self.folder, self.config.track, self.config.steps, self.config.quiet, facts)

    def _plan(self, run: RunState, until: int) -> None:
        """Timers and compilation for a run of this length."""
        plan = intervals(self.config)._asdict()
        for name, timer in run.timers.items():
            asked = getattr(self.config, name).every > 0
            timer.n = plan[name] if self.writes or asked else 0
        if self.config.stop_at is not None:
            run.timers["eval"].n = plan["eval"]
        run.logger.total(until)
        if run.compiled is None:
            updates = self.algo.planned_updates(until - run.env_step)
            known = self._known(run)
            facts = (self.algo.span is not None, bool(known), self.algo.looped)
            run.compiled, why = pays_to_compile(self.config.compile, updates, *facts)
            run.thorough = pays_to_be_thorough(updates, self.algo.work(), self.device)
            how = "compiled" if run.compiled else "as they are"
            run.logger.say(f"threads {run.threads}, products {run.precision}; updates {how}: {why}")
            self._record({"threads": run.threads, "precision": run.precision, "compiled": run.compiled, "why": why})
        if self.algo.looped:
            keep_memory()
        if run.compiled:
            self.algo.compile_update(run.thorough)
            self.algo.compile_pieces()

    def _known(self, run: RunState) -> Known:
        """What decides whether another run's graphs fit this one."""
        numbers = {k: v for k, v in dump(self.config).items() if k not in UNTRACED}
        return Known(self.name, numbers, self.obs_space, self.action, str(self.device), run.threads, run.precision)

    def _record(self, chosen: dict[str, Any]) -> None:
        """Into the manifest, which was written before any of it was known."""
        if self.folder is not None:
            file = self.folder / "manifest.json"
            with suppress(OSError, ValueError):
                facts = json.loads(file.read_text(encoding="utf-8"))
                replace_file(file, json.dumps(facts | {"chosen": chosen}, indent=1).encode())

    def _check(self, run: RunState, callback: Callback | None) -> None:
        self._interrupted()
        if self.config.stop_at is not None and run.last_eval is not None and run.last_eval >= self.config.stop_at:
            raise _Enough
        if callback is not None and run.env_step > 0 and callback(run) is False:
            raise _Enough

    def _finish(self, run: RunState) -> None:
        if run.meter.sums:
            log_metrics(run)
            self.last_save = -1
        self._save_last(run)
        run.logger.finished(run.env_step)

    def _evaluate_hook(self, run: RunState) -> None:
        try:
            seed = derive(self.config.seed, MEASURED)
            result = self._play(self.config.eval.episodes, seed, self.config.eval.deterministic)
        except RunError as error:
            raise RunError(f"in the evaluation at step {run.env_step:,}: {error}") from error
        run.logger.evaluation(run.env_step, result.row())
        run.last_eval, run.eval_step = result.mean, run.env_step
        if result.mean > run.best:
            before, run.best = run.best, result.mean
            if self.folder is not None and not self._tried(lambda: self._write("best", run, replay=False)):
                run.best = before  # the best one is the best of those that were written

    # -- saving -------------------------------------------------------------------------------------------------------

    def _save_hook(self, run: RunState) -> None:
        self._tried(lambda: self._save(run))

    def _save_last(self, run: RunState) -> None:
        """What ends a run: nothing comes after it that could try again."""
        try:
            self._save(run)
        except OSError as error:
            what = f"the last checkpoint, of step {run.env_step:,}, could not be written ({error.strerror or error})"
            raise RunError(f"{what}; mend that, then resume the run") from error

    def _save(self, run: RunState) -> None:
        if self.folder is not None and self.last_save != run.env_step:
            self._write(str(run.env_step), run, self.config.save.replay)
            self.last_save = run.env_step
            checkpoint.prune(self.folder / "checkpoints", self.config.save.keep)

    def _write(self, name: str, run: RunState, replay: bool) -> None:
        assert self.folder is not None
        checkpoint.check_finite(run.algo)
        checkpoint.write(self.folder / "checkpoints" / name, self._state(run), self._texts(), replay)

    def _tried(self, save: Callable[[], None]) -> bool:
        """True if it was written; a full disk costs a warning, not the run, and the next save tries again."""
        try:
            save()
        except OSError as error:
            if not self.save_failed:
                warnings.warn(
                    f"a checkpoint could not be written in {self.folder} ({error.strerror or error});"
                    " training goes on with the older ones kept",
                    CheckpointWarning,
                    stacklevel=2,
                )
            self.save_failed = True
            return False
        self.save_failed = False
        return True

    def _state(self, run: RunState) -> dict[str, Any]:
        return run.state() | {"rng": self.rng}

    def _texts(self) -> dict[str, str]:
        obs = {k: asdict(s) | {"dtype": str(s.dtype).removeprefix("torch.")} for k, s in self.obs_space.items()}
        return {"config.yaml": self._yaml(), "spaces.json": json.dumps({"native": self.native.to_json(), "obs": obs})}

    def _yaml(self) -> str:
        return to_yaml(self.config, self.name, self.env_id)

    def _kept(self) -> str:
        """Where the last good checkpoint is."""
        if self.folder is None:
            return ""
        for folder in checkpoint.numbered(self.folder / "checkpoints"):
            if checkpoint.problem(folder) is None:
                return f"; the last good checkpoint is {folder}"
        return f"; no checkpoint was written yet in {self.folder}"

    @property
    def folder(self) -> Path | None:
        """Where this agent writes its run; one that was loaded to act leaves the run it came from alone."""
        return self.path if self.writes else None

    def save(self, path: str | Path, replay: bool = True) -> None:
        """Write everything to a folder; `kumite.load` reads it, acts, and can go on learning."""
        run = self.run
        if run is None:
            run = self._start()
        checkpoint.check_finite(self.algo)
        try:
            checkpoint.write(checkpoint.replaceable(Path(path)), self._state(run), self._texts(), replay)
        except OSError as error:
            raise UserError(f"cannot save to '{path}': {error.strerror or error}") from None

    @classmethod
    def from_checkpoint(cls, folder: Path, env: Any = None) -> Agent:
        """An agent that acts without an environment; `env` (or the saved id) is made when it is needed."""
        state = checkpoint.read(folder)
        try:
            return cls._from_state(folder, state, env)
        except (AttributeError, IndexError, KeyError, RecursionError, RuntimeError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise UserError(
                f"'{folder}' does not fit this version of kumite: {type(error).__name__}: {reason}"
            ) from error

    @classmethod
    def _from_state(cls, folder: Path, state: dict[str, Any], env: Any) -> Agent:
        settings = parse_yaml(checkpoint.text(folder, "config.yaml"), str(folder / "config.yaml"))
        name, env_id = str(settings.get("algo", "")), str(settings.get("env_id", ""))
        agent: Agent = object.__new__(agent_class(name))
        agent.name, agent.env_id, agent.source = name, env_id, env_id if env is None else env
        agent.config = _movable(folder, resolve(name, "", settings))
        _refuse_tools(folder, env_id, agent.config.actor.encoder, agent.config.critic.encoder)
        agent.writes, agent.path, agent.env = False, None, None
        spaces = json.loads(checkpoint.text(folder, "spaces.json"))
        agent.native = _native(spaces["native"])
        obs_space = {
            k: Spec(tuple(s["shape"]), getattr(torch, s["dtype"]), s["image"], tuple(s["choices"]), s["stack"])
            for k, s in spaces["obs"].items()
        }
        agent._build(obs_space, agent.native.action)
        agent.algo.load_state_dict(state["algo"])
        agent.saved = state
        agent.rng.restore(state["rng"])
        agent.last_save = int(state["env_step"])
        return agent

    # -- acting -------------------------------------------------------------------------------------------------------

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = True
    ) -> tuple[Any, Any]:
        """The action for one observation or a batch, in the environment's own format, and the state to hand back next.

        `state` is what the last call returned (None at first); `episode_start`: which rows begin an episode.
        """
        batched = self.native.is_batched(observation)
        arrays = self.native.encode(observation, batched)
        obs = {k: torch.as_tensor(v if batched else v[None], device=self.device) for k, v in arrays.items()}
        n = next(iter(obs.values())).shape[0]
        first = torch.zeros(n, dtype=torch.bool, device=self.device)
        if episode_start is not None:
            said = torch.as_tensor(episode_start, dtype=torch.bool, device=self.device).reshape(-1)
            if said.shape[0] not in (1, n):
                raise UserError(f"episode_start speaks of {said.shape[0]} observations, but {n} were given")
            first = said.expand(n)
        state = self._memory(state, n)
        stacks = {k: s.stack for k, s in self.obs_space.items() if s.stack > 1}
        frames = {k: _push(state["frames"].get(k), obs[k], stack, first) for k, stack in stacks.items()}
        with torch.no_grad(), self.rng.active():
            act = self.algo.act(obs | frames, forget(state["core"], first), explore=not deterministic)
        c, d = act.action["c"].cpu().numpy(), act.action["d"].cpu().numpy()
        action = self.native.decode_batch(c, d) if batched else self.native.decode(c, d)[0]
        remembers = bool(frames) or any(True for _ in tree.leaves(act.core))
        return action, {"core": act.core, "frames": frames} if remembers else None

    def _memory(self, state: Any, n: int) -> dict[str, Any]:
        """What `predict` returned last, or the start of n episodes."""
        if state is None:
            return {"core": self.algo.initial(n), "frames": {}}
        if not isinstance(state, dict) or state.keys() != {"core", "frames"}:
            raise UserError(f"state is what predict returned last (None at first), not {type(state).__name__}")
        rows = {leaf.shape[0] for leaf in tree.leaves(state)}
        if rows - {n}:
            raise UserError(f"the state is that of {max(rows - {n})} observations, but {n} were given")
        return state

    def evaluate(
        self,
        episodes: int = 10,
        seed: int | None = None,
        deterministic: bool = True,
        video_path: str | Path | None = None,
    ) -> Evaluation:
        """Play episodes in environments of their own; optionally into a video file.

        `seed` (None = the run's) decides the episodes. They are none of those that training evaluates on.
        """
        if episodes < 1:
            raise UserError(f"episodes: expected at least 1, got {episodes}")
        start = derive(self.config.seed if seed is None else seed, ASKED)
        with ExitStack() as stack:
            show = stack.enter_context(video(Path(video_path))) if video_path else None
            return self._play(episodes, start, deterministic, show)

    def _play(self, episodes: int, seed: int, deterministic: bool = True, show: Any = None) -> Evaluation:
        """`show` gets the pictures, for which one copy plays all episodes."""
        slots = 1 if show else copies(episodes)
        c = self.config.env
        if c.on_error == "drop":  # every episode is played
            c = replace(c, on_error="restart")
        made = make_env(source(self.source), slots, seed, c, render=show is not None)
        try:
            self._check_fit(made)
            with self.rng.apart(seed):
                return evaluate(self.algo, made, episodes, seed, deterministic, self._interrupted, show)
        finally:
            made.close()

    def _interrupted(self) -> None:
        if self.stop.signal is not None:
            raise Interrupted(self.stop.signal)

    def play(self, episodes: int = 1, seed: int = 0, path: str | Path | None = None) -> Path | None:
        """Show episodes in a window, or in a video file where there is no display; returns the file."""
        if has_display() and path is None:
            with window(f"{self.name} {self.env_id}") as show:
                self._play(episodes, derive(seed, ASKED), show=show)
            return None
        path = Path(path or (self.path or Path()) / "videos" / f"{self.env_step}.mp4")
        self.evaluate(episodes, seed, video_path=path)
        return path


def _refuse_tools(folder: Path, *names: str) -> None:
    """A checkpoint may name your environments and nets, not the tools of Python: 'subprocess:run' is neither."""
    for name in names:
        module, colon, _ = name.partition(":")
        if colon and module.partition(".")[0] in sys.stdlib_module_names:
            raise UserError(f"'{folder}' names '{name}', which is part of Python and no environment or net")


def _movable(folder: Path, config: Any) -> Any:
    """What was trained on a GPU acts, and goes on, where there is none."""
    try:
        pick_device(config.device)
    except UserError:
        said = f"{folder} was made on '{config.device}', which cannot be used here; it goes on with --device auto"
        warnings.warn(said, CheckpointWarning, stacklevel=2)
        return replace(config, device="auto")
    return config


def _is_one_copy(env: Any) -> bool:
    """A single Env object: not an id, a maker, or a vector environment."""
    made = hasattr(env, "reset") and not isinstance(env, type)
    return made and not hasattr(env, "single_action_space") and not hasattr(env, "slots")


def _push(frames: Tensor | None, new: Tensor, stack: int, first: Tensor) -> Tensor:
    """The newest frame joined to the older ones; zeros before the episode's first."""
    channels = new.shape[1]
    if frames is None:
        frames = new.new_zeros(new.shape[0], stack * channels, *new.shape[2:])
    kept = frames * (~first).view(-1, *[1] * (frames.dim() - 1)).to(frames.dtype)
    return torch.cat([kept[:, channels:], new], 1)


def _native(data: dict[str, Any]) -> Any:
    from kumite.envs.spaces import Native

    return Native.from_json(data)


@cache
def agent_class(name: str) -> type[Agent]:
    """The Agent class of an algorithm's name: kumite.SAC and its like."""
    from kumite.algos import row

    found = row(name)
    return type(found.title or name.upper(), (Agent,), {"algo_name": name, "__doc__": found.paper})


def load(path: str | Path, checkpoint: str | int = "best", env: Any = None) -> Agent:
    """An agent from `agent.save(path)` or from a run's folder (its best, last, or a numbered checkpoint)."""
    path = Path(path)
    rescue(path)
    if not path.is_dir():
        path = find(path)
    if not (path / "checkpoints").is_dir() and not is_run(path):
        return Agent.from_checkpoint(path, env)
    agent = Agent.from_checkpoint(pick_checkpoint(path, str(checkpoint)), env)
    agent.path = path
    return agent


def resume(path: str | Path, steps: int | str | None = None, quiet: bool | None = None, env: Any = None) -> Agent:
    """A run at its newest good checkpoint, ready for `learn()` to continue it in its own folder, bit for bit."""
    folder = find(path)
    checkpoint.rescue_all(folder / "checkpoints")
    if (folder / "config.yaml").is_file() and not checkpoint.numbered(folder / "checkpoints"):
        agent = _again(folder, env)
    else:
        agent = Agent.from_checkpoint(pick_checkpoint(folder), env)
    agent.path, agent.writes = folder, True
    until = _length(folder, agent.config.steps) if steps is None else coerce(steps, int, "steps")
    if steps is not None and until < agent.env_step:
        raise UserError(
            f"{folder} has reached step {agent.env_step:,}; steps is the length of the whole run, not {until:,}"
        )
    agent.config = replace(agent.config, steps=until)
    if quiet is not None:
        agent.config = replace(agent.config, quiet=quiet)
    return agent


def _length(folder: Path, saved: int) -> int:
    """The steps of the folder's config.yaml, which an earlier resume may have changed after the newest checkpoint."""
    try:
        return coerce(load_yaml(folder / "config.yaml").get("steps", saved), int, "steps")
    except UserError:  # lost or damaged, and written anew from the checkpoint's
        return saved


def _again(folder: Path, env: Any) -> Agent:
    """A run that ended before its first checkpoint begins once more, in the same folder."""
    settings = load_yaml(folder / "config.yaml")
    name, env_id = str(settings.get("algo", "")), str(settings.get("env_id", ""))
    agent = Agent(env_id if env is None else env, algo=name, config=resolve(name, "", settings))
    with alone(folder):
        for file in (*folder.glob("*.csv"), *folder.glob(f"{EVENTS}*")):
            file.unlink()
    return agent


def algorithms() -> list[dict[str, Any]]:
    """Every algorithm name with what it supports."""
    table = []
    for name, row in ROWS.items():
        kind = algorithm(name)
        table.append(
            {
                "name": name,
                "title": row.title,
                "actions": list(kind.actions),
                "memory": kind.memory,
                "paper": row.paper,
            }
        )
    return table
