"""The command line: help, exit codes, one line per mistake, and what each command hands to the agent."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import kumite
from kumite import cli, flags
from kumite.cli import main
from kumite.errors import RunError, UserError

Out = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Out:
    """Run a command in this process, in an empty folder: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str, str]:
        code = main(list(words))
        out, err = capsys.readouterr()
        return code, out, err

    return call


class Interrupted(KeyboardInterrupt):
    def __init__(self, signal: int) -> None:
        self.signal = signal


@dataclass
class FakeAgent:
    """What the commands need of an agent."""

    env: str
    algo: str
    config: Any
    path: Path = Path("runs/x/y/z-s0")
    env_step: int = 200
    ends: BaseException | None = None
    calls: list[Any] = field(default_factory=list)

    def learn(self) -> None:
        self.calls.append("learn")
        if self.ends:
            raise self.ends

    def evaluate(self, **given: Any) -> Any:
        self.calls.append(given)
        return SimpleNamespace(mean=2.0, std=1.0, returns=[1.0, 3.0], lengths=[10, 20], mean_length=15.0)

    def play(self, **given: Any) -> Path:
        self.calls.append(given)
        return self.path / "videos" / "200.mp4"

    def _kept(self) -> str:
        return "; the last good checkpoint is runs/x/y/z-s0/checkpoints/100"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[FakeAgent]:
    """The agents that a command made, none of them real."""
    from kumite import agent

    agents: list[FakeAgent] = []

    def make(env: str, *, algo: str, config: Any) -> FakeAgent:
        agents.append(FakeAgent(env, algo, config))
        return agents[-1]

    def again(path: Path, **given: Any) -> FakeAgent:
        agents.append(
            FakeAgent("", "", SimpleNamespace(quiet=False, steps=given.get("steps") or 200), path, calls=[given])
        )
        return agents[-1]

    monkeypatch.setattr(agent, "Agent", make)
    monkeypatch.setattr(agent, "load", again)
    monkeypatch.setattr(agent, "resume", again)
    return agents


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run's folder."""
    path = tmp_path / "runs" / "CartPole-v1" / "ppo" / "first-s0"
    (path / "checkpoints").mkdir(parents=True)
    (path / "config.yaml").write_text("algo: ppo\nenv_id: CartPole-v1\n")
    (path / "evals.csv").write_text(
        "env_step,time_s,mean,std,min,max,episodes,mean_length\n100,1.0,5.0,1.0,4.0,6.0,10,5.0\n200,2.0,7.5,2.5,4.0,9.0,10,8.0\n"
    )
    return path


# --- help ----------------------------------------------------------------------------------------------------------


def test_help_lists_the_commands(run: Out) -> None:
    code, out, err = run("--help")
    assert (code, err) == (0, "")
    assert all(f"\n  {name} " in out for name in cli.COMMANDS)
    assert run() == (2, out, "")


@pytest.mark.parametrize("command", list(cli.COMMANDS))
def test_every_command_has_help(run: Out, command: str) -> None:
    code, out, err = run(command, "--help")
    assert (code, err) == (0, "")
    assert f"kumite {command}" in out


def test_version(run: Out) -> None:
    assert run("--version") == (0, f"kumite {kumite.__version__}\n", "")


def test_help_shows_the_values_that_would_run(run: Out) -> None:
    code, out, _ = run("train", "sac", "Hopper-v5", "--help")
    text = " ".join(out.replace("│", " ").split())
    assert code == 0
    assert "usage: kumite train sac Hopper-v5" in text
    assert "--batch-size INT Rows per update" in text
    assert "--critic-lr FLOAT The critics' learning rate; 0 = lr. (default: 0.001)" in text, "the preset's value"
    assert "KataRL2" in text, "and where it comes from"
    assert all(flag in text for flag in ("--actor.width INT", "--env.action-repeat INT", "--save.no-replay"))
    _, out, _ = run("train", "a2c", "nothing/known", "--help")
    assert "(default: 0.0007)" in out, "what the name means"


def test_help_of_commands_needs_no_torch(cli: Any) -> None:
    code = (
        "import sys; from kumite.cli import main; code = main([*sys.argv[1:]]);"
        "assert not {'torch', 'numpy', 'gymnasium', 'tensorboard'} & set(sys.modules), 'too much'; sys.exit(code)"
    )
    start = time.perf_counter()
    for words in (["--help"], ["train", "--help"], ["eval", "--help"], ["resume", "-h"], ["--version"]):
        subprocess.run([sys.executable, "-c", code, *words], check=True, capture_output=True)
    assert time.perf_counter() - start < 5


# --- one line per mistake ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("trian", "unknown command 'trian'; did you mean 'train'?"),
        ("xyzzy", "unknown command 'xyzzy' (commands: train, resume"),
        ("train", "which algorithm?"),
        ("train ppo", "which environment?"),
        ("train CartPole-v1 ppo", "the algorithm comes first: kumite train ppo CartPole-v1"),
        ("train poo CartPole-v1", "unknown algorithm 'poo'; did you mean 'ppo'?"),
        ("train ppo CartPole-v1 --batch-sise 3", "unknown flag '--batch-sise'; did you mean '--batch-size'?"),
        ("train ppo CartPole-v1 --actor.widht 3", "unknown flag '--actor.widht'; did you mean '--actor.width'?"),
        ("train ppo CartPole-v1 --learning-rate 3", "did you mean '--lr'?"),
        ("train ppo CartPole-v1 --lr fast", "--lr: expected a number, got 'fast'"),
        ("train ppo CartPole-v1 --lr", "--lr: expected a value"),
        ("train ppo CartPole-v1 --steps 1.5", "--steps: expected a whole number, got '1.5'"),
        ("train ppo CartPole-v1 --compile maybe", "--compile: expected one of auto, on, off, got 'maybe'"),
        ("train ppo CartPole-v1 --quiet=maybe", "--quiet: expected true or false, got 'maybe'"),
        ("train ppo CartPole-v1 more", "what is 'more' meant to be?"),
        ("train ppo CartPole-v1 --num-envs 0", "num_envs: expected between 1 and 100000, got 0"),
        ("train ppo CartPole-v1 --num-envs 1e9", "num_envs: expected between 1 and 100000, got 1000000000"),
        ("train ppo CartPole-v1 --actor.layers 64 0", "actor.layers: expected at least 1, got 0"),
        ("train ppo CartPole-v1 --file", "--file: expected the path"),
        ("train ppo NoSuchEnv-v1", "NoSuchEnv"),
        ("resume nothing", "there is no run 'nothing'"),
        ("eval", "which RUN? see kumite eval --help"),
        ("eval nothing --episodes 0", "--episodes: expected at least 1, got 0"),
        ("eval nothing --epsiodes 3", "unknown flag '--epsiodes'; did you mean '--episodes'?"),
        ("eval nothing --checkpoint newest", "expected a whole number, got 'newest'"),
        ("algos more", "what is 'more' meant to be?"),
        ("presets show ppo", "say: kumite presets"),
        ("presets show poo CartPole-v1", "unknown algorithm 'poo'"),
    ],
)
def test_mistakes(run: Out, tmp_path: Path, words: str, said: str) -> None:
    code, out, err = run(*words.split())
    assert (code, out) == (2, "")
    assert err.startswith("kumite: ")
    assert err.count("\n") == 1
    assert said in err
    assert list(tmp_path.iterdir()) == [], "nothing was written"


def test_a_mistake_in_a_file_names_the_file(run: Out, tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text("lrr: 1\n")
    for words in (["ppo", "CartPole-v1", "--file", "my.yaml"], ["ppo", "CartPole-v1", "--file=my.yaml", "--seed", "1"]):
        code, _, err = run("train", *words)
        assert (code, err) == (2, "kumite: unknown key 'lrr'; did you mean 'lr'? (in my.yaml)\n")
    code, _, err = run("train", "ppo", "CartPole-v1", "--lrr", "1")
    assert (code, err) == (2, "kumite: unknown flag '--lrr'; did you mean '--lr'?\n")


def test_help_shows_the_values_of_a_file(run: Out, tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text("algo: ppo\nenv_id: CartPole-v1\nlr: 0.0123\n")
    code, out, _ = run("train", "--file", "my.yaml", "--help")
    assert code == 0
    assert "0.0123" in out


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_mistake_on_any_terminal(cli: Any, encoding: str) -> None:
    done = cli("algos", "more", PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "kumite: what is 'more' meant to be?\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a disk that is always full")
def test_an_output_that_takes_nothing(tmp_path: Path) -> None:
    """What was printed is lost, the run is not: a log on a full disk, a service whose output is closed."""
    train = "train ppo CartPole-v1 --steps 32 --num-envs 2 --horizon 8 --epochs 1 --eval.every -1 --name"
    for name, where, code, said in (
        ("full", "> /dev/full", 1, "kumite: [Errno 28] No space left on device"),
        ("closed", ">&-", 0, ""),
    ):
        command = f"{sys.executable} -m kumite {train} {name} {where}"
        done = subprocess.run(command, shell=True, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        assert done.stderr.endswith(f"{said}\n" * bool(said))
        pattern = f"runs/CartPole-v1/ppo/{name}-s0/checkpoints/3[23]/manifest.json"  # 32 steps, or a row more
        assert list(tmp_path.glob(pattern))


def test_colours_are_no_part_of_a_message() -> None:
    framed = "╭─ \x1b[1mValue error\x1b[0m ─╮\n│ \x1b[31mError parsing --lr: bad\x1b[0m │\n│ ──── │\n│ See │\n╰────╯\n"
    assert flags.condense(framed) == "--lr: bad"


# --- train ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        "ppo CartPole-v1 --steps 1e4 --seed 3 --actor.layers 32,16 --no-quiet --save.no-replay",
        "--steps 10_000 ppo CartPole-v1 --actor.layers 32 16 --seed=3 --save.replay false",
        "PPO CartPole-v1 --steps=10k --actor.layers [32,16] --seed 3.0 --save.replay=no --quiet no",
    ],
)
def test_flags_reach_the_config(run: Out, made: list[FakeAgent], words: str) -> None:
    code, out, err = run("train", *words.split())
    assert (code, err) == (0, "")
    assert "runs/x/y/z-s0" in out
    (agent,) = made
    assert (agent.env, agent.algo, agent.calls) == ("CartPole-v1", "ppo", ["learn"])
    config = agent.config
    assert (config.steps, config.seed, config.actor.layers, config.save.replay) == (10_000, 3, (32, 16), False)
    assert config.epochs == 20, "the preset's"
    assert config.quiet is False


def test_flags_of_every_kind(run: Out, made: list[FakeAgent]) -> None:
    words = "--memory gru --actor.memory none --keep 5 --track --stop-at 475 --env.hide 1 3 --env.kwargs {a: 1}"
    assert run("train", "ppo", "CartPole-v1", "--save.every", "-1", *words.split(" ", 13), "--quiet")[0] == 0
    config = made[0].config
    assert (config.actor.memory, config.critic.memory) == ("none", "gru")
    assert (config.save.keep, config.save.every, config.track, config.stop_at) == (5, -1, (), 475.0)
    assert (config.env.hide, config.env.kwargs, config.quiet) == ((1, 3), "{a: 1}", True)


def test_quiet_says_nothing(run: Out, made: list[FakeAgent]) -> None:
    assert run("train", "ppo", "CartPole-v1", "--quiet") == (0, "", "")


def test_a_file_repeats_a_run_and_flags_come_last(run: Out, made: list[FakeAgent], tmp_path: Path) -> None:
    from kumite import config as c

    first = c.resolve("sac", "Pendulum-v1", None, {"lr": 0.5, "actor.width": 7, "seed": 4})
    c.save_yaml(tmp_path / "c.yaml", first, "sac", "Pendulum-v1")
    for words in ("--file c.yaml", "sac --file=c.yaml", "sac Pendulum-v1 --file c.yaml"):
        assert run("train", *words.split())[0] == 0
        assert (made[-1].env, made[-1].algo, made[-1].config) == ("Pendulum-v1", "sac", first)
    assert run("train", "sac", "Hopper-v5", "--lr", "0.1", "--file", "c.yaml")[0] == 0
    assert (made[-1].env, made[-1].config.lr, made[-1].config.actor.width) == ("Hopper-v5", 0.1, 7)
    code, _, err = run("train", "ppo", "--file", "c.yaml")
    assert (code, err) == (2, "kumite: 'c.yaml' holds the numbers of 'sac', not of 'ppo'\n")


def ended(run: Out, monkeypatch: pytest.MonkeyPatch, error: BaseException, *words: str) -> tuple[int, str, str]:
    from kumite import agent

    def make(env: str, *, algo: str, config: Any) -> FakeAgent:
        return FakeAgent(env, algo, config, ends=error)

    monkeypatch.setattr(agent, "Agent", make)
    return run("train", "ppo", "CartPole-v1", *words)


def test_exit_codes_of_a_run(run: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = "; the last good checkpoint is runs/x/y/z-s0/checkpoints/100\n"
    code, _, err = ended(run, monkeypatch, UserError("no such thing"))
    assert (code, err) == (2, "kumite: no such thing\n")
    code, _, err = ended(run, monkeypatch, RunError("copy 3 died\nat step 5"))
    assert (code, err) == (1, "kumite: copy 3 died at step 5\n")
    code, _, err = ended(run, monkeypatch, Interrupted(15))
    assert (code, err) == (143, "kumite: interrupted" + kept)
    code, _, err = ended(run, monkeypatch, Interrupted(2))
    assert (code, err) == (130, "kumite: interrupted" + kept)
    code, _, err = ended(run, monkeypatch, KeyboardInterrupt())
    assert code == 130
    code, _, err = ended(run, monkeypatch, ZeroDivisionError("division by zero"), "--quiet")
    assert code == 1
    assert "Traceback" in err
    assert err.endswith("kumite: ZeroDivisionError: division by zero" + kept)


def test_warnings_take_one_line(run: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    import warnings

    from kumite import agent
    from kumite.log import LogWarning

    class Warns(FakeAgent):
        def learn(self) -> None:
            with warnings.catch_warnings():
                warnings.filterwarnings("default" if not self.config.quiet else "ignore", category=LogWarning)
                warnings.warn("the disk\nis full", LogWarning)

    monkeypatch.setattr(agent, "Agent", lambda env, algo, config: Warns(env, algo, config))
    _, _, err = run("train", "ppo", "CartPole-v1")
    assert err == "kumite: the disk is full\n"
    assert run("train", "ppo", "CartPole-v1", "--quiet") == (0, "", "")


# --- resume, eval, play --------------------------------------------------------------------------------------------


def test_resume(run: Out, made: list[FakeAgent], folder: Path) -> None:
    code, out, _ = run("resume", "first", "--steps", "2e6")
    assert (code, "is reached" in out) == (0, False)
    assert "step 200 of 100 is reached; --steps makes a run longer" in run("resume", "first", "--steps", "100")[1]
    del made[1]
    assert made[0].calls == [{"steps": 2_000_000, "quiet": None}, "learn"]
    assert made[0].path.resolve() == folder
    assert run("resume", str(folder), "--quiet")[0] == 0
    assert made[1].calls == [{"steps": None, "quiet": True}, "learn"]


def test_eval_shows_the_number_of_training_next_to_its_own(run: Out, made: list[FakeAgent], folder: Path) -> None:
    code, out, err = run("eval", "first-s0", "--episodes", "2", "--seed", "7")
    assert (code, err) == (0, "")
    assert made[0].calls == [{"checkpoint": "best"}, {"episodes": 2, "seed": 7, "video_path": None}]
    head, *rest = out.splitlines()
    assert head.endswith("first-s0, best checkpoint (step 200)")
    assert [" ".join(line.split()) for line in rest] == [
        "return 2 ± 1 [1 to 3] 2 episodes",
        "length 15 [10 to 20]",
        "training 7.5 ± 2.5 [4 to 9] 10 episodes, measured at this step",
    ]


def test_eval_of_a_step_with_a_video(run: Out, made: list[FakeAgent], folder: Path) -> None:
    (folder / "evals.csv").unlink()
    code, out, _ = run("eval", "first", "--checkpoint", "100k", "--video")
    assert code == 0
    assert made[0].calls[0] == {"checkpoint": "100000"}
    assert made[0].calls[1]["video_path"].parent.name == "videos"
    assert "training" not in out
    assert "eval-200-s0.mp4" in out


def test_play(run: Out, made: list[FakeAgent], folder: Path) -> None:
    code, out, _ = run("play", "first", "--episodes", "3", "--checkpoint", "last")
    assert code == 0
    assert made[0].calls == [{"checkpoint": "last"}, {"episodes": 3, "seed": 0}]
    assert out.strip().endswith("200.mp4")


def test_a_part_of_a_name_must_be_unique(run: Out, made: list[FakeAgent], folder: Path) -> None:
    other = folder.with_name("firsthand-s1")
    other.mkdir()
    (other / "config.yaml").write_text("algo: ppo\n")
    code, _, err = run("eval", "first")
    assert code == 2
    assert "first-s0" in err
    assert "firsthand-s1" in err


def test_a_whole_name_is_itself_though_others_end_with_it(folder: Path, tmp_path: Path) -> None:
    from kumite.runs import find

    for path in (folder.with_name("the-first-s0"), folder.with_name("first-s0-2")):
        path.mkdir()
        (path / "config.yaml").write_text("algo: ppo\n")
    for name in ("first-s0", "ppo/first-s0", folder):
        assert find(name, tmp_path / "runs") == folder


# --- lists ---------------------------------------------------------------------------------------------------------


def test_algos(run: Out) -> None:
    code, out, _ = run("algos")
    head, *rest = out.splitlines()
    assert code == 0
    assert head.split() == ["name", "actions", "memory", "paper"]
    sac = next(line for line in rest if line.startswith("sac "))
    assert "continuous" in sac
    assert "Haarnoja" in sac


def test_algos_names_what_cannot_be_loaded(run: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    from kumite import algos

    monkeypatch.setitem(algos.ROWS, "gone", algos.Row("no.such.module:Gone", "nowhere"))
    code, out, _ = run("algos")
    assert code == 0
    assert "cannot be loaded: No module named 'no'" in out


def test_envs(run: Out) -> None:
    code, out, _ = run("envs")
    assert code == 0
    assert "CartPole-v1" in out
    assert "module.path:make_env" in out


def test_presets(run: Out) -> None:
    code, out, _ = run("presets")
    assert code == 0
    assert "CartPole-v1" in out
    assert "rl-zoo" in out


def test_lists_fit_a_screen(run: Out) -> None:
    for command in ("presets", "algos", "envs"):
        _, out, _ = run(command)
        starts = {line.rfind("  ") for line in out.splitlines()}
        assert max(starts) < 100, f"{command}: the last column, which runs on, begins far to the right"


def test_presets_show_says_that_there_is_none(run: Out) -> None:
    code, _, err = run("presets", "show", "ppo", "CartPol-v1")
    assert (code, err) == (0, "kumite: no preset of ppo is for 'CartPol-v1'; these are the algorithm's own numbers\n")


def test_presets_show(run: Out) -> None:
    code, out, _ = run("presets", "show", "ppo", "CartPole-v1")
    assert code == 0
    table = {line.split()[0]: line.split() for line in out.splitlines()}
    assert table["epochs"][1:3] == ["20", "10"]
    assert table["epochs"][3] == "rl-zoo,"
    assert table["seed"] == ["seed", "0", "0"]
    _, out, _ = run("presets", "show", "ppo", "CartPole-v1", "--diff")
    short = {line.split()[0]: line.split() for line in out.splitlines()}
    assert short["epochs"] == table["epochs"]
    assert "seed" not in short


# --- the whole thing -----------------------------------------------------------------------------------------------


def test_train_then_eval_then_resume(cli: Any, tmp_path: Path) -> None:
    words = ("train", "ppo", "CartPole-v1", "--steps", "600", "--name", "it", "--eval.episodes", "2")
    done = cli(*words, "--horizon", "16", "--epochs", "1")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    run = tmp_path / "runs" / "CartPole-v1" / "ppo" / "it-s0"
    assert "runs/CartPole-v1/ppo/it-s0" in done.stdout
    assert {"config.yaml", "metrics.csv", "episodes.csv", "evals.csv"} <= {p.name for p in run.iterdir()}
    code = f"""
import sys
from kumite.cli import main
assert main(["eval", "it", "--episodes", "2"]) == 0
assert main(["resume", "it", "--steps", "900", "--quiet"]) == 0
assert main(["train", "--file", {str(run / "config.yaml")!r}, "--quiet"]) == 0
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "return" in done.stdout
    again = run.with_name("it-s0-2")
    first = [line.split(",")[2:] for line in (run / "episodes.csv").read_text().splitlines()]
    second = [line.split(",")[2:] for line in (again / "episodes.csv").read_text().splitlines()]
    assert first[: len(second)] == second, "a config.yaml repeats its run"
