"""Groups are a claim only where clients that differ gradually would not show the like."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

import coterie as ct
from coterie.comparison.exact import continuum as module
from coterie.comparison.exact.continuum import continuum
from coterie.comparison.exact.decision import Decision, decide_table, from_evaluation
from coterie.comparison.likeness import stability
from coterie.data.coded_table import make_table
from coterie.report.page import page
from reproductions.study.worlds import World, make


def gradual(truth: str, kind: str, seed: int, m: int = 30) -> Decision:
    table = make(World(truth, m, kind, tau=0.8), seed)[0]
    return decide_table(table, repeats=1, folds=5, seed=seed)


@pytest.mark.parametrize("kind", ["regression", pytest.param("classification", marks=pytest.mark.slow)])
def test_a_continuum_is_not_called_groups(kind: str) -> None:
    """Clients along a line, normally or evenly: steady groups are found, and at most 5 % (and four standard errors more) of
    16 worlds advise them. Half of the worlds show the high stability that used to count as evidence."""
    found = [gradual(truth, kind, seed) for seed in range(8) for truth in ("line", "even")]
    assert sum(f.recommendation == "groups" for f in found) <= 0.05 * 16 + 4 * np.sqrt(16 * 0.05 * 0.95)
    assert sum(f.continuum is not None and f.continuum.exceeded for f in found) <= 4
    steady = [stability(f.groups, pd.DataFrame(f.evaluation.groupings, columns=f.groups.index)).mean() for f in found]
    assert np.median(steady) > 0.6


@pytest.mark.parametrize(
    ("kind", "least"), [("regression", 9), pytest.param("classification", 6, marks=pytest.mark.slow)]
)
def test_true_groups_exceed_the_reference(kind: str, least: int) -> None:
    found = [gradual("groups", kind, seed) for seed in range(10)]
    assert sum(f.continuum is not None and f.continuum.exceeded for f in found) >= least


def test_groups_that_a_gradient_explains_are_not_advised() -> None:
    """Two worlds in which groups beat alone and everything else measurably, one with groups and one without."""
    rng = np.random.default_rng(3)
    owner = np.repeat(np.arange(40), 30)
    X = rng.normal(size=(1200, 3))
    for even in (False, True):
        place = rng.uniform(-1.7, 1.7, 40) if even else rng.choice([-1.0, 1.0], 40)
        y = place[owner] * X.sum(1) + rng.normal(size=1200)
        found = decide_table(make_table(X, y, owner, "regression", None), repeats=1, folds=5)
        assert found.continuum is not None
        assert found.continuum.exceeded != even
        assert (found.recommendation == "groups") != even
        said = "a gradient rather than groups" if even else "The clients form groups"
        assert said in found.words()


def test_the_reference_keeps_the_covariance_of_the_clients() -> None:
    """The estimated population is the true one: mean, covariance and noise of 150 clients with 40 rows."""
    rng = np.random.default_rng(5)
    root = np.array([[0.8, 0.0, 0.0], [0.5, 0.3, 0.0], [0.0, 0.2, 0.1]])
    coef = np.array([0.2, -0.4, 0.6]) + rng.normal(size=(150, 3)) @ root.T
    owner = np.repeat(np.arange(150), 40)
    X = rng.normal(size=(6000, 2))
    y = coef[owner, 0] + (X * coef[owner, 1:]).sum(1) + 0.7 * rng.normal(size=6000)
    here = module._some_rows(make_table(X, y, owner, "regression", None), np.random.default_rng(0))
    _, covariance, noise = module._population(here)
    scale = y.std()
    assert noise * scale**2 == pytest.approx(0.49, rel=0.06)
    true = root @ root.T
    assert np.abs(covariance * scale**2 - true).max() < 4 * np.sqrt(2 / 150) * true.max()


def test_no_groups_and_no_differences_have_no_reference() -> None:
    table = make(World("identical", 20, "regression"), 0)[0]
    assert continuum(table, 1, 0) is None


def test_several_classes_and_many_columns_are_compared_along_their_main_axes() -> None:
    rng = np.random.default_rng(2)
    owner = np.repeat(np.arange(24), 60)
    X = rng.normal(size=(len(owner), 8))
    centre = 2.0 * rng.normal(size=(2, 8, 3))
    y = ((X[:, None] @ centre[owner % 2])[:, 0] + rng.gumbel(size=(len(owner), 3))).argmax(1)
    found = continuum(make_table(X, y, owner, "classification", None), 2, 0)
    assert found is not None
    assert found.exceeded
    line = rng.normal(size=24)[owner, None, None] * centre[0]
    y = ((X[:, None] @ line)[:, 0] + rng.gumbel(size=(len(owner), 3))).argmax(1)
    found = continuum(make_table(X, y, owner, "classification", None), 2, 0)
    assert found is not None
    assert not found.exceeded


def test_a_large_table_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most so many clients and rows are looked at, and the answer stays."""
    monkeypatch.setattr(module, "_MOST_CLIENTS", 30)
    monkeypatch.setattr(module, "_MOST_ROWS", 700)
    table = make(World("groups", 60, "regression"), 1)[0]
    here = module._some_rows(table, np.random.default_rng(0))
    assert here.m == 30
    assert 500 < len(here.y) < 900
    found = continuum(table, 3, 1)
    assert found is not None
    assert found.exceeded


def test_page_json_and_advice_say_it() -> None:
    rng = np.random.default_rng(3)
    data = {}
    for i in range(30):
        X = rng.normal(size=(30, 3)).astype(np.float32)
        data[f"c{i}"] = X, (3.4 * (i / 29 - 0.5) * X.sum(1) + rng.normal(size=30)).astype(np.float32)
    found = ct.compare(ct.Federation.from_arrays(data), seeds=1)
    told = json.loads(json.dumps(found.to_json(), default=str))["continuum"]
    assert told["groups"] >= 2
    assert not told["exceeded"]
    assert told["explained"] <= told["reference"]
    assert "a gradient rather than groups" in page(found)
    assert "a gradient rather than groups" in found.verdict()
    decision = found.decision
    assert decision is not None
    again = from_evaluation(
        decision.table, decision.evaluation, "mse", level=0.95, folds=10, repeats=decision.repeats, seed=decision.seed
    )
    assert again.continuum == decision.continuum
