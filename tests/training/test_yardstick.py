"""What a client would have alone: tuned by itself, or on the run's budget."""

from __future__ import annotations

import numpy as np
import pytest

import coterie as ct
from coterie.training.yardstick import checkpoints

SGD = ct.LocalSGD(steps=3, lr=0.01, batch_size=8)


@pytest.fixture(scope="module")
def result(fed: ct.Federation, task: ct.Task) -> ct.Result:
    return ct.fit(ct.FedAvg(SGD), fed, task, rounds=4)


def test_a_lone_client_chooses_its_learning_rate(result: ct.Result) -> None:
    """At a learning rate that is far too small, the tuned yardstick is much better than the equal budget."""
    tuned, equal = result.evaluate(), result.evaluate("equal budget")
    assert tuned.attrs["yardstick"] == "tuned"
    assert equal.attrs["yardstick"] == "equal budget"
    assert "alone: tuned" in tuned.to_string()
    assert tuned["alone"].mean() > equal["alone"].mean() + 0.1
    np.testing.assert_allclose(tuned["accuracy"], equal["accuracy"])
    np.testing.assert_allclose(tuned["gain"], tuned["accuracy"] - tuned["alone"])


def test_the_way_alone_is_trained_may_be_told_to_fit(fed: ct.Federation, task: ct.Task, result: ct.Result) -> None:
    told = ct.fit(ct.FedAvg(SGD), fed, task, rounds=4, alone="equal budget").evaluate()
    assert told["alone"].equals(result.evaluate("equal budget")["alone"])
    with pytest.raises(ct.errors.ConfigError, match="yardstick must be one of 'tuned', 'equal budget'"):
        result.evaluate("fair")  # type: ignore[arg-type]


def test_a_sample_of_the_clients(result: ct.Result) -> None:
    table = result.evaluate(sample=5)
    assert table["gain"].notna().sum() == 5
    assert table["accuracy"].notna().all()
    assert "5 of 12 clients" in table.attrs["yardstick"]
    assert table.attrs["mean_gain"] == pytest.approx(table["gain"].mean())
    assert table.attrs["mean_gain_error"] == pytest.approx(table["gain"].std() / np.sqrt(5))


def test_checkpoints_grow_and_end_at_the_last_round() -> None:
    assert checkpoints(10) == [1, 2, 3, 4, 6, 10] or checkpoints(10)[-1] == 10
    assert checkpoints(1) == [1]
    assert all(a < b for a, b in zip(checkpoints(300), checkpoints(300)[1:], strict=False))
    assert len(checkpoints(300)) < 20
