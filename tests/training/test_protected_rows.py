"""`fit` with a budget for rows: what it learns, what its receipt says, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import coterie as ct
from coterie.errors import ConfigError
from coterie.privacy import BudgetSpent, noise_multiplier, public

STEPS = ct.LocalSGD(steps=4, lr=0.5, batch_size=30)
ROW = ct.Privacy(3.0, 1e-5, clip=1.0, unit="row")


def federation(m: int = 6, seed: int = 0) -> ct.Federation:
    rng = np.random.default_rng(seed)
    w = rng.normal(size=(5, 3))
    data = {}
    for i in range(m):
        x = rng.normal(size=(160 + i, 5)).astype("float32")
        data[f"c{i}"] = (x, (x @ w).argmax(1))
    return ct.Federation.from_arrays(data, classes=public([0, 1, 2]))


def fitted(algorithm: Any = None, fed: ct.Federation | None = None, **options: Any) -> Any:
    how = {"rounds": 6, "progress": False, "privacy": ROW} | options
    return ct.fit(algorithm or ct.FedAvg(STEPS), fed or federation(), **how)


def score(result: Any) -> float:
    return float(result.evaluate()["accuracy"].mean())


def test_it_learns_and_earns_a_receipt_that_names_the_row() -> None:
    found = fitted()
    receipt = found.receipt
    assert receipt.valid, receipt.reasons
    assert receipt.unit == "one row of a client"
    assert receipt.epsilon == pytest.approx(3.0, rel=1e-3)
    (line,) = receipt.releases
    assert line["count"] == 24
    assert line["sampling"] == pytest.approx(30 / 124)
    assert line["noise_multiplier"] >= noise_multiplier(3.0, 1e-5, 24, 30 / 124) * (1 - 1e-3)
    assert receipt.verify().fault == ""
    assert score(found) > 0.75


def test_less_budget_is_more_noise() -> None:
    little, much = (
        np.mean([score(fitted(privacy=replace(ROW, epsilon=e, noise="simulation"), seed=s)) for s in range(3)])
        for e in (0.02, 30.0)
    )
    assert little < much - 0.15


def test_noise_is_new_in_every_run_unless_it_is_simulated() -> None:
    simulated = replace(ROW, noise="simulation")
    for budget, same in ((ROW, False), (simulated, True)):
        one, two = (fitted(rounds=1, privacy=budget).model("c0").state_dict() for _ in "ab")
        assert all(bool((one[name] == two[name]).all()) == same for name in one)
    assert not fitted(rounds=1, privacy=simulated).receipt.valid


def test_one_ledger_counts_all_runs_on_these_rows(tmp_path: Any) -> None:
    budget = replace(ROW, ledger=tmp_path / "l.sqlite")
    fitted(privacy=budget)
    with pytest.raises(BudgetSpent, match="rows of users"):
        fitted(privacy=budget)


@pytest.mark.parametrize(
    ("algorithm", "options", "said"),
    [
        (ct.Ditto(), {}, "which is FedAvg with its mean; got Ditto"),
        (ct.FedAvg(ct.LocalSGD(epochs=1)), {}, "LocalSGD\\(steps=…\\)"),
        (ct.FedAvg(ct.LocalSGD(steps=1, clip=1.0)), {}, "without clip="),
        (ct.FedAvg(ct.LocalAdam(steps=1)), {}, "LocalSGD"),
        (ct.FedAvg(STEPS, aggregate=ct.robust.Median()), {}, "FedAvg with its mean"),
        (None, {"cohort": 0.5}, "asks everyone"),
        (None, {"out": "run"}, "not resumed"),
        (None, {"privacy": replace(ROW, unit="patient")}, "single rows; got unit='patient'"),
    ],
)
def test_what_cannot_be_protected_is_refused(algorithm: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        fitted(algorithm, **options)


def test_parts_that_may_hold_rows_void_the_receipt() -> None:
    read = replace(federation(), declared=frozenset())
    assert any("classes" in reason for reason in fitted(fed=read, rounds=1).receipt.reasons)
    start = dict(fitted(rounds=1).model("c0").state_dict())
    assert any("start" in reason for reason in fitted(start=start, rounds=1).receipt.reasons)


def test_estimators_and_candidates_refuse_a_budget_for_rows() -> None:
    with pytest.raises(ConfigError, match="whole clients"):
        ct.GaussianMeans(privacy=ROW).fit({"a": np.zeros((5, 2)), "b": np.ones((5, 2))})
