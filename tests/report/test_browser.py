"""The page in a real browser: no errors, charts drawn, theme, search and downloads work, hostile names stay text."""

from __future__ import annotations

import csv
import http.server
import io
import re
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest

import coterie as ct
from coterie.comparison.compare import Comparison, compare
from coterie.report.page import write_report

HOSTILE = (
    "</script><img src=x onerror=alert(1)>",
    "<b>bold</b><a href='javascript:alert(2)'>go</a>",
    "%{x} ${1} &lt;i&gt; '\"`",
    '=HYPERLINK("http://evil","x")',
    "long" * 80,
)
BACK = "getComputedStyle(document.body).backgroundColor"


def federation(clients: int) -> ct.Federation:
    """Two kinds of clients with opposite slopes."""
    rng = np.random.default_rng(0)
    names = [*HOSTILE, *(f"gauge {i}" for i in range(len(HOSTILE), clients))][:clients]
    data = {}
    for i, name in enumerate(names):
        x = rng.normal(size=(16, 2))
        data[name] = (x, 3 * (-1) ** i * x[:, 0] + rng.normal(size=16))
    return ct.Federation.from_arrays(data, kind="regression")


@pytest.fixture(scope="module")
def few() -> Comparison:
    return compare(federation(30), seeds=1)


@pytest.fixture(scope="module")
def path(few: Comparison, tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(1)
    at = pd.DataFrame(rng.normal(size=(30, 2)), index=few.table.columns, columns=["lon", "lat"])
    return write_report(few, tmp_path_factory.mktemp("page") / "report.html", positions=at)


def many(few: Comparison, clients: int) -> Comparison:
    """The same numbers for more clients, without the decision's models."""
    times = -(-clients // 30)
    names = [f"client number {i}" for i in range(clients)]
    parts: dict[str, Any] = {
        n: pd.concat([getattr(few, n)] * times, axis=1).iloc[:, :clients].set_axis(names, axis=1)
        for n in ("table", "gains", "errors", "half_widths", "marks", "clusters")
    }
    overview = pd.concat([few.overview] * times).iloc[:clients].set_axis(names, axis=0)
    decision = replace(few.decision, predictors={})  # type: ignore[type-var]
    return replace(
        few, **parts, overview=overview, decision=decision, regrouped={}, about=few.about | {"clients": clients}
    )


@pytest.mark.parametrize(("width", "dark"), [(1400, False), (390, True)])
def test_the_page_loads_without_errors_and_draws_every_chart(browser: Any, path: Path, width: int, dark: bool) -> None:
    browser.open(path, width, dark=dark)
    assert browser.errors == []
    assert [r for r in browser.requests if not r.startswith(("file:", "data:", "blob:"))] == []
    charts = browser.run("document.querySelectorAll('.drawing').length")
    assert charts == browser.run("document.querySelectorAll('.drawing .cartesianlayer > .xy').length") >= 5
    assert browser.run(
        "[...document.querySelectorAll('.drawing')].every((p) => p.getAttribute('aria-label').length > 20)"
    )
    assert browser.run("document.documentElement.scrollWidth") == width  # nothing sticks out
    assert browser.run("document.querySelectorAll('.bar nav a').length") >= 5
    lit = [int(v) for v in browser.run(BACK).removeprefix("rgb(").removesuffix(")").split(",")]
    assert (max(lit) < 60) == dark


def test_colours_follow_the_system_until_somebody_chooses(browser: Any, path: Path) -> None:
    browser.open(path)
    ink = "document.querySelector('.drawing .xtick text').style.fill"
    light = browser.run(f"[{BACK}, {ink}]")
    browser.scheme(dark=True)
    browser.until(f"{ink} !== {light[1]!r}")
    dark = browser.run(f"[{BACK}, {ink}]")
    assert light[0] != dark[0]
    browser.run("document.getElementById('theme').click()")
    browser.until(f"{ink} === {light[1]!r}")
    assert browser.run(BACK) == light[0]
    browser.run("document.getElementById('theme').click()")
    browser.until(f"{ink} === {dark[1]!r}")
    browser.run("localStorage.clear()")
    assert browser.errors == []


def test_paper_is_white_and_charts_fit_it(browser: Any, path: Path) -> None:
    browser.open(path, dark=True)
    width = "document.querySelector('#who .main-svg').getBoundingClientRect().width"
    look = f"seen.push([{BACK}, {width}])"
    browser.run(
        f"self.seen = []; for (const when of ['beforeprint', 'afterprint']) addEventListener(when, () => {look})"
    )
    before = browser.run(f"[{BACK}, {width}]")
    assert len(browser.send("Page.printToPDF")["data"]) > 10_000
    on_paper, after = browser.run("seen")
    assert on_paper[1] == 640 < before[1]
    assert on_paper[0] != before[0]
    assert after[0] == before[0]
    assert browser.errors == []


def test_the_search_filters_dots_and_table(browser: Any, path: Path) -> None:
    browser.open(path)
    dots = "document.querySelectorAll('#who .points path').length"
    rows = "document.querySelectorAll('[data-find=who-find] tbody tr').length"
    assert browser.run(f"[{dots}, {rows}]") == [30, 31]  # one row is the mean
    browser.type("who-find", "gauge 1")
    browser.until(f"{dots} === 10")
    assert browser.run(rows) == 11
    assert browser.run("document.getElementById('who-count').textContent") == "10 of 30 clients"
    before = browser.run("document.querySelector('#who .points path').getAttribute('transform')")
    browser.run("(() => { const s = document.getElementById('who-method'); s.value = s.options[0].value;"
                " s.dispatchEvent(new Event('change')); })()")  # fmt: skip
    browser.until(f"document.querySelector('#who .points path').getAttribute('transform') !== {before!r}")
    browser.type("who-find", "")
    browser.until(f"{dots} === 30")
    assert browser.errors == []


def test_hostile_names_stay_text(browser: Any, path: Path) -> None:
    browser.open(path)
    assert browser.run("document.querySelectorAll('img').length + document.querySelectorAll('.drawing a').length") == 0
    shown = browser.run("[...document.querySelectorAll('#who .ytick text')].map((t) => t.textContent)")
    for name in HOSTILE:
        assert any(name[:20] in text for text in shown), (name, shown)
    cells = browser.run("[...document.querySelectorAll('[data-find=who-find] tbody th')].map((t) => t.textContent)")
    browser.type("who-find", "gauge")
    browser.type("who-find", "")
    again = browser.run("[...document.querySelectorAll('[data-find=who-find] tbody th')].map((t) => t.textContent)")
    assert set(HOSTILE) <= set(cells)
    assert again == cells
    assert browser.errors == []


PLANTED = {
    "inline": "<script>EVIL</script>",
    "handler": '<img src=x onerror="EVIL">',
    "source": '<script src="data:text/javascript,EVIL"></script>',
    "link": '<a id=link href="javascript:void(EVIL)">x</a>',
    "frame": '<iframe srcdoc="<script>parent.EVIL</script>"></iframe>',
}


class Asked(http.server.BaseHTTPRequestHandler):
    """A server that only notes what it is asked for."""

    seen: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.seen.append(self.path)
        self.send_error(404)

    def log_message(self, *_: Any) -> None:
        pass


def test_a_smuggled_script_does_not_run_and_asks_nobody(browser: Any, path: Path, tmp_path: Path) -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Asked)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    evil = "".join(f"{what.replace('EVIL', f'self.{name}=1')}" for name, what in PLANTED.items())
    evil = evil.replace("parent.self.", "parent.") + f"<img src='http://127.0.0.1:{server.server_port}/asked.png'>"
    text = path.read_text("utf-8")
    assert text.count("<footer>") == 1
    text = text.replace("<footer>", f"{evil}<footer>")
    ran = f"{list(PLANTED)}.filter((name) => self[name] === 1)"
    try:
        for page, policy in ((text, True), (re.sub("<meta http-equiv[^>]*>", "", text), False)):
            Asked.seen.clear()
            (tmp_path / "planted.html").write_text(page, "utf-8")
            browser.open(tmp_path / "planted.html")
            browser.run("document.getElementById('link').click()")
            browser.run("new Promise((done) => setTimeout(done, 300))")
            assert browser.run(ran) == ([] if policy else list(PLANTED))
            assert Asked.seen == ([] if policy else ["/asked.png"])
            assert browser.run("document.querySelectorAll('.drawing .cartesianlayer > .xy').length") >= 5  # ours do run
    finally:
        server.shutdown()
        server.server_close()


def test_every_chart_has_its_data_as_csv(browser: Any, path: Path, few: Comparison) -> None:
    browser.open(path)
    ids = browser.run("[...document.querySelectorAll('button.csv')].map((b) => b.dataset.for)")
    assert sorted(ids) == sorted(browser.run("[...document.querySelectorAll('.drawing')].map((p) => p.id)"))
    tables = {i: list(csv.reader(io.StringIO(browser.run(f"coterie.csv({i!r})"), newline=""))) for i in ids}
    assert all(len(t) > 1 and len({len(line) for line in t}) == 1 for t in tables.values())
    head, *lines = tables["who"]
    assert head[:4] == ["method", "client", "score", "gain"]
    assert len(lines) == few.gains.size
    gains = {(line[0], line[1]): line[3] for line in lines}
    client = "gauge 7"
    assert float(gains["groups", client]) == pytest.approx(float(few.gains.loc["groups", client]), rel=1e-5)
    assert ("groups", "'" + HOSTILE[3]) in gains  # no formula for a spreadsheet


@pytest.mark.parametrize("clients", [4, 1000])
def test_few_clients_or_a_thousand(browser: Any, few: Comparison, tmp_path: Path, clients: int) -> None:
    page = write_report(many(few, clients), tmp_path / "report.html")
    assert page.stat().st_size < 2_000_000
    browser.open(page, 390)
    dots = "document.querySelectorAll('#who .points path').length"
    assert browser.run(dots) == clients
    browser.type("who-find", "number 3")
    matching = sum(f"number {i}".startswith("number 3") for i in range(clients))
    browser.until(f"document.getElementById('who-count').textContent.startsWith('{matching} of')")
    if matching <= 40:
        assert browser.run(dots) == matching
    browser.type("who-find", "number 3")
    assert browser.run("document.documentElement.scrollWidth") == 390
    assert browser.errors == []
