"""What Optuna knows about a search: its trials in a file that only grows, the sampler, the pruner.

Optuna is imported here and nowhere else.
"""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kumite.errors import UserError, missing_extra
from kumite.lab import space

if TYPE_CHECKING:
    from kumite.lab.trials import Trial
    from kumite.lab.tune import Hunt

ELSEWHERE = "remove it, or choose another --name"


def library() -> Any:
    try:
        import optuna
    except ImportError:
        raise missing_extra("optuna", "tune") from None
    return optuna


@contextlib.contextmanager
def calm(optuna: Any) -> Iterator[None]:
    """Optuna's own lines would stand between ours."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="optuna")
            warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)


def words(counts: Mapping[str, int]) -> str:
    """8 finished, 3 pruned, 1 failed"""
    return ", ".join(f"{n} {what}" for what, n in counts.items() if n) or "none was tried"


class Journal:
    """The search's trials, in a file that only grows."""

    def __init__(self, hunt: Hunt, optuna: Any) -> None:
        self.hunt, self.optuna = hunt, optuna
        self.path = hunt.folder / "journal.log"
        fresh = not self.path.exists() or self.path.stat().st_size == 0
        self.mend()
        try:
            lock = optuna.storages.journal.JournalFileOpenLock(str(self.path))
            file = optuna.storages.journal.JournalFileBackend(str(self.path), lock)
            storage = optuna.storages.JournalStorage(file)
            found = [x.study_name for x in optuna.get_all_study_summaries(storage)]
            if not fresh and not found:
                raise UserError(f"{self.path} is damaged: it holds no study; {ELSEWHERE}")
            if not fresh and found != ["kumite"]:
                raise UserError(f"{self.path} belongs to another study ({', '.join(found)}); {ELSEWHERE}")
            self.study = optuna.create_study(
                storage=storage, study_name="kumite", direction="maximize", load_if_exists=True, pruner=self.pruner()
            )
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, AssertionError) as e:
            raise UserError(
                f"{self.path} is damaged and cannot be read ({type(e).__name__}: {e}); {ELSEWHERE}"
            ) from None
        self.agree()
        if not self.study.get_trials(deepcopy=False):  # first of all what runs without tuning, or the next to it
            near = {key: space.nearest(value, hunt.space[key]) for key, value in hunt.usual().items()}
            self.study.enqueue_trial(near, user_attrs={"untuned": True})

    def mend(self) -> None:
        """A kill may leave half a line at the end, and a lock that nobody holds (the search's own lock is ours)."""
        for stale in self.path.parent.glob(f"{self.path.name}.lock*"):
            stale.unlink(missing_ok=True)
        if not self.path.exists():
            return
        data = self.path.read_bytes()
        for number, line in enumerate(data.splitlines(keepends=True), 1):
            if not line.endswith(b"\n"):
                os.truncate(self.path, len(data) - len(line))
            else:
                try:
                    json.loads(line)
                except ValueError:
                    raise UserError(f"{self.path} is damaged in line {number}; {ELSEWHERE}") from None

    def agree(self) -> None:
        """The journal's search is this one."""
        now = json.loads(json.dumps(asdict(self.hunt.search)))
        then = self.study.user_attrs.get("search")
        if then is None:
            self.study.set_user_attr("search", now)
            return
        for key, value in now.items():
            if then.get(key) == value:
                continue
            if isinstance(value, dict):
                name = next(k for k in {**value, **then.get(key, {})} if value.get(k) != then.get(key, {}).get(k))
                old, new, name = then.get(key, {}).get(name, "nothing"), value.get(name, "nothing"), f"{key}: {name}"
            else:
                old, new, name = then.get(key), value, key
            raise UserError(f"{self.hunt.folder} was begun with {name} = {old}, now it is {new}; choose another --name")

    def pruner(self) -> Any:
        n, pruners = self.hunt.evaluations, self.optuna.pruners
        if self.hunt.search.pruner == "median":
            return pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=max(1, n // 5))
        if self.hunt.search.pruner == "hyperband":
            return pruners.HyperbandPruner(min_resource=max(1, n // 9), max_resource=n * self.hunt.search.seeds)
        return pruners.NopPruner()

    def sampler(self, number: int) -> Any:
        """Its draws depend on the search's seed, the trial's number and the trials before it, not on interruptions."""
        seed = (self.hunt.search.seed * 1_000_003 + number) % 2**32
        if self.hunt.search.sampler == "random":
            return self.optuna.samplers.RandomSampler(seed=seed)
        return self.optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True)

    def ask(self) -> Any:
        """A new trial, with all its numbers drawn."""
        begun = [t for t in self.study.get_trials(deepcopy=False) if t.state.name != "WAITING"]
        self.study.sampler = self.sampler(len(begun))
        return self.draw(self.study.ask())

    def under_way(self) -> list[Any]:
        """Trials of a search that was ended: they go on."""
        at_work = [t for t in self.study.get_trials(deepcopy=False) if t.state.name == "RUNNING"]
        trials = []
        for frozen in at_work:
            self.study.sampler = self.sampler(frozen.number)
            trials.append(self.draw(self.optuna.trial.Trial(self.study, frozen._trial_id)))
        return trials

    def draw(self, trial: Any) -> Any:
        for key, dimension in self.hunt.space.items():
            if isinstance(dimension, space.Choices):
                trial.suggest_categorical(key, dimension.values)
            elif dimension.whole:
                trial.suggest_int(key, int(dimension.low), int(dimension.high), log=dimension.log)
            else:
                trial.suggest_float(key, dimension.low, dimension.high, log=dimension.log)
        return trial

    def tell(self, trial: Trial, state: str, value: float | None = None, error: str = "") -> None:
        if error:
            trial.optuna.set_user_attr("error", error)
        self.study.tell(trial.optuna, value, state=self.optuna.trial.TrialState[state])

    def trials(self) -> list[Any]:
        """Those that were begun, in order."""
        return [t for t in self.study.get_trials(deepcopy=False) if t.state.name != "WAITING"]

    def counts(self) -> dict[str, int]:
        states = [t.state.name for t in self.trials()]
        names = {"finished": "COMPLETE", "pruned": "PRUNED", "failed": "FAIL"}
        return {what: states.count(state) for what, state in names.items()}

    def errors(self) -> list[str]:
        return [t.user_attrs["error"] for t in self.trials() if "error" in t.user_attrs]

    def best(self) -> Any:
        complete = [t for t in self.trials() if t.state.name == "COMPLETE"]
        return max(complete, key=lambda t: (t.value, -t.number), default=None)
