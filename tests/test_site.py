"""What the site is made of: names with docstrings, keys of configurations, experiments. `make docs` builds the whole."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

from coterie.algorithms import ALGORITHMS
from coterie.cli.build import REGISTRIES
from reproductions.names import EXPERIMENTS
from reproductions.registry import experiment

ROOT = Path(__file__).parents[1]


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch):
    """A module of tools/site by its name."""
    monkeypatch.syspath_prepend(str(ROOT / "tools" / "site"))
    return importlib.import_module


def test_every_public_name_has_a_docstring_of_its_own(tool) -> None:
    found = [one for names in tool("names").public().values() for one in names]
    assert len(found) == len({one.shown for one in found}) > 300
    things = [(one.shown, one.thing) for one in found]
    for name, thing in things:
        if isinstance(thing, type | ModuleType) or inspect.isfunction(thing):
            text = vars(thing).get("__doc__") if isinstance(thing, type) else thing.__doc__
            assert text, f"{name} has no docstring"
            assert not text.startswith(f"{name.rpartition('.')[2]}("), f"{name} has only the docstring of a dataclass"


def test_the_page_of_configurations_shows_every_registered_name_and_every_key(tool) -> None:
    page = tool("configuration").filled((ROOT / "docs" / "configuration.md").read_text("utf-8"))
    assert "<!-- keys" not in page
    for registry in REGISTRIES.values():
        assert not [name for name in registry if f"### `{name}`" not in page]
    ifca = page[page.index("### `ifca`") : page.index("### `oneshot`")]
    assert all(re.search(rf"^{key} = ", ifca, flags=re.M) for key in inspect.signature(ALGORITHMS["ifca"]).parameters)


def test_lists_of_experiments_come_from_the_registry(tool) -> None:
    experiments = tool("experiments")
    pages = [p.read_text("utf-8") for p in (ROOT / "docs" / "papers").glob("*.md") if p.name != "index.md"]
    shown = "".join(experiments.filled(page) for page in pages)
    assert "<!-- experiments" not in shown
    printed = [name for name in EXPERIMENTS if not experiment(name).work.startswith("Beyond the papers")]
    assert not [name for name in printed if f"`coterie reproduce {name}`" not in shown], "an experiment has no paper"


def test_the_page_of_reproductions_has_every_figure_drawn_from_its_numbers(tool) -> None:
    experiments = tool("experiments")
    page = (ROOT / "docs" / "reproduction.md").read_text("utf-8")
    shown = experiments.filled(page)
    assert "<!-- figure" not in shown
    assert not [name for name in EXPERIMENTS if f"]({experiments.picture(name)})" not in shown]
    drawn = experiments.drawn(["<!-- figure: elections --> and <!-- figure: market -->"])
    assert sorted(drawn) == [experiments.picture("elections"), experiments.picture("market")]
    assert all("</svg>" in text for text in drawn.values())


def test_a_name_that_no_title_holds_is_missed(tool) -> None:
    index = {"config": {"separator": r"[\s]+|\.(?!\d)"}, "docs": [{"title": "ct.<code>IFCA</code>"}, {"title": "fit"}]}
    assert tool("check_search").missing(index, ["ct.IFCA", "ct.fit", "ct.exchange.Ask"]) == [
        "ct.fit",
        "ct.exchange.Ask",
    ]


def test_lists_and_tables_get_their_blank_line_and_code_does_not(tool) -> None:
    spaced = tool("markdown_text").spaced
    assert spaced("Why:\n- a\n  more\n- b") == "Why:\n\n- a\n  more\n- b"
    assert spaced("Table:\n| a |\n|---|") == "Table:\n\n| a |\n|---|"
    code = "```\ntext\n- no list\n```"
    assert spaced(code) == code
    assert (
        tool("markdown_text").linked("see https://a.b/c, and <https://d.e>") == "see <https://a.b/c>, and <https://d.e>"
    )
