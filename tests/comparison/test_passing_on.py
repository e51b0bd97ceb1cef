"""What compare is told reaches the runs: seeds, splits, engine, the grid; and its yardstick is of training rows."""

from __future__ import annotations

import numpy as np
import pytest

import coterie as ct
from coterie.comparison.compare import compare
from coterie.comparison.trained_scores import trained_scores
from coterie.comparison.tuning import DECAYS, tune
from coterie.engines import ENGINES

FAST = ct.LocalSGD(steps=2, lr=0.1, batch_size=4)


def numbers(seed: int = 0) -> ct.Federation:
    rng = np.random.default_rng(0)
    data = {c: (x := rng.normal(size=(24, 2)), x[:, 0] + rng.normal(size=24)) for c in "abc"}
    return ct.Federation.from_arrays(data, kind="regression", seed=seed)


TASK = ct.Task(ct.models.linear(2, 1), "mse")
METHODS = [ct.Local(FAST), ct.FedAvg(FAST)]


def test_every_seed_is_a_run_and_a_split_of_its_own() -> None:
    found = compare(numbers, TASK, METHODS, rounds=1, seeds=[3, 8])
    for results in found.results.values():
        assert [r.about["seed"] for r in results] == [3, 8]
        for seed, result in zip((3, 8), results, strict=True):
            assert result.federation.x.equal(numbers(seed).x)
    assert not numbers(3).x.equal(numbers(8).x)


def test_the_sign_of_a_gain_is_that_of_a_smaller_error() -> None:
    found = compare(numbers(), TASK, METHODS, rounds=1, seeds=1)
    np.testing.assert_allclose(found.gains, found.table.loc["local"] - found.table)


@pytest.mark.parametrize("methods", [METHODS, [ct.Local(FAST), "fedavg"]], ids=["objects", "names"])
def test_everything_runs_on_the_engine_that_was_asked_for(
    methods: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise AssertionError("another engine was made")

    monkeypatch.setitem(ENGINES, "local", refuse)
    compare(numbers(), TASK, methods, rounds=1, seeds=1, engine="loop")


def test_weight_decays_are_tried() -> None:
    fed = numbers()
    tried = tune(ct.FedAvg(), fed, TASK, rounds=1).candidates["algorithm"]
    for decay in DECAYS:
        assert tried.str.contains(f"weight_decay={decay}").any()


def test_finite_numbers_of_an_exploded_run_are_no_scores() -> None:
    wild = ct.FedAvg(ct.LocalSGD(steps=4, lr=1e3, batch_size=None))
    found = compare(numbers(), TASK, {"local": ct.Local(FAST), "fedavg": wild}, rounds=1, seeds=1)
    assert "exploded" in found.failed["fedavg"]
    assert "fedavg" not in found.methods


def test_the_overall_average_is_that_of_training_rows() -> None:
    fed = numbers()
    train = np.concatenate([fed.train(c)[1].numpy() for c in fed.clients])
    result = ct.fit(ct.Local(FAST), fed, TASK, rounds=1, alone=False)
    expected = np.mean([((fed.test(c)[1].numpy() - train.mean()) ** 2).mean() for c in fed.clients])
    scores, _ = trained_scores({"local": [result]}, 1.0)
    assert scores.mean_losses()["constant"] == pytest.approx(expected, rel=1e-6)
