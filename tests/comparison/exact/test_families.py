"""Counts, amounts, shares and heavy tails are fitted on their own scale; weights and exposure count as copies of rows."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import coterie as ct
from coterie.comparison.deploy.parts import LinearPart
from coterie.comparison.deploy.trees import TreesPart, fit_trees
from coterie.comparison.exact.candidates import CANDIDATES
from coterie.comparison.exact.families import KINDS, of_kind
from coterie.comparison.exact.fitting import learn
from coterie.data.coded_table import Table, make_table
from coterie.errors import ConfigError, DataError

RNG = np.random.default_rng


def world(kind: str, seed: int = 0, m: int = 8, n: int = 60) -> tuple[Table, np.ndarray]:
    """A table, and the true mean (or centre) of every row."""
    rng = RNG(seed)
    owner = np.repeat(np.arange(m), n)
    X = rng.normal(size=(m * n, 2))
    eta = 0.5 * rng.normal(size=m)[owner] + 0.5 * X[:, 0] - 0.3 * X[:, 1]
    exposure = None
    if kind == "count":
        mean, exposure = np.exp(eta), rng.uniform(0.5, 3, m * n)
        y = rng.poisson(mean * exposure).astype(float)
    elif kind == "amount":
        mean = np.exp(eta)
        y = rng.gamma(2, mean / 2)
    elif kind == "share":
        mean = 1 / (1 + np.exp(-eta))
        y = rng.binomial(10, mean) / 10
    else:
        mean = eta
        y = eta + 0.7 * rng.standard_t(1.5, m * n)
    table = make_table(X, y, owner, "regression", None)
    return of_kind(replace(table, exposure=exposure), kind), mean


def fitted(table: Table, *names: str) -> dict[str, np.ndarray]:
    some = {name: CANDIDATES[name] for name in names or CANDIDATES}
    models = learn(table, np.ones(len(table.y), bool), some, RNG(0))
    return {name: model.outputs(table.X, table.owner)[:, 0] for name, model in models.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_every_candidate_comes_closer_to_the_truth_than_the_constant(kind: str) -> None:
    table, mean = world(kind)
    error = {name: float(((made - mean) ** 2).mean()) for name, made in fitted(table).items()}
    assert max(error[name] for name in ("together", "shrunk", "groups")) < 0.75 * error["constant"]
    assert error["shrunk"] < 0.3 * error["constant"]


def test_together_is_the_maximum_of_the_poisson_likelihood() -> None:
    """At the maximum the weighted residuals are orthogonal to the columns; half a row per client and the ridge allow 2 %."""
    table, _ = world("count")
    mean = fitted(table, "together")["together"]
    scores = (table.weight * (table.y - mean)) @ np.column_stack([np.ones(len(mean)), table.X])
    assert np.abs(scores).max() < 0.02 * (table.weight * table.y).sum()


def test_huber_is_hardly_moved_by_one_wild_row() -> None:
    table, _ = world("robust")
    wild = table.y.copy()
    wild[0] = 1e6
    before, after = (fitted(t, "together")["together"] for t in (table, replace(table, y=wild)))
    assert np.abs(before - after).max() < 0.1


def test_a_client_without_events_gets_a_finite_rate() -> None:
    table, _ = world("count")
    none = replace(table, y=np.where(table.owner == 0, 0.0, table.y))
    rate = fitted(none, "alone")["alone"][table.owner == 0]
    assert (rate > 1e-6).all()
    assert rate.mean() < 0.1


@pytest.mark.parametrize("name", ["alone", "together"])
def test_a_weight_of_two_is_a_row_twice(name: str) -> None:
    """Coefficients agree but for the leave-one-out choice of penalties, which copies flatter a little."""
    table, _ = world("robust", n=80)
    table = replace(table, kind="", y=np.clip(table.y, -3, 3))
    double = RNG(1).random(len(table.y)) < 0.5
    weighted = fitted(replace(table, weight=1.0 + double), name)[name]
    rows = np.concatenate([np.arange(len(table.y)), np.flatnonzero(double)])
    copied = fitted(table.rows(rows), name)[name][: len(table.y)]
    plain = fitted(table, name)[name]
    assert np.abs(weighted - copied).mean() < 0.4 * np.abs(plain - copied).mean()


def test_equal_weights_change_nothing() -> None:
    table, _ = world("robust")
    table = replace(table, kind="")
    with_weights = fitted(replace(table, weight=np.full(len(table.y), 3.0)))
    assert all(np.allclose(made, with_weights[name], atol=1e-6) for name, made in fitted(table).items())


@pytest.mark.parametrize("kind", KINDS)
def test_trees_are_grown_for_the_kind_and_come_back_from_arrays(kind: str) -> None:
    table, mean = world(kind, n=100)
    everyone = np.ones(len(table.y), bool)
    shrunk = learn(table, everyone, {"shrunk": CANDIDATES["shrunk"]}, RNG(0))["shrunk"]
    parts = fit_trees(table, everyone, np.zeros(8, np.int64), shrunk, None, 0)
    constant = float(((mean - mean.mean()) ** 2).mean())
    for name in ("trees with client", "shrunk + trees"):
        made = parts[name].outputs(table.X, table.owner)
        assert float(((made[:, 0] - mean) ** 2).mean()) < 0.8 * constant
        assert np.array_equal(made, TreesPart.of(parts[name].arrays()).outputs(table.X, table.owner))
    again = LinearPart.of(LinearPart(shrunk).arrays())
    assert np.array_equal(again.outputs(table.X, table.owner), shrunk.outputs(table.X, table.owner))


@pytest.mark.parametrize(
    ("kind", "value", "sentence"),
    [("count", -1.0, "zero or more"), ("amount", 0.0, "positive"), ("share", 1.5, "from 0 to 1")],
)
def test_a_value_that_does_not_fit_is_refused(kind: str, value: float, sentence: str) -> None:
    table = replace(make_table(np.zeros((4, 1)), [0.5, 0.5, value, 0.5], list("aabb"), "regression", None))
    with pytest.raises(DataError, match=sentence):
        of_kind(table, kind)


def test_an_exposure_needs_counts() -> None:
    table = make_table(np.zeros((4, 1)), np.ones(4), list("aabb"), "regression", None)
    with pytest.raises(ConfigError, match="belongs to counts"):
        of_kind(replace(table, exposure=np.ones(4)), None)


def test_compare_takes_kinds_weights_and_exposure() -> None:
    table, _ = world("count", m=6, n=40)
    frame = pd.DataFrame(table.X, columns=["a", "b"]).assign(who=[f"c{o}" for o in table.owner])
    frame = frame.assign(days=table.weight, events=np.round(table.y * table.weight), trust=1.0 + (table.owner % 2))
    how = {"client": "who", "target": "events", "kind": "count", "seeds": 1, "family": "linear"}
    found = ct.compare(frame, exposure="days", weights="trust", **how)
    assert found.metric == "poisson"
    assert found.deploy.loss < found.deploy.constant
    assert found.decision.table.names == ("a", "b")
    with pytest.raises(ConfigError, match="kind regression"):
        ct.compare(frame, algorithms="local", **how)


def test_whole_numbers_are_not_taken_for_classes_in_silence() -> None:
    rng = RNG(0)
    frame = pd.DataFrame({"who": np.repeat(list("abcd"), 30), "x": rng.normal(size=120), "y": rng.integers(0, 5, 120)})
    notes = ct.Federation.from_frame(frame, client="who", target="y").notes
    assert any("taken for classes" in note.text and "--kind count" in note.cli for note in notes.notes)


def test_a_rare_class_and_a_client_without_it_are_compared() -> None:
    rng = RNG(0)
    frame = pd.DataFrame({"who": np.repeat(list("abcdef"), 100), "x": rng.normal(size=600)})
    frame["y"] = np.where((rng.random(600) < 0.03) & (frame["who"] != "a"), "yes", "no")
    found = ct.compare(frame, client="who", target="y", seeds=1, family="linear")
    assert found.metric == "log_loss"
    assert np.isfinite(found.table.loc["alone", "a"])
