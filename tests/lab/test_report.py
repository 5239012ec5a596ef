"""The page: what it holds, that nothing in it can run but its own script, and how it behaves in a real browser."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kumite.cli import main
from kumite.lab import records, report
from tests.lab.folders import run, study

EVIL = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=2>\"'&"
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
ARGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)


def contents(root: Path, **how: Any) -> dict[str, Any]:
    return report.contents(records.grouped(records.load([root])), **how)


def data(page: str) -> dict[str, Any]:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(text)


# --- what it holds -------------------------------------------------------------------------------------------------


def test_tables_and_curves(tmp_path: Path) -> None:
    """ppo on CartPole: finals 100, 101, 102; the curve is a line through the origin, so its mean height from 500 to
    3000 is 7/12 of the final.
    """
    found = contents(study(tmp_path), goal={"CartPole-v1": 101.0}, title="T")
    assert found["labels"] == ["ppo", "sac"]
    assert found["envs"] == [{"name": "CartPole-v1", "suite": "classic"}, {"name": "Hopper-v5", "suite": "mujoco"}]
    first = found["rows"][0]
    assert (first["label"], first["env"], first["runs"], first["steps"]) == ("ppo", "CartPole-v1", 3, 3000)
    assert first["final"] == pytest.approx([101, 100, 102])
    assert first["area"][0] == pytest.approx(101 * 7 / 12)
    assert first["reach"] == {"goal": 101, "reached": 2, "runs": 3, "steps": 3000, "seconds": 30}
    assert found["rows"][2]["env"] == "Hopper-v5" and found["rows"][2]["reach"] is None
    assert {(x["label"], x["env"]) for x in found["lines"]["eval"]["steps"]} == {
        (a, e) for a in ("ppo", "sac") for e in ("CartPole-v1", "Hopper-v5")
    }
    assert found["lines"]["eval"]["time"][0]["x"] == [5, 10, 15, 20, 25, 30]
    assert found["lines"]["eval"]["updates"][0]["x"] == [50, 100, 150, 200, 250, 300]
    assert [a["suite"] for a in found["aggregates"]] == ["", "classic", "mujoco"]
    assert len(found["runs"]) == 12
    assert found["about"] == "12 runs of 2 algorithms in 2 environments, 2026-11-18"


def test_what_a_run_did_differently(tmp_path: Path) -> None:
    """Against its neighbours, and against what the algorithm runs with here by itself."""
    run(tmp_path, seed=0, lr=1e-3, gamma=0.9)
    run(tmp_path, seed=1, lr=1e-4, gamma=0.9)
    one, other = contents(tmp_path)["runs"]
    assert one["against"] == [["lr", "0.001", "0.0001"]]
    assert other["against"] == [["lr", "0.0001", "0.001"]]
    assert ["gamma", "0.9", "0.98"] in one["defaults"]  # the preset of CartPole
    assert not {key for key, *_ in one["defaults"]} & records.IDENTITY
    assert one["command"] == "kumite train ppo CartPole-v1"
    assert ["packages.torch", "2.13.0"] in one["facts"]
    assert (one["steps"], one["planned"], one["started"]) == (3000, 3000, "2026-11-18 22:16")


def test_an_algorithm_that_is_no_more_has_no_defaults(tmp_path: Path) -> None:
    run(tmp_path, algo="long_forgotten")
    assert contents(tmp_path)["runs"][0]["defaults"] == []


def test_runs_without_evaluations_and_metrics_alone(tmp_path: Path) -> None:
    """Nobody has evaluations: the tables are about training."""
    run(tmp_path, evals=[], episodes=[(100, 1.0), (200, 3.0)])
    with pytest.warns(records.LabWarning, match="no run has 'eval': tables are about 'train'"):
        found = contents(tmp_path)
    assert found["ys"] == ["train"]
    assert found["rows"][0]["final"][0] == 2  # the mean of all episodes so far
    assert found["runs"][0]["final"] == 2


def test_long_curves_are_thinned(tmp_path: Path) -> None:
    run(tmp_path, episodes=[(i, float(i)) for i in range(1, 5001)])
    (line,) = contents(tmp_path)["lines"]["train"]["steps"]
    assert len(line["x"]) == report.POINTS
    assert (line["x"][0], line["x"][-1]) == (1, 5000)


def test_numbers_that_are_none_are_null(tmp_path: Path) -> None:
    """One run has no interval, and a browser's JSON knows no nan."""
    run(tmp_path)
    page = report.page(contents(tmp_path, title="One"))
    assert data(page)["rows"][0]["final"] == [30, None, None]
    assert "NaN" not in re.sub(r"<script>.*", "", page, flags=re.DOTALL)


# --- nothing gets in or out ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every text that a stranger could choose tries to break out."""
    root = tmp_path_factory.mktemp("hostile")
    folder = run(root, env="x-v0", algo="ppo", name="a", note=EVIL)
    config = (folder / "config.yaml").read_text().replace("env_id: x-v0", f"env_id: {json.dumps(EVIL)}")
    (folder / "config.yaml").write_text(config.replace("algo: ppo", f"algo: {json.dumps(EVIL)}"))
    facts = {"command": ["kumite", EVIL], "machine": {"processor": EVIL}, "started": EVIL, EVIL: EVIL}
    (folder / "manifest.json").write_text(json.dumps(facts))
    (folder / "videos").mkdir()
    (folder / "videos" / "<b>&'x.gif").write_bytes(base64.b64decode("R0lGODlhAQABAAAAACwAAAAAAQABAAACAkQBADs="))
    run(root, env="x-v0", algo="sac", note="plain")
    return root


def test_no_text_is_markup(hostile: Path) -> None:
    page = report.page(contents(hostile, title=EVIL))
    assert EVIL not in page and "<img" not in page and "onerror=window.hacked=2>" not in page
    assert page.count("<script") == 2 and page.count("</script>") == 2
    found = data(page)
    assert EVIL in found["labels"] and found["title"] == EVIL
    assert found["runs"][0]["command"].startswith("kumite ")
    assert f"<title>{html.escape(EVIL)}</title>" in page


def test_the_page_needs_nothing_from_outside(tmp_path: Path) -> None:
    """No address in it but the name of SVG; its policy allows its own script and style, by their hashes."""
    page = report.page(contents(study(tmp_path), title="%DATA% %POLICY%"))
    assert set(re.findall(r"https?://[^\"' ]+", page)) == {"http://www.w3.org/2000/svg"}
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    for tag in ("script", "style"):
        (code,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none';")
    assert len(page) < 120_000
    assert data(page)["title"] == "%DATA% %POLICY%"


def test_the_same_runs_give_the_same_page(tmp_path: Path) -> None:
    study(tmp_path / "runs")
    pages = [tmp_path / "a.html", tmp_path / "b.html"]
    for page in pages:
        assert main(["report", str(tmp_path / "runs"), "--out", str(page)]) == 0
    assert pages[0].read_bytes() == pages[1].read_bytes()


def test_names_that_are_no_unicode(tmp_path: Path) -> None:
    run(tmp_path, name="a\udcff")
    page = tmp_path / "page.html"
    assert main(["report", str(tmp_path), "--out", str(page)]) == 0
    assert "a?" in page.read_text(encoding="utf-8")


# --- videos --------------------------------------------------------------------------------------------------------


def test_small_videos_are_inside_and_large_ones_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report._Videos, "EACH", 100)
    monkeypatch.setattr(report._Videos, "ALL", 150)
    folder = run(tmp_path / "runs")
    (folder / "videos").mkdir()
    for name, size in (("a.mp4", 90), ("b.mp4", 101), ("c d.webm", 61), ("notes.txt", 5)):
        (folder / "videos" / name).write_bytes(b"x" * size)
    out = tmp_path / "pages" / "report.html"
    beside = "../runs/CartPole-v1/ppo/study-s0/videos/"

    def sources(how: str) -> list[str]:
        (only,) = contents(tmp_path / "runs", out=out, videos=how)["runs"]
        return [v["src"][:60] for v in only["videos"]]

    inside = "data:video/mp4;base64," + base64.b64encode(b"x" * 90).decode()
    assert sources("auto") == [inside[:60], f"{beside}b.mp4", f"{beside}c%20d.webm"]
    assert sources("link") == [f"{beside}a.mp4", f"{beside}b.mp4", f"{beside}c%20d.webm"]
    assert all(src.startswith("data:video/") for src in sources("embed"))
    assert sources("none") == []


# --- bad input -----------------------------------------------------------------------------------------------------


def test_what_cannot_be_reported_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    run(tmp_path / "bare", evals=[])
    run(tmp_path / "runs")
    for words, said in (
        ([tmp_path / "empty"], "there are no runs in"),
        ([tmp_path / "bare"], "has no evaluations yet"),
        ([tmp_path / "runs", "--out", "page.pdf"], "a page ends in .html"),
        ([tmp_path / "runs", "--out", "/proc/none/a.html"], "cannot write"),
        ([tmp_path / "runs", "--goals", "Hopper-v5=3"], "--goals: no run is of 'Hopper-v5'"),
        ([tmp_path / "runs", "--algos", "td3"], "there is no 'td3'"),
        ([tmp_path / "runs", "--videos", "some"], "--videos"),
    ):
        assert main(["report", *map(str, words)]) == 2
        out, err = capsys.readouterr()
        assert not out and said in err and err.count("\n") == 1, err


# --- in a browser --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Chromium without a window, without a network, with an empty profile."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: kumite[dev] brings it")
    if BROWSER is None:
        pytest.skip("no chromium: apt-get install chromium")
    with sync_api.sync_playwright() as driver:
        profile = str(tmp_path_factory.mktemp("profile"))
        window = driver.chromium.launch_persistent_context(
            profile, executable_path=BROWSER, args=ARGS, offline=True, viewport={"width": 1200, "height": 900}
        )
        yield window
        window.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with run folders, a video, and their page, made by the command."""
    root = tmp_path_factory.mktemp("pages")
    study(root / "runs", envs=["CartPole-v1", "Hopper-v5", "dmc:walker-walk"])
    (clip := root / "runs" / "CartPole-v1" / "ppo" / "study-s0" / "videos").mkdir()
    film(clip / "eval.mp4")
    run(root / "runs", algo="sac", seed=3, lr=5e-4, evals=[(500, 1.0), (1000, 2.0)])
    words = ["report", str(root / "runs"), "--out", str(root / "report.html"), "--title", "A study"]
    assert main([*words, "--goals", "CartPole-v1=111"]) == 0
    assert main([*words[:-4], "--out", str(root / "linked.html"), "--videos", "link"]) == 0
    return root


def film(path: Path) -> None:
    """Eight frames, as kumite's own videos are made."""
    writer = pytest.importorskip("imageio_ffmpeg").write_frames(str(path), (64, 64), fps=8)
    writer.send(None)
    for i in range(8):
        writer.send(bytes([i * 30] * 64 * 64 * 3))
    writer.close()


class Opened:
    """A page, everything it complained about, and every address it asked for."""

    def __init__(self, browser: Any, path: Path) -> None:
        self.page = browser.new_page()
        self.errors: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda m: self.errors.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda e: self.errors.append(str(e)))
        self.page.on("request", lambda r: self.asked.append(r.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-ready=yes]", state="attached", timeout=20_000)

    def column(self, table: str, name: str) -> list[str]:
        """The cells under a header."""
        heads = [t.split(" ")[0] for t in self.page.locator(f"#{table} th").all_inner_texts()]
        at = heads.index(name) + 1
        return self.page.locator(f"#{table} tbody tr td:nth-child({at})").all_inner_texts()

    def chip(self, value: str) -> Any:
        return self.page.locator(f"#filters button[data-value='{value}']")

    def lines(self) -> list[str]:
        return [x.get_attribute("data-label") for x in self.page.locator("#curves path.line").all()]


@pytest.fixture
def opened(browser: Any, pages: Path) -> Iterator[Opened]:
    page = Opened(browser, pages / "report.html")
    yield page
    page.page.close()
    assert page.errors == []
    assert not [url for url in page.asked if not url.startswith(("file:", "data:"))]


def test_curves_are_drawn(opened: Opened) -> None:
    page = opened.page
    assert page.title() == "A study" == page.inner_text("h1")
    assert page.locator("#curves .panel > button").all_inner_texts() == ["CartPole-v1", "dmc:walker-walk", "Hopper-v5"]
    assert opened.lines() == ["ppo", "sac"] * 3
    for line in page.locator("#curves path.line").all():
        box = line.bounding_box()
        assert box["width"] > 20 and box["height"] > 20
    colours = page.eval_on_selector_all(
        "#curves .panel:first-child path.line", "l => l.map(x => getComputedStyle(x).stroke)"
    )
    assert len(set(colours)) == 2 and "none" not in colours
    assert page.locator("#curves path.band").count() >= 5
    assert page.locator("#curves line.goal").count() == 1
    assert page.locator("#curves .panel:first-child path.thin").count() == 3, "sac's longer runs go on alone"


def test_filters(opened: Opened) -> None:
    page = opened.page
    assert len(opened.column("results", "environment")) == 6
    opened.chip("sac").click()
    assert opened.chip("sac").get_attribute("aria-pressed") == "true"
    assert set(opened.column("results", "algorithm")) == set(opened.lines()) == {"sac"}
    assert len(opened.lines()) == 3
    opened.chip("Hopper-v5").click()
    assert opened.column("results", "environment") == ["Hopper-v5"]
    assert opened.column("runs", "environment") == ["Hopper-v5"] * 3
    page.click("#clear")
    assert len(opened.column("results", "environment")) == 6 and len(opened.lines()) == 6
    opened.chip("dmc").click()
    assert set(opened.column("results", "environment")) == {"dmc:walker-walk"}
    assert "return / 1000" in page.inner_text("#statistics")
    assert page.locator("#filters [data-facet=environment]").count() == 1
    opened.chip("dmc").click()
    assert len(opened.lines()) == 6


def test_tables_sort(opened: Opened) -> None:
    page = opened.page
    header = page.locator("#results th button", has_text="final")

    def finals() -> list[float]:
        return [float(cell.split(" ")[0].replace(",", "")) for cell in opened.column("results", "final")]

    before = finals()
    header.click()
    assert finals() == sorted(before, reverse=True)
    assert page.locator("#results th[aria-sort=descending]").inner_text().startswith("final")
    header = page.locator("#results th button", has_text="final")
    header.click()
    assert finals() == sorted(before) != sorted(before, reverse=True)
    page.locator("#runs th button", has_text="seed").click()
    seeds = opened.column("runs", "seed")
    assert seeds == sorted(seeds)
    page.locator("#aggregates th button", has_text="IQM").click()
    assert opened.column("aggregates", "algorithm") == ["sac", "ppo"]


def test_other_axes_and_every_run(opened: Opened) -> None:
    page = opened.page
    page.select_option("select[data-choice=x]", "time")
    assert "wall clock [s]" in page.locator("#curves svg").first.inner_html()
    assert len(opened.lines()) == 6
    page.select_option("select[data-choice=x]", "updates")
    assert "gradient updates" in page.locator("#curves svg").first.inner_html()
    page.click("button[data-toggle=runs]")
    assert page.locator("#curves path.thin").count() == 3 * 2 * 3 + 1
    page.click("button[data-toggle=bands]")
    assert page.locator("#curves path.band").count() == 0


def test_pointing_at_a_curve_tells_its_numbers(opened: Opened) -> None:
    svg = opened.page.locator("#curves .panel", has_text="Hopper-v5").locator("svg")
    box = svg.bounding_box()
    svg.hover(position={"x": box["width"] * 0.95, "y": box["height"] / 2})
    tip = opened.page.locator("#curves .tip:visible").inner_text()
    assert "environment steps 3,000" in tip
    assert "sac: 211 [210, 212]" in tip and "ppo: 201 [200, 202]" in tip


def test_a_panel_grows(opened: Opened) -> None:
    panel = opened.page.locator("#curves .panel[data-name='Hopper-v5']")
    small = panel.bounding_box()["width"]
    panel.locator("> button").click()
    panel = opened.page.locator("#curves .panel.wide[data-name='Hopper-v5']")
    assert panel.bounding_box()["width"] > 1.9 * small


def test_a_run_in_full(opened: Opened) -> None:
    """Its settings against the others', its command, its machine, and its video, which plays."""
    page = opened.page
    page.locator("#runs button", has_text="study").last.click()
    assert page.locator("details[open]").count() == 1
    odd = page.locator("details", has_text="sac on CartPole-v1, seed 3")
    odd.locator("summary").click()
    odd.locator("table").first.wait_for()
    text = odd.inner_text()
    assert "lr" in text and "0.0005" in text and "A <b>CPU</b>" in text and "kumite train sac CartPole-v1" in text
    first = page.locator("details").first
    first.locator("summary").click()
    assert plays(page)
    assert page.evaluate("document.querySelector('video').videoWidth") == 64


def plays(page: Any) -> bool:
    """The first video gets as far as knowing its size. Playwright's own waiting needs eval, which the page forbids."""
    page.wait_for_selector("video")
    for _ in range(100):
        ready, error = page.evaluate("(v => [v.readyState, v.error])(document.querySelector('video'))")
        if ready or error:
            return bool(ready)
        page.wait_for_timeout(100)
    return False


def test_linked_videos_play(browser: Any, pages: Path) -> None:
    page = Opened(browser, pages / "linked.html")
    page.page.locator("details summary").first.click()
    assert plays(page.page)
    assert page.page.evaluate("document.querySelector('video').src").startswith("file:")
    page.page.close()
    assert page.errors == []


def test_nothing_of_a_stranger_runs(browser: Any, hostile: Path, tmp_path: Path) -> None:
    page = Opened(browser, report.write(contents(hostile, title=EVIL, out=tmp_path / "a.html"), tmp_path / "a.html"))
    for summary in page.page.locator("summary").all():
        summary.click()
    page.page.wait_for_selector("details[open] .clip")
    page.page.locator("#filters button.chip").first.click()
    assert page.page.evaluate("window.hacked") is None
    assert page.page.inner_text("h1") == EVIL
    assert page.page.locator("img").count() == 1, "the one animation that there is"
    assert page.page.title() == EVIL
    page.page.close()
    assert page.errors == []


def test_light_and_dark(opened: Opened) -> None:
    """Text and lines stand out from the paper in both."""
    page = opened.page
    seen = set()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        paper, ink, *lines = page.evaluate(
            """() => [getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color,
            ...[...document.querySelectorAll('#curves path.line')].map(x => getComputedStyle(x).stroke)]"""
        )
        seen.add(paper)
        assert contrast(paper, ink) > 7
        assert min(contrast(paper, line) for line in lines) > 2.5
    assert len(seen) == 2


def contrast(a: str, b: str) -> float:
    """WCAG's ratio of two colours rgb(r, g, b)."""

    def light(text: str) -> float:
        parts = [int(x) / 255 for x in re.findall(r"\d+", text)[:3]]
        r, g, b = (x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    high, low = sorted((light(a), light(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_on_a_narrow_screen_nothing_sticks_out(opened: Opened) -> None:
    opened.page.set_viewport_size({"width": 400, "height": 700})
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 400
    opened.page.set_viewport_size({"width": 1200, "height": 900})
