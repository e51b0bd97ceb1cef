"""Folds keep units whole and judge the future by the past; evidence is counted by units."""

from dataclasses import replace

import numpy as np
import pandas as pd

import coterie as ct
from coterie.comparison.exact.candidates.last import LastValue
from coterie.comparison.exact.candidates.rows import Rows
from coterie.comparison.exact.evaluation import evaluate
from coterie.comparison.exact.folds import folds_of, inner_folds, judged_folds, stretches, training
from coterie.data.coded_table import make_table
from coterie.evidence.mean_gains import gain


def table(m: int = 8, units: int = 6, reps: int = 5, seed: int = 0, noise: float = 1.5):
    """No client has anything of its own; a unit shifts all its rows, and columns tell units apart."""
    rng = np.random.default_rng(seed)
    unit = np.repeat(np.arange(m * units), reps)
    X = rng.normal(size=(m * units, 3))[unit] + 0.1 * rng.normal(size=(len(unit), 3))
    y = X @ [0.5, -0.3, 0.0] + noise * rng.normal(size=m * units)[unit] + 0.3 * rng.normal(size=len(unit))
    return replace(make_table(X, y, unit // units, "regression", None), unit=unit)


def test_no_unit_is_on_both_sides() -> None:
    some = table()
    for fold in (folds_of(some, 5, np.random.default_rng(0)), inner_folds(some, 5, np.random.default_rng(0))):
        for f in judged_folds(fold):
            assert not set(some.unit[training(some, fold, f)]) & set(some.unit[fold == f])
    assert len(np.unique(fold)) == 5


def test_models_see_only_the_past() -> None:
    some = replace(table(), unit=None, time=np.tile(np.arange(30.0), 8))
    fold = folds_of(some, 5, np.random.default_rng(0))
    assert sorted(judged_folds(fold)) == [0, 1, 2, 3, 4]
    for f in judged_folds(fold):
        keep = training(some, fold, f)
        assert some.time[keep].max() < some.time[fold == f].min()
    assert 0.3 < (fold < 0).mean() < 0.5


def test_equal_times_are_not_torn_apart() -> None:
    time = np.repeat(np.arange(6.0), [1, 30, 3, 3, 30, 2])
    fold = stretches(time)
    assert all(len(np.unique(fold[time == t])) == 1 for t in np.unique(time))
    assert fold[0] == -1


def test_repeated_units_are_counted_once() -> None:
    """Copies of every row as one unit leave the standard error as it is; as rows they would shrink it by √5."""
    one = table(reps=1)
    copies = one.rows(np.repeat(np.arange(len(one.y)), 5))
    scores = evaluate(copies, folds=5).scores["mse"]
    plain = gain(replace(scores, unit=None), 2, 1)
    whole = gain(scores, 2, 1)
    assert 1.9 < whole.se_rows / plain.se_rows < 2.6
    assert whole.sizes.tolist() == [6.0] * 8


def test_random_folds_flatter_and_whole_units_do_not() -> None:
    some = table(m=20, noise=2.0)
    flattered, honest = (
        evaluate(t, folds=5).scores["mse"].mean_losses()["alone"] for t in (replace(some, unit=None), some)
    )
    assert flattered < 0.7 < 1.0 < honest


def test_the_last_value_is_the_last() -> None:
    owner = np.array([0, 1, 0, 1, 1])
    rows = Rows(np.zeros((5, 1)), np.array([[1.0], [2], [3], [4], [5]]), owner, 3, False)
    fit = LastValue().fit(rows, np.random.default_rng(0))
    assert fit.outputs(np.zeros((3, 1)), np.array([0, 1, 2]))[:, 0].tolist() == [3.0, 5.0, 3.0]


def test_the_last_class_is_as_likely_as_it_used_to_be() -> None:
    y = np.tile([0.0, 0, 0, 1, 1, 1], 50)[:, None]
    rows = Rows(np.zeros((300, 1)), y, np.zeros(300, np.int64), 1, True)
    chance = LastValue().fit(rows, np.random.default_rng(0)).outputs(np.zeros((1, 1)), np.array([0]))
    assert abs(chance[0, 1] - 2 / 3) < 0.02


def test_compare_in_time_knows_the_last_value_and_says_how_it_judged() -> None:
    rng = np.random.default_rng(3)
    walk = rng.normal(size=(6, 40)).cumsum(1)
    frame = pd.DataFrame({"who": np.repeat(list("abcdef"), 40), "day": np.tile(np.arange(40), 6), "y": walk.ravel()})
    frame["x"] = rng.normal(size=len(frame))
    found = ct.compare(frame, client="who", target="y", time="day", seeds=1, family="linear")
    assert "stretches of time" in found.verdict()
    losses = found.deploy.losses
    assert losses["last value"] < losses["constant"]
    doubted = ct.compare(frame, client="who", target="y", seeds=1, family="linear")
    assert doubted.sure in ("leaning", "nothing")
    assert "--time" in doubted.verdict()
