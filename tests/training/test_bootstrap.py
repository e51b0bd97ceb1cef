"""Resampled test rows and the errors made of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import coterie as ct
from coterie import randomness
from coterie.learning.metrics import METRICS
from coterie.training.bootstrap import bootstrap_scores, gain_error

SGD = ct.LocalSGD(steps=2, lr=0.1, batch_size=4)


@pytest.mark.parametrize("metric", ["accuracy", "balanced_accuracy"])
def test_no_padding_is_drawn_for_small_clients(fed: ct.Federation, task: ct.Task, metric: str) -> None:
    """Clients of 1 to 16 test rows share padded tensors; each draw must be of a client's own rows."""
    result = ct.fit(ct.FedAvg(SGD), fed, ct.Task(task.model, metric=metric), rounds=1, alone=False)
    draws = bootstrap_scores(result, 6)
    assert len(set(fed.n_test)) > 4
    for i, client in enumerate(fed.clients):
        x, y = fed.test(client)
        outputs = result.model(client)(x).detach()
        key = torch.from_numpy(fed.keys)[i] ^ randomness.base_key(0)
        for b in range(6):
            rows = (randomness.uniform(randomness.fold(key, "bootstrap", b), len(x), torch.float64) * len(x)).long()
            direct = METRICS[metric](outputs[rows].unsqueeze(0), y[rows].unsqueeze(0), torch.ones(1, len(x)))
            assert draws[i, b] == pytest.approx(float(direct), abs=1e-6, nan_ok=True)


def test_two_results_are_resampled_alike(fed: ct.Federation, task: ct.Task) -> None:
    """The same models under two algorithms: every draw is the same, so that differences are paired."""
    one = ct.fit(ct.FedAvg(SGD), fed, task, rounds=0, alone=False)
    two = ct.fit(ct.Local(SGD), fed, task, rounds=0, alone=False)
    np.testing.assert_array_equal(bootstrap_scores(one, 5), bootstrap_scores(two, 5))


def test_the_error_of_a_mean_gain_over_seeds() -> None:
    """One client of bootstrap variance 4: sharing all test rows, three seeds are worth one; sharing none, they are worth
    three; what seeds vary beyond their rows is training and adds its variance over their number."""
    draws = [np.array([[-2.0, 2.0, -2.0, 2.0]])] * 3
    still, moving = np.full((3, 1), 0.5), np.array([[-6.0], [0.0], [6.0]])

    def error(gain: np.ndarray, overlap: float) -> float:
        return float(gain_error(gain, draws[: len(gain)], np.array([overlap]))[0])

    assert error(still[:1], 0.3) == pytest.approx(2.0)
    assert error(still, 1.0) == pytest.approx(2.0)
    assert error(still, 0.0) == pytest.approx(2.0 / np.sqrt(3))
    assert error(still, 0.25) == pytest.approx(np.sqrt(4 * (1 + 2 * 0.25) / 3))
    assert error(moving, 1.0) == pytest.approx(np.sqrt(4 + 36 / 3))
    assert error(moving, 0.0) == pytest.approx(np.sqrt(4 / 3 + (36 - 4) / 3))
