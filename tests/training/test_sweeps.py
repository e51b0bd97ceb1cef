"""Pickled tasks and results, several seeds, a grid, and callbacks that see the live run."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import coterie as ct

SGD = ct.LocalSGD(steps=3, lr=0.1, batch_size=8)
TASK = ct.Task(ct.models.mlp(4, 5, 3), metric=("accuracy", "log_loss"))


@pytest.mark.parametrize("algorithm", [ct.FedAvg(SGD), ct.Ditto(local=SGD), ct.KNNPer(local=SGD)])
def test_a_result_survives_pickling_and_copying(algorithm: Any, fed: ct.Federation) -> None:
    result = ct.fit(algorithm, fed, TASK, rounds=2, alone="equal budget")
    for again in (pickle.loads(pickle.dumps(result)), copy.deepcopy(result)):
        assert again.scores().equals(result.scores())
        assert again.evaluate().equals(result.evaluate())
        x, _ = fed.test("c11")
        assert torch.equal(again.model("c11")(x), result.model("c11")(x))
        assert again.again(fed).scores().equals(result.scores())


def test_every_ready_model_can_be_pickled() -> None:
    for task in (TASK, ct.Task(ct.models.resnet8(norm="batch")), ct.Task(ct.models.transformer(9, 9, 5, 8, 2, 1))):
        again = pickle.loads(pickle.dumps(task))
        one, two = task.init(3), again.init(3)
        assert one.keys() == two.keys()
        assert all(torch.equal(one[n], two[n]) for n in one)


def test_several_seeds(fed: ct.Federation) -> None:
    runs = ct.fit_seeds(ct.FedAvg(SGD), fed, TASK, seeds=3, rounds=2, alone=False)
    means = [
        ct.fit(ct.FedAvg(SGD), fed, TASK, seed=s, rounds=2, alone=False).scores()["accuracy"].mean() for s in range(3)
    ]
    np.testing.assert_allclose(runs.scores["accuracy"], means)
    assert runs.table.loc["accuracy", "mean"] == pytest.approx(np.mean(means))
    assert runs.table.loc["accuracy", "error"] == pytest.approx(np.std(means, ddof=1) / np.sqrt(3))
    assert str(runs).startswith("accuracy: ")
    assert "±" in str(runs)
    with pytest.raises(ct.errors.ConfigError, match=r"picklable.*named function"):
        ct.fit_seeds(ct.FedAvg(SGD), fed, ct.Task(lambda: nn.Linear(4, 3)), seeds=2, processes=2, rounds=1)


@pytest.mark.slow
def test_seeds_in_processes_give_the_same(fed: ct.Federation) -> None:
    one, two = (ct.fit_seeds(ct.FedAvg(SGD), fed, TASK, seeds=2, rounds=2, processes=p, alone=False) for p in (1, 2))
    assert one.scores.equals(two.scores)


def test_a_grid_is_judged_on_validation_rows_and_stops_early(fed: ct.Federation) -> None:
    found = ct.grid(ct.FedAvg(SGD), {"local.lr": [0.2, 1e-6]}, fed, TASK, rounds=12, every=1, patience=2)
    assert found.best.local.lr == 0.2
    assert list(found.table["local.lr"]) == [0.2, 1e-6]
    assert found.table["rounds made"][1] < 12  # nothing moves: it ends early
    assert 1 <= found.rounds <= 12
    result = found.fit(fed, TASK, alone=False)
    assert len(result.history) == found.rounds
    changed = fed.y.clone()
    first = int(fed.offsets[0] + fed.n_train[0])
    changed[first : int(fed.offsets[1])] = 2  # test rows
    same = ct.grid(
        ct.FedAvg(SGD), {"local.lr": [0.2, 1e-6]}, replace(fed, y=changed), TASK, rounds=12, every=1, patience=2
    )
    assert same.table.equals(found.table)
    with pytest.raises(ct.errors.ConfigError, match="has no setting 'rate'"):
        ct.grid(ct.FedAvg(SGD), {"local.rate": [0.1]}, fed, TASK)


def test_a_callback_stops_the_live_run(fed: ct.Federation) -> None:
    seen: list[float] = []

    def watch(run: ct.training.Run) -> None:
        assert run.done == run.history[-1]["round"] == len(run.history)
        seen.append(float(run.evaluation().scores()["log_loss"].mean()))
        if run.done == 2:
            run.stop("enough")

    result = ct.fit(ct.FedAvg(SGD), fed, TASK, rounds=9, alone=False, callbacks=[watch])
    assert len(result.history) == len(seen) == 2
    assert result.about["stopped"] == "enough"
    assert not result.about["finished"]
    assert seen[-1] == pytest.approx(result.scores()["log_loss"].mean())


@pytest.mark.parametrize(
    "local", [ct.LocalAdam(steps=2, lr=0.01, keep=True), ct.LocalSGD(steps=2, momentum=0.9, keep=True)]
)
def test_an_optimiser_is_kept_between_rounds(local: Any, fed: ct.Federation) -> None:
    """Alone, r rounds of s steps with full batches are one round of r·s steps."""
    whole = replace(local, batch_size=None)
    for engine in ("local", "loop"):
        several = ct.fit(ct.Local(whole), fed, TASK, rounds=3, engine=engine, alone=False)
        once = ct.fit(ct.Local(replace(whole, steps=6)), fed, TASK, rounds=1, engine=engine, alone=False)
        forgetful = ct.fit(ct.Local(replace(whole, keep=False)), fed, TASK, rounds=3, engine=engine, alone=False)
        one, two, three = (r.evaluation.personal(r.evaluation.everyone()) for r in (several, once, forgetful))
        for name in one:
            torch.testing.assert_close(one[name], two[name], rtol=1e-4, atol=1e-5)
        assert max(float((one[n] - three[n]).abs().max()) for n in one) > 1e-3
    for algorithm in (ct.FedAvg(local), ct.FedProx(local), ct.FedBN(local, keep=["1"])):
        fast, plain = (
            ct.fit(algorithm, fed, TASK, rounds=2, cohort=6, engine=e, alone=False) for e in ("local", "loop")
        )
        np.testing.assert_allclose(fast.scores()["log_loss"], plain.scores()["log_loss"], rtol=1e-3)
    with pytest.raises(ct.errors.ConfigError, match="Ditto starts a new optimiser"):
        ct.fit(ct.Ditto(local=local), fed, TASK, rounds=1)
