"""Training for the experiments: the paper's measure of test workers, and what is followed."""

import numpy as np
import pytest
import torch

import coterie as ct
from reproductions.training import begin, follow, worker_accuracy


def test_a_test_worker_takes_the_model_of_smallest_loss() -> None:
    """Two linear models for two clusters; choosing on half the labels leaves the other half to be scored on."""
    fed = ct.datasets.digits(transform="shift_labels", clusters=2, clients=8)
    task = ct.Task(ct.models.linear(64, 10))
    oracle = ct.fit(ct.Oracle(ct.LocalSGD(steps=40, lr=0.5, batch_size=None)), fed, task, rounds=5, alone=False)
    models = oracle.state.models
    own = worker_accuracy(models, fed, task, 40)
    assert own > 0.85
    assert worker_accuracy(models, fed, task, 40, "split") == pytest.approx(own, abs=0.05)
    one = {k: t[:1] for k, t in models.items()}
    assert worker_accuracy(one, fed, task, 40) == pytest.approx(own / 2, abs=0.1)  # right for half of the workers
    swapped = {k: torch.flip(t, [0]) for k, t in models.items()}
    assert worker_accuracy(swapped, fed, task, 40) == own


def test_accuracy_is_looked_at_after_every_so_many_rounds_and_at_the_end() -> None:
    fed = ct.datasets.digits(transform="shift_labels", clusters=2, clients=4)
    run = begin(ct.Oracle(ct.LocalSGD(steps=5, lr=0.5)), fed, ct.Task(ct.models.linear(64, 10)), 0)
    first = np.arange(4) < 2
    kept = follow(run, 3, 2, first, clusters=True)
    assert kept["round"] == [2, 3]
    assert kept["clusters"] == [1.0, 1.0]
    mine = run.evaluation().scores()["accuracy"].to_numpy()[first].mean()
    assert kept["accuracy"][-1] == pytest.approx(mine, abs=1e-5)
