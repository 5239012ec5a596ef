"""Bad configuration: exit 2, one line that names the key, nothing written, nothing executed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kumite import config as c
from kumite.cli import main
from kumite.errors import UserError


def refused(path: Path | str) -> str:
    with pytest.raises(UserError) as error:
        c.load_yaml(path)
    said = str(error.value)
    assert "\n" not in said
    assert len(said) < 400
    return said


HOSTILE = [
    "!!python/object/apply:os.system ['touch {victim}']",
    "lr: !!python/object/apply:os.system ['touch {victim}']",
    "lr: !!python/name:os.system",
    "!!python/object/new:subprocess.Popen [[touch, {victim}]]",
    "lr: !!python/module:antigravity",
    "? !!python/tuple [1]\n: 2",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_yaml_runs_nothing(tmp_path: Path, text: str) -> None:
    victim, path = tmp_path / "victim", tmp_path / "c.yaml"
    path.write_text(text.replace("{victim}", str(victim)))
    assert "not a plain YAML file" in refused(path)
    assert not victim.exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lr: [1, 2", "not a plain YAML file"),
        ("lr: 1\nlr: 2", "the key 'lr' is given twice (line 1)"),
        ("env: {batch: 1, batch: 2}", "the key 'batch' is given twice"),
        ("- lr", "must hold keys and values"),
        ("just words", "must hold keys and values"),
        ("lr: 1\n---\nlr: 2", "not a plain YAML file"),
        ("[" * 5000, "not a plain YAML file"),
        ("lr: *nothing", "not a plain YAML file"),
        ("lr: 1\x00", "not a plain YAML file"),
    ],
)
def test_broken_files_are_refused_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    assert said in refused(path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert "No such file" in refused(tmp_path / "none.yaml")
    assert "directory" in refused(tmp_path)
    (tmp_path / "binary").write_bytes(os.urandom(64) + b"\xff\xfe")
    assert "not a text file" in refused(tmp_path / "binary")
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(10**9)
    assert "too large" in refused(tmp_path / "huge")
    (tmp_path / "empty").write_text("# nothing\n")
    assert c.load_yaml(tmp_path / "empty") == {}


def test_a_bomb_of_aliases_stays_small() -> None:
    """Nine levels of nine references: a billion entries if anyone unrolled them."""
    text = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
    text += "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10))
    found = c.parse_yaml(text, "bomb")
    with pytest.raises(UserError) as error:
        c.resolve("ppo", "", {"lr": found["a9"]})
    assert len(str(error.value)) < 400
    with pytest.raises(UserError):
        c.resolve("ppo", "", {"name": found["a9"]})
    with pytest.raises(UserError, match="unknown key 'a0'"):
        c.resolve("ppo", "", found)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(sorted(c.keys(c.run_type("sac")))), values)
def test_any_value_is_taken_or_refused_in_one_line(key: str, value: Any) -> None:
    said = ""
    try:
        config = c.resolve("sac", "", None, {key: value})
    except UserError as error:
        said = str(error)
    else:
        text = c.to_yaml(config, "sac", "x")
        assert c.resolve("sac", "", c.parse_yaml(text, "text")) == config
    assert len(said.splitlines()) <= 1
    assert len(said) < 400


@given(st.dictionaries(st.text(max_size=12), st.integers(), min_size=1, max_size=2))
def test_any_key_is_known_or_refused(layer: dict[str, int]) -> None:
    known = c.keys(c.run_type("ppo"))
    if all(key.replace("-", "_") in known for key in layer):
        return
    with pytest.raises(UserError, match=r"unknown key|expected"):
        c.resolve("ppo", "", layer)


@pytest.mark.parametrize(
    "words",
    [
        ["--batch-sise", "3"],
        ["--lr", "fast"],
        ["--lr"],
        ["--num-envs", "0"],
        ["--name", "../../up"],
        ["--track", "wandbb"],
        ["--file", "none.yaml"],
        ["--file", "bad.yaml"],
        ["--file", "typo.yaml"],
        ["--env.kwargs", "{x: !!python/name:os.system}"],
        ["--gamma", "2"],
    ],
)
def test_a_mistake_writes_nothing(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.yaml").write_text("lr: !!python/name:os.system")
    (tmp_path / "typo.yaml").write_text("actor: {widht: 3}")
    before = sorted(tmp_path.rglob("*"))
    assert main(["train", "ppo", "CartPole-v1", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("kumite: ")
    assert err.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before
