"""The page is whole, offline and safe against odd names."""

from __future__ import annotations

import gzip
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

import coterie as ct
from coterie.comparison.compare import Comparison, compare
from coterie.evidence.gains import GAINS, NO_SCORE
from coterie.report.page import BUNDLE, page, write_report
from coterie.report.parts import how_many, labels, with_code
from coterie.report.sections import SECTIONS

FAST = ct.LocalSGD(steps=5, lr=0.2, batch_size=None)
ODD = "</script><img src=x onerror=alert(1)>"


def federation(clients: int) -> ct.Federation:
    rng = np.random.default_rng(0)
    names = [ODD, *(f"c{i}" for i in range(1, clients))]
    data = {n: (x := rng.normal(size=(40, 3)), (x.sum(1) > 0).astype(int)) for n in names}
    return ct.Federation.from_arrays(data, clusters={n: i % 2 for i, n in enumerate(names)})


TASK = ct.Task.default(federation(2))


@pytest.fixture(scope="module")
def exact() -> Comparison:
    return compare(federation(4), seeds=1)


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    methods = {"fedavg": ct.FedAvg(FAST), "oracle": ct.Oracle(FAST)}
    return compare(federation(4), TASK, methods, rounds=2, seeds=2)


def without_scripts(html: str) -> str:
    """The page without its own scripts; data stay."""
    html = re.sub(r'(<script type="application/octet-stream" id="plotly">).*?(</script>)', r"\1\2", html, flags=re.S)
    return re.sub(r"<script>.*?</script>", "", html, flags=re.S)


class Balance(HTMLParser):
    """Checks that tags close in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in ("meta", "img", "br", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_one_small_file_that_needs_no_network(comparison: Comparison, tmp_path: Path) -> None:
    path = write_report(comparison, tmp_path / "deep" / "report.html")
    assert path.stat().st_size < 1_000_000
    rest = without_scripts(path.read_text("utf-8"))
    assert "src=" not in rest.replace("img src=x", "")
    assert "http" not in rest.replace("http-equiv=", "")
    assert rest.count("Content-Security-Policy") == 1
    assert rest.index("Content-Security-Policy") < rest.index("<style")  # it holds for what follows it
    Balance().feed(rest)


def test_plotly_is_the_published_one() -> None:
    """The script of plotly.js-cartesian-dist-min 4.1.1, as `tools/plotly_bundle.py` took it from npm."""
    script = gzip.decompress((files("coterie.report") / BUNDLE).read_bytes())
    assert hashlib.sha256(script).hexdigest() == "79542150855a52c567260e3137095dbe2b744e6d702a5cabe67da246942fba7a"
    assert (files("coterie.report") / "plotly" / "LICENSE").read_text("utf-8").startswith("MIT License")


def test_names_are_escaped(comparison: Comparison) -> None:
    assert ODD not in without_scripts(page(comparison))
    assert ODD not in without_scripts(page(comparison, comparison.coalition()))


def test_every_value_of_a_section_is_escaped(comparison: Comparison) -> None:
    """Names of methods, models, metrics and groups, wherever they stand."""
    index = comparison.table.index.map(lambda m: ODD if m == "oracle" else m)
    parts = {
        n: getattr(comparison, n).set_axis(index, axis=0)
        for n in ("table", "gains", "errors", "half_widths", "marks", "clusters", "intervals")
    }
    told = {n: getattr(comparison, n).replace({"oracle": ODD}) for n in ("curves", "settings")}
    results = {ODD if m == "oracle" else m: r for m, r in comparison.results.items()}
    judged = comparison.judgement
    assert judged is not None
    renamed = {ODD if m == "oracle" else m: g for m, g in judged.over_alone.items()}
    method = ODD if judged.method == "oracle" else judged.method
    judgement = replace(judged, over_alone=renamed, method=method)
    odd = replace(
        comparison,
        judgement=judgement,
        **parts,
        **told,
        results=results,
        about=comparison.about | {"model": ODD, "kind": ODD},
    )
    rest = without_scripts(page(odd))
    assert ODD not in rest
    assert "&lt;/script&gt;&lt;img src=x" in rest
    Balance().feed(rest)


def test_every_part_is_there(comparison: Comparison) -> None:
    html = page(comparison)
    for title in (
        "Verdict",
        "Who gains, who loses",
        "The data",
        "Training",
        "Bytes",
        "Settings",
        "How far to trust this",
    ):
        assert f"<h2>{title}</h2>" in html
    assert "Oracle(local=LocalSGD(steps=5" in html


def test_clear_gains_are_coloured_and_missing_scores_are_dashes(comparison: Comparison) -> None:
    marks, table, gains = comparison.marks.copy(), comparison.table.copy(), comparison.gains.copy()
    marks.loc["fedavg", "c1"], marks.loc["fedavg", "c2"] = GAINS, NO_SCORE
    table.loc["fedavg", "c2"], gains.loc["fedavg", "c2"] = np.nan, np.nan
    html = page(replace(comparison, marks=marks, table=table, gains=gains))
    assert '<td class="gains"' in html
    assert "No score for c2" in html


def test_exact_comparisons_have_no_curves_but_settings(exact: Comparison) -> None:
    html = page(exact)
    assert "<h2>Training</h2>" not in html
    assert "<h2>Settings</h2>" in html
    assert "a ridge model per client" in html
    assert "Would they stay" not in html
    assert ODD not in without_scripts(html)
    Balance().feed(without_scripts(html))


@pytest.mark.parametrize("clients", [2, 12, 60])
def test_few_clients_or_many(clients: int) -> None:
    result = compare(federation(clients), seeds=1)
    assert all(isinstance(section(result), str) for section in SECTIONS)


def test_regression_and_training_alone_only() -> None:
    rng = np.random.default_rng(0)
    fed = ct.Federation.from_arrays({c: (x := rng.normal(size=(30, 2)), x[:, 0]) for c in "ab"}, kind="regression")
    task = ct.Task(ct.models.linear(2, 1), "mse")
    html = page(compare(fed, task, [ct.Local(FAST)], rounds=1, seeds=1))
    assert "mean squared error" in html
    assert 'id="who"' not in html


def test_names_on_an_axis_stay_apart_when_cut() -> None:
    names = ["the_mean_of_a_long_measurement", "the_mean_of_b_long_measurement", "x" * 40, "x" * 41]
    assert len(set(labels(names).values())) == len(names)
    assert list(labels(["a", "b", "a"])) == ["a", "b"]


def test_signs_that_turn_text_around_are_spelt_out() -> None:
    rng = np.random.default_rng(0)
    names = ["\u202egnp.exe", "line\nbreak", "\x1b[31mred", "plain"]
    data = {n: (x := rng.normal(size=(20, 1)), (-1) ** i * x[:, 0]) for i, n in enumerate(names)}
    html = str(page(compare(ct.Federation.from_arrays(data, kind="regression"), seeds=1)))
    rest = re.sub("<script.*?</script>", "", html, flags=re.S)
    assert not {"\u202e", "\x1b"} & set(rest)
    assert r"\u202egnp.exe" in rest
    assert r"line\nbreak" in rest


def test_our_code_is_marked_and_names_are_not() -> None:
    assert with_code("`coterie run <x>` again") == "<code>coterie run &lt;x&gt;</code> again"


def test_a_cut_table_says_so() -> None:
    assert how_many(range(500), range(1228)) == "The first 500 of 1,228 clients"
    assert how_many(range(30), range(30)) == "Table of 30 clients"
