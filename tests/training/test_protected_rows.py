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


def test_a_decision_and_a_training_on_the_same_rows_add_up(tmp_path: Any) -> None:
    """One ledger with a total for one of them: the second has no budget left; with enough it counts both."""
    arrays = {c: tuple(t.numpy() for t in federation().train(c)) for c in ("c0", "c1", "c2")}
    fed = ct.Federation.from_arrays({c: (x, x[:, 0]) for c, (x, _) in arrays.items()}, kind=public("regression"))
    budget = replace(ROW, ledger=tmp_path / "l.sqlite", total_epsilon=6.5)
    decided = ct.compare(fed, across="sites", privacy=budget, seeds=1, target_range=(-4.0, 4.0))
    assert all(r.cumulative["epsilon"] == pytest.approx(3.0, rel=1e-2) for r in decided.receipts.values())
    trained = fitted(ct.FedAvg(STEPS), fed, privacy=budget, task=ct.Task(ct.models.mlp(5, 4, 1), "mse"))
    assert trained.receipt.cumulative["earlier_releases"] == 1
    assert trained.receipt.cumulative["epsilon"] > 3.5
    with pytest.raises(BudgetSpent):
        fitted(ct.FedAvg(STEPS), fed, privacy=replace(budget, epsilon=6.0), task=ct.Task(ct.models.mlp(5, 4, 1), "mse"))


def test_parts_declared_public_are_listed_and_their_cost_must_be_in_the_ledger() -> None:
    task = public(ct.Task(ct.models.mlp(5, 4, 3), "cross_entropy", "accuracy"))
    receipt = fitted(task=task, rounds=1).receipt
    assert receipt.valid, receipt.reasons
    assert any("the task" in line for line in receipt.public)
    started = fitted(start=public(ct.Task(ct.models.mlp(5, 4, 3)).init(0)), task=task, rounds=1).receipt
    assert started.valid, started.reasons


def test_a_run_that_protects_rows_is_not_made_again_without_a_booking() -> None:
    with pytest.raises(ConfigError, match="does not know how it was made"):
        fitted(rounds=1).again(federation())


def test_what_protects_whole_clients_refuses_a_budget_for_rows() -> None:
    from coterie.training.private_run import private_form

    with pytest.raises(ConfigError, match="protects whole clients; got unit='row'"):
        private_form(ct.FedAvg(), ROW)
