"""The Python code of the pages runs as printed, page by page, in an empty folder."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import coterie as ct

ROOT = Path(__file__).parents[1]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"])
GIVEN = {  # what a page takes for granted
    "data.md": """
import numpy as np, coterie as ct
df = ct.datasets.heart_frame()
df.to_parquet("patients.parquet")
x, y = np.random.default_rng(0).normal(size=(2000, 3)), np.arange(2000) % 5
""",
    "datasets.md": """
import numpy as np, coterie as ct
x, y = np.random.default_rng(0).normal(size=(2000, 3)), np.arange(2000) % 5
""",
    "tutorial.md": f"""
import runpy
runpy.run_path({str(ROOT / "examples" / "tutorial_table.py")!r})["main"]("rain.csv")
""",
    "incentives.md": "import numpy as np, scipy.stats",
}

SLOW = {"incentives.md"}  # a market's equilibrium takes some seconds


def blocks(page: Path) -> list[tuple[int, str]]:
    """Code and the line it starts in."""
    text = page.read_text(encoding="utf-8")
    return [(text[: m.start(1)].count("\n"), m[1]) for m in re.finditer(r"```python\n(.*?)```", text, flags=re.S)]


def run(page: Path) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": page.stem}
    exec(GIVEN.get(page.name, ""), names)
    for line, code in blocks(page):
        exec(compile("\n" * line + code, str(page), "exec", dont_inherit=True), names)
    return names


@pytest.mark.parametrize(
    "page",
    [pytest.param(p, id=p.name, marks=[pytest.mark.slow] if p.name in SLOW else []) for p in PAGES],
)
def test_code_runs_as_printed(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(page)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_to_files_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_tests_that_a_page_names_exist(page: Path) -> None:
    for file, name in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page.read_text(encoding="utf-8")):
        assert not name or f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), (file, name)


def test_the_tutorial_shows_what_its_commands_print() -> None:
    subprocess.run([sys.executable, ROOT / "tools" / "tutorial.py", "--check"], check=True)


def test_the_algorithm_of_the_how_to_conforms(fed: ct.Federation, task: ct.Task, tmp_path: Path) -> None:
    mixed = run(ROOT / "docs" / "algorithm.md")["Mixed"]()
    fast, plain = (ct.fit(mixed, fed, task, rounds=3, cohort=5, engine=e).evaluate() for e in ("local", "loop"))
    assert fast["log_loss"].to_numpy() == pytest.approx(plain["log_loss"].to_numpy(), rel=1e-4)
    ct.fit(mixed, fed, task, rounds=1, cohort=5, out=tmp_path)
    assert ct.fit(mixed, fed, task, rounds=3, cohort=5, out=tmp_path, resume=True).evaluate().equals(fast)
    assert len(ct.fit(mixed, fed, task, rounds=2, channels=[ct.exchange.Dropout(1.0)]).evaluate()) == len(fed)


def test_the_architecture_page_names_every_file() -> None:
    """A new module gets its line."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    source = ROOT / "src" / "coterie"
    found = [
        p.name + ("/" if p.is_dir() else "")
        for p in source.iterdir()
        if p.suffix == ".py" or (p / "__init__.py").exists()
    ]
    missing = [name for name in found if name not in page and not name.startswith("__")]
    assert not missing, missing


def test_the_picture_of_the_rooms_is_drawn_from_the_import_rules() -> None:
    rooms = runpy.run_path(str(ROOT / "tools" / "rooms.py"))
    assert rooms["PICTURE"].read_text("utf-8") == rooms["drawn"](), "run `python tools/rooms.py`"
    layers, _ = rooms["contracts"]()
    assert not {name for layer in layers for name in layer if (ROOT / "src/coterie" / name).is_dir()} - set(
        rooms["SAYS"]
    )


def test_every_training_loop_makes_its_rounds_in_one_place() -> None:
    """docs/architecture.md says so: `Run.one_round` alone starts an algorithm's generator, whoever counts the rounds."""
    sources = {p: p.read_text("utf-8") for p in (ROOT / "src" / "coterie").rglob("*.py")}
    starts = [p.name for p, text in sources.items() for _ in re.findall(r"(?<!def )\bconversation\(", text)]
    assert sorted(starts) == ["live_run.py", "trial_site.py"]  # the second: rounds of a site that ask nobody
