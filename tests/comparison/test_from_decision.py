"""Tables: exact candidates, natural units, and a recommendation that survives noise."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import KFold

import coterie as ct
from coterie.comparison.compare import Comparison, compare
from coterie.errors import ConfigError
from reproductions.generate import regression_clients


def federation(clients: int, rows: int, kind: str, world: str, seed: int = 0, scale: float = 1.0) -> ct.Federation:
    """`noise`: nothing to learn. `same`: one model. `apart`: every client its own. `groups`: two opposite kinds."""
    rng = np.random.default_rng(seed)
    data = {}
    for i in range(clients):
        x = rng.normal(size=(rows, 3))
        own = {
            "noise": 0 * x[0],
            "same": np.ones(3),
            "apart": 3 * rng.normal(size=3),
            "groups": 2 * np.ones(3) * (-1) ** i,
        }
        z = x @ own[world]
        if kind == "classification":
            y = rng.random(rows) < 1 / (1 + np.exp(-2 * z))
        else:
            y = scale * (z + rng.normal(size=rows) * (0.3 if world == "apart" else 1.0) + 5)
        data[f"c{i}"] = (x, y.astype(int) if kind == "classification" else y)
    return ct.Federation.from_arrays(data, kind=kind, one_class="allow")  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def grouped() -> Comparison:
    return compare(federation(24, 12, "regression", "groups", scale=1e5), seeds=1)


def test_coin_flips_leave_everybody_alone() -> None:
    for seed in range(3):
        found = compare(federation(20, 60, "classification", "noise", seed), seeds=1)
        assert (found.recommendation, found.sure) == ("alone", "nothing")
        assert "overall average" in found.verdict()


def test_shuffled_clients_learn_together_and_nobody_is_sent_away() -> None:
    found = compare(federation(20, 30, "classification", "same"), seeds=1)
    assert found.recommendation == "together"
    assert not (found.marks == "loses").any(axis=None)


def test_groups_are_found_and_told_apart(grouped: Comparison) -> None:
    assert grouped.recommendation == "groups"
    assert grouped.groups is not None
    assert len(set(grouped.groups.iloc[::2])) == len(set(grouped.groups.iloc[1::2])) == 1
    assert grouped.groups.iloc[0] != grouped.groups.iloc[1]
    assert grouped.distinguish()["effect"].abs().min() > 0.5  # all three slopes are opposite


def test_squared_errors_are_in_the_target_s_units(grouped: Comparison) -> None:
    """Targets of 10⁵ with noise of 10⁵: the right model's squared error is about 10¹⁰ (four standard errors: 288 rows)."""
    mean = float(grouped.table.T["groups"].mean())
    assert abs(mean / 1e10 - 1) < 4 * np.sqrt(2 / 288) + 0.1
    pd.testing.assert_frame_equal(grouped.gains, grouped.table.loc["alone"] - grouped.table)
    low, high = grouped.interval
    assert low < float(grouped.gains.T["groups"].mean()) < high
    assert low > 0
    assert grouped.about["lower_is_better"]


def test_accuracy_is_accuracy() -> None:
    found = compare(federation(12, 40, "classification", "same"), seeds=1, metric="accuracy")
    assert found.table.to_numpy().min() >= 0
    assert found.table.loc["together"].mean() > 0.75
    pd.testing.assert_frame_equal(found.gains, found.table - found.table.loc["alone"])


def test_alone_and_together_are_as_good_as_ridge() -> None:
    """Within one standard error of scikit-learn's RidgeCV, on targets of 10⁵."""
    fed = federation(6, 60, "regression", "apart", scale=1e5)
    found = compare(fed, seeds=1)
    parts = [fed.rows(p) for p in ("train", "test")]
    X, y, owner = (np.concatenate(both) for both in zip(*parts, strict=True))
    for name, units in (("alone", [owner == i for i in range(6)]), ("together", [owner >= 0])):
        loss = np.empty(len(y))
        for rows in map(np.flatnonzero, units):
            for train, test in KFold(10, shuffle=True, random_state=0).split(rows):
                model = RidgeCV(np.logspace(-4, 4, 17)).fit(X[rows[train]], y[rows[train]])
                loss[rows[test]] = (y[rows[test]] - model.predict(X[rows[test]])) ** 2
        ours = float(found.table.T[name].mean())
        assert ours < loss.mean() + loss.std() / np.sqrt(len(loss))


def test_json_is_whole_and_has_no_nan(grouped: Comparison) -> None:
    told = json.loads(json.dumps(grouped.to_json(), allow_nan=False, default=str))
    assert told["recommendation"] == "groups"
    assert {"sure", "interval", "table", "gains", "marks", "groups", "warnings", "settings"} <= told.keys()
    assert told["table"]["alone"]["c0"] == pytest.approx(float(grouped.table.loc["alone", "c0"]))


def test_a_split_function_gives_the_rows_of_its_first_seed() -> None:
    asked = []

    def split(seed: int) -> ct.Federation:
        asked.append(seed)
        return federation(6, 20, "regression", "same")

    found = compare(split, seeds=2)
    assert asked == [0]
    pd.testing.assert_frame_equal(found.table, compare(split(0), seeds=2).table)


def test_tables_need_no_training_rooms() -> None:
    code = (
        "import sys, numpy as np, coterie as ct; r = np.random.default_rng(0); "
        "d = {i: (r.normal(size=(12, 2)), r.normal(size=12)) for i in range(4)}; "
        "ct.compare(ct.Federation.from_arrays(d), seeds=1).verdict(); "
        "print([m for m in sys.modules if m.startswith(('coterie.training.run', 'coterie.engines', 'coterie.algorithms.'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_constant_target_has_nothing_to_learn() -> None:
    fed = ct.Federation.from_arrays({c: (np.eye(6), np.ones(6)) for c in "ab"}, kind="regression")
    found = compare(fed, seeds=1)
    assert (found.recommendation, found.sure) == ("alone", "nothing")
    json.dumps(found.to_json(), allow_nan=False, default=str)


def test_a_metric_that_does_not_fit_is_refused() -> None:
    fed = federation(4, 12, "regression", "same")
    with pytest.raises(ConfigError, match="does not fit regression"):
        compare(fed, metric="accuracy")
    with pytest.raises(ConfigError, match="Did you mean 'mse'"):
        compare(fed, metric="mes")


def table_of(X: Any, y: Any, groups: Any) -> dict[Any, Any]:
    return {c: (X[groups == c], y[groups == c]) for c in np.unique(groups)}


@pytest.mark.parametrize(
    ("kwargs", "right"),
    [
        ({"samples": 10, "prior_variance": 0.25, "noise_variance": 1.0}, "shrunk"),
        ({"samples": 60, "prior_variance": 4.0, "noise_variance": 1.0}, "alone"),
        ({"samples": 10, "prior_variance": 0.0, "noise_variance": 1.0, "centers": [[2, 0, 0], [0, 2, 0]]}, "groups"),
        ({"samples": 15, "prior_variance": 0.0, "noise_variance": None}, "together"),
    ],
)
def test_regressions(kwargs: dict[str, Any], right: str) -> None:
    data = regression_clients(40, dimension=3, mean_scale=1.0, rng=np.random.default_rng(0), **kwargs)
    kind = "regression" if kwargs["noise_variance"] else "classification"
    found = compare(table_of(data.X, data.y, data.groups), kind=kind, one_class="allow")
    assert found.recommendation == right


def test_gains_are_not_inflated_by_a_target_far_from_zero() -> None:
    """The loss of alone is that of centred models, near the noise's variance of 1."""
    rng = np.random.default_rng(0)
    X, groups = rng.normal(size=(400, 2)), np.repeat(np.arange(10), 40)
    y = 1e3 + X.sum(1) + rng.normal(size=400)
    loss = compare(table_of(X, y, groups)).table.mean(axis=1)
    assert loss["alone"] == pytest.approx(1.0, abs=4 * np.sqrt(2 / 400) + 0.1)
    assert 1 - loss["together"] / loss["alone"] < 0.15


@pytest.mark.parametrize("text", [False, True])
def test_a_label_that_only_one_row_has(text: bool) -> None:
    """It falls into one fold, and the others train on what is left."""
    rng = np.random.default_rng(0)
    X, groups = rng.normal(size=(60, 2)), np.repeat(np.arange(6), 10)
    y = np.where(np.arange(60) == 7, "rare", np.where((X[:, 0] > 0) & text, "b", "a"))
    assert np.isfinite(compare(table_of(X, y, groups), one_class="allow").table.mean(axis=1)).all()


def test_many_columns_are_judged_by_their_components() -> None:
    rng = np.random.default_rng(0)
    found = compare({i: (rng.normal(size=(12, 256)), rng.normal(size=12)) for i in range(4)}, seeds=1)
    assert any("principal components" in warning for warning in found.warnings)
    assert np.isfinite(found.table.to_numpy()).all()


def test_labels_keep_their_names() -> None:
    rng = np.random.default_rng(0)
    data = {c: (x := rng.normal(size=(20, 2)), np.where(x[:, 0] > 0, "yes", "no")) for c in ("north", "south", "west")}
    decision = compare(data, test_fraction=0.0).decision
    assert decision is not None
    assert decision.table.classes is not None
    assert list(decision.table.classes) == ["no", "yes"]
    assert list(decision.marks.index) == ["north", "south", "west"]
