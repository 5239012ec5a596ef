"""The layers of a config: who wins, what is refused and in which words, and that a file repeats a run."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kumite import algos
from kumite import config as c
from kumite.algos.base import AlgoConfig, Algorithm
from kumite.errors import UserError
from kumite.flags import parse
from kumite.nn.config import Net

PLAIN = "an/unknown-env"


def resolve(algo: str = "ppo", env_name: str = PLAIN, file: dict[str, Any] | None = None, **overrides: Any) -> Any:
    return c.resolve(algo, env_name, file, overrides)


# --- who wins ------------------------------------------------------------------------------------------------------


def test_the_class_alone() -> None:
    config = resolve("sac")
    assert isinstance(config, c.Run)
    assert isinstance(config, c.config_class("sac"))
    assert config == c.run_type("sac")()


def test_the_algorithms_defaults_win_over_the_runs() -> None:
    assert c.Run().num_envs == 1
    assert resolve("ppo").num_envs == c.config_class("ppo")().num_envs == 8


def test_a_name_means_numbers() -> None:
    a2c = resolve("a2c")
    assert (a2c.epochs, a2c.lam, a2c.clip) == (1, 1.0, float("inf"))


def test_each_layer_wins_over_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = (c.Block("an/*", "general", {"lr": 2.0, "gamma": 0.5}), c.Block("an/unk*", "special", {"lr": 3.0}))
    monkeypatch.setattr(c, "presets", lambda algo: blocks)
    assert resolve("a2c", "").lr == 7e-4
    assert resolve("a2c").lr == 3.0
    assert resolve("a2c").gamma == 0.5
    assert resolve("a2c", file={"lr": 4}).lr == 4.0
    assert resolve("a2c", file={"lr": 4}, lr="5").lr == 5.0
    assert c.origins("a2c", PLAIN)["lr"] == "special"
    assert c.origins("a2c", PLAIN)["gamma"] == "general"
    assert "Mnih" in c.origins("a2c", PLAIN)["epochs"]


def test_nothing_is_changed_in_place() -> None:
    file, given_ = {"actor": {"width": 3}}, {"env": {"hide": [1]}}
    default = c.run_type("ppo")()
    config = c.resolve("ppo", "CartPole-v1", file, given_)
    assert (file, given_) == ({"actor": {"width": 3}}, {"env": {"hide": [1]}})
    assert default == c.run_type("ppo")()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.lr = 1


@pytest.mark.parametrize(
    "spelling",
    [
        {"actor": {"memory_width": 7}},
        {"actor": {"memory-width": 7}},
        {"actor.memory_width": 7},
        {"actor.memory-width": "7"},
    ],
)
def test_spellings_of_a_nested_key(spelling: dict[str, Any]) -> None:
    config = c.resolve("ppo", PLAIN, spelling)
    assert config.actor.memory_width == 7
    assert config.critic.memory_width == 256
    assert config.actor.activation == "tanh", "the rest of the group keeps the algorithm's values"


def test_keep_is_short_for_save_keep() -> None:
    assert resolve(keep=9).save.keep == 9


# --- words for both nets -------------------------------------------------------------------------------------------


def test_memory_and_encoder_reach_both_nets() -> None:
    config = resolve(memory="lstm", encoder="impala")
    assert {config.actor.memory, config.critic.memory} == {"lstm"}
    assert {config.actor.encoder, config.critic.encoder} == {"impala"}


def test_a_nets_own_word_wins_in_its_layer() -> None:
    config = c.resolve("ppo", PLAIN, None, {"memory": "lstm", "actor.memory": "none"})
    assert (config.actor.memory, config.critic.memory) == ("none", "lstm")
    config = resolve(memory="lstm", actor=Net(width=3), critic=Net(memory="gru"))
    assert (config.actor.memory, config.critic.memory) == ("lstm", "gru")


def test_a_later_layer_speaks_for_both_nets_again() -> None:
    config = resolve(file={"memory": "lstm", "critic": {"memory": "gru"}}, memory="none")
    assert {config.actor.memory, config.critic.memory} == {"none"}


def test_a_name_or_a_class_may_say_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(algos.ROWS, "rppo", algos.Row("kumite.algos.ppo:PPO", "", {"memory": "lstm"}))
    assert resolve("rppo").critic.memory == "lstm"
    assert resolve("rppo", memory="none").critic.memory == "none"


# --- values --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "number"),
    [
        *((1_000_000, 1_000_000), ("1e6", 1_000_000), ("1_000_000", 1_000_000), ("1M", 1_000_000), (1e6, 1_000_000)),
        *(("100k", 100_000), (" 2.5k ", 2500), ("+7", 7), ("0", 0), ("1.1M", 1_100_000)),
    ],
)
def test_whole_numbers(value: Any, number: int) -> None:
    read = resolve(steps=value).steps
    assert read == number
    assert type(read) is int


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("steps", "many", "a whole number"),
        ("steps", 2.5, "a whole number"),
        ("steps", True, "a whole number"),
        ("steps", float("inf"), "a whole number"),
        ("lr", "fast", "a number"),
        ("lr", float("nan"), "a number"),
        ("lr", None, "a number"),
        ("lr", [1], "a number"),
        ("quiet", "maybe", "true or false"),
        ("name", ["a"], "text"),
        ("compile", "maybe", "one of auto, on, off"),
        ("stop_at", "high", "a number or none"),
        ("actor", 3, "a group of settings"),
        ("actor.layers", "512,wide", "a list (each a whole number)"),
        ("num_envs", 0, "between 1 and 100000"),
        ("gamma", 1.5, "between 0 and 1"),
        ("gamma", -0.5, "between 0 and 1"),
    ],
)
def test_wrong_values_are_refused_by_name(key: str, value: Any, expected: str) -> None:
    with pytest.raises(UserError) as error:
        c.resolve("ppo", PLAIN, None, {key: value})
    said = str(error.value)
    assert said.startswith(f"{key}: expected {expected}")
    assert "\n" not in said


@pytest.mark.parametrize(
    ("limit", "repeat", "gamma"),
    [
        (1000, 1, 0.995),
        (1000, 2, 0.99),
        (500, 1, 0.99),
        (200, 2, 0.95),
        (50, 1, 0.95),
        (10_000, 1, 0.995),
        (0, 1, 0.99),
    ],
)
def test_a_discount_by_the_time_limit(limit: int, repeat: int, gamma: float) -> None:
    """Simba's rule over decisions: L / 5 - 1 of L / 5, within .95 and .995; no limit, no reason to leave 0.99."""
    config = resolve(gamma=-1, env={"action_repeat": repeat})
    assert c.fitted(config, 3, limit).gamma == pytest.approx(gamma)
    assert c.fitted(config, 3, limit).num_envs == 3
    assert c.fitted(resolve(gamma=0.7), 8, limit).gamma == 0.7


def test_friendly_values() -> None:
    assert resolve(compile=True).compile == "on"  # YAML reads a bare `on` as true
    assert resolve(compile=False).compile == "off"
    assert resolve(quiet="yes").quiet is True
    assert resolve(stop_at="none").stop_at is None
    assert resolve(stop_at="475").stop_at == 475.0
    assert c.resolve("ppo", PLAIN, None, {"actor.layers": "[512, 256]"}).actor.layers == (512, 256)
    assert c.resolve("ppo", PLAIN, None, {"env.hide": 3}).env.hide == (3,)
    assert resolve(track="csv").track == ("csv",)
    assert resolve(track=[]).track == ()
    assert resolve(dir=Path("a") / "b").dir == "a/b"
    assert resolve("sac", alpha=0.2).alpha == "0.2"
    assert resolve(env={"kwargs": {"continuous": True}}).env.kwargs == "{continuous: true}"


class Encoder:
    """Stands for a user's own net."""


def test_a_class_is_known_by_its_address() -> None:
    assert resolve(encoder=Encoder).actor.encoder.endswith("test_config:Encoder")

    class Hidden:
        pass

    with pytest.raises(UserError, match="top level of a module"):
        resolve(encoder=Hidden)


@pytest.mark.parametrize("name", ["../up", "a/b", "..", "a\\b", "x\0y"])
def test_a_name_stays_in_its_folder(name: str) -> None:
    with pytest.raises(UserError, match="name: expected the plain name of a folder"):
        resolve(name=name)


# --- unknown keys --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("batch_sise", "batch_size"),
        ("batch-sise", "batch_size"),
        ("actor.widht", "actor.width"),
        ("widht", "actor.width"),
        ("save.replya", "save.replay"),
        ("learning_rate", "lr"),
        ("gae_lambda", "lam"),
        ("n_epochs", "epochs"),
        ("total_timesteps", "steps"),
    ],
)
def test_an_unknown_key_names_its_neighbour(key: str, meant: str) -> None:
    with pytest.raises(UserError, match=f"unknown key .* did you mean '{meant}'"):
        c.resolve("ppo", PLAIN, None, {key: 1})


def test_a_key_of_another_algorithm_is_unknown() -> None:
    with pytest.raises(UserError, match="unknown key 'epochs'"):
        resolve("sac", epochs=3)
    with pytest.raises(UserError, match=r"unknown key 'horizon\.x'"):
        c.resolve("ppo", PLAIN, {"horizon.x": 3})


# --- out and in ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", list(algos.ROWS))
def test_a_file_repeats_the_run(algo: str, tmp_path: Path) -> None:
    config = resolve(algo, "CartPole-v1", lr="1e-4", memory="gru", name="é", stop_at=3)
    path = tmp_path / "config.yaml"
    c.save_yaml(path, config, algo, "CartPole-v1")
    file = c.load_yaml(path)
    assert (file["algo"], file["env_id"]) == (algo, "CartPole-v1")
    for env in ("CartPole-v1", "", "Pendulum-v1"):
        assert c.resolve(algo, env, file) == config


def test_a_dump_is_plain() -> None:
    def plain(x: Any) -> bool:
        if isinstance(x, dict):
            return all(isinstance(k, str) and plain(v) for k, v in x.items())
        return all(map(plain, x)) if isinstance(x, list) else x is None or isinstance(x, bool | int | float | str)

    assert plain(c.dump(resolve("sac")))


def test_differences_are_dotted() -> None:
    base = resolve("sac")
    config = c.resolve("sac", PLAIN, None, {"actor.width": 3, "lr": 1})
    assert c.diff(config, base) == {"lr": (3e-4, 1.0), "actor.width": (256, 3)}
    assert c.diff(base, base) == {}


@given(st.data())
def test_any_change_survives_a_file(data: st.DataObject) -> None:
    base = resolve("sac")
    key = data.draw(st.sampled_from([k for k, v in c.flat(base).items() if type(v) in (int, float)]))
    low, high = c.LIMITS.get(key.rpartition(".")[2], (-1e6, 1e6))
    number = data.draw(st.floats(max(low, -1e6), min(high, 1e6)))
    value = type(c.flat(base)[key])(number)
    if not low <= value <= high:
        return
    config = c.resolve("sac", PLAIN, None, {key: value})
    again = c.resolve("sac", PLAIN, c.parse_yaml(c.to_yaml(config, "sac", PLAIN), "text"))
    assert again == config


# --- automatic intervals -------------------------------------------------------------------------------------------


def test_intervals() -> None:
    auto = c.intervals(resolve(steps="1M"))
    assert auto == (50_000, 5_000, 100_000)
    assert c.intervals(resolve(), 1_000_000) == auto
    asked = resolve(file={"eval": {"every": 7}, "log.every": -1, "save.every": "1k"})
    assert c.intervals(asked) == (7, 0, 1000)
    assert min(c.intervals(resolve(steps=10))) > 10, "a short run is measured at its end only"


# --- algorithms from outside ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MineConfig(AlgoConfig):
    num_envs: int = 3
    """Copies."""
    flavour: Literal["sweet", "sour"] = "sweet"
    """Taste."""
    pair: tuple[int, float] = (1, 2.0)
    """Two numbers."""
    memory: str = "lstm"
    """The memory of both nets."""
    actor: Net = field(default_factory=lambda: Net(width=5))
    """The policy's net."""


class Mine(Algorithm):
    Config = MineConfig


def test_a_registered_algorithm_just_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(algos, "ROWS", dict(algos.ROWS))
    algos.register("Mine", f"{__name__}:Mine", flavour="sour")
    monkeypatch.setattr(c, "algorithm", lambda name: Mine if name == "mine" else algos.algorithm(name))
    monkeypatch.setattr(c, "row", lambda name: algos.ROWS[name])
    config = resolve("mine", pair="3 4")
    assert (config.num_envs, config.flavour, config.pair) == (3, "sour", (3, 4.0))
    assert (config.actor.width, config.actor.memory, config.critic.memory) == (5, "lstm", "lstm")
    assert isinstance(config, MineConfig)


@pytest.mark.parametrize("algo", list(algos.ROWS))
def test_every_field_has_a_sentence(algo: str) -> None:
    """It is what --help shows."""
    import ast
    import inspect

    def sentences(kind: type) -> set[str]:
        found: set[str] = set()
        for base in kind.__mro__:
            if base.__module__.startswith("kumite") and not base.__qualname__.endswith("ConfigRun"):
                body = ast.parse(inspect.getsource(base)).body[0].body  # type: ignore[attr-defined]
                for field_, text in itertools.pairwise(body):
                    if isinstance(field_, ast.AnnAssign) and isinstance(text, ast.Expr):
                        found.add(field_.target.id)  # type: ignore[union-attr]
        return found

    kinds = [c.run_type(algo)]
    kinds += [k for k in c.keys(kinds[0]).values() if dataclasses.is_dataclass(k)]
    missing = [f"{k.__name__}.{f.name}" for k in kinds for f in dataclasses.fields(k) if f.name not in sentences(k)]
    assert not missing


# --- numbers that are switches too, and settings of others -----------------------------------------------------------


@pytest.mark.parametrize(("said", "means"), [(True, 0.6), (False, 0.0), (0.7, 0.7), ("0.5", 0.5), (1, 1.0)])
def test_priority_may_be_switched_on(said: Any, means: float) -> None:
    assert c.resolve("sac", "", {}, {"priority": said}).priority == means


@pytest.mark.parametrize(
    ("words", "means"),
    [
        (["--priority"], 0.6),
        (["--priority", "--quiet"], 0.6),
        (["--priority", "true"], 0.6),
        (["--priority=off"], 0.0),
        (["--priority", "1"], 1.0),
        (["--priority=0.5"], 0.5),
    ],
)
def test_priority_on_the_command_line(words: list[str], means: float) -> None:
    made, given = parse(c.run_type("sac"), words, "kumite train")
    assert made.priority == means
    assert "priority" in given


def test_a_setting_of_others_names_them() -> None:
    with pytest.raises(UserError, match=r"^unknown key 'priority': it is a setting of sac"):
        c.resolve("ppo", "", {}, {"priority": 1})
    with pytest.raises(UserError, match=r"^unknown flag '--n-step': it is a setting of sac"):
        parse(c.run_type("ppo"), ["--n-step", "3"], "kumite train")
