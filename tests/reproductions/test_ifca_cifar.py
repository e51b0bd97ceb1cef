"""Random models of IFCA are drawn anew until each attracts enough clients."""

import numpy as np
import pytest

import coterie as ct
from coterie.errors import ConfigError
from reproductions import ifca_cifar
from reproductions.ifca_cifar import attractive
from reproductions.training import begin


def attracted(run):
    return np.bincount(run.evaluation().clusters(), minlength=2)


def test_models_that_attract_too_few_are_drawn_anew():
    data, task = ct.datasets.digits(transform="rotate", clients=20, seed=0), ct.Task(ct.models.mlp(64, 10, 10))
    random = ct.IFCA(clusters=2, local=ct.LocalSGD(steps=1), start="random")
    assert attracted(begin(random, data, task, 1)).min() < 7
    assert attracted(attractive(random, data, task, 1)).min() >= 7
    for seed, algorithm in ((0, random), (1, ct.FedAvg(ct.LocalSGD(steps=1)))):  # a good draw, and nothing to draw
        first = begin(algorithm, data, task, seed).state
        kept = attractive(algorithm, data, task, seed).state
        name = "models" if algorithm is random else "model"
        for key, value in getattr(first, name).items():
            np.testing.assert_array_equal(value, getattr(kept, name)[key])


def test_draws_that_all_attract_too_few_end_in_a_sentence(monkeypatch):
    data, task = ct.datasets.digits(transform="rotate", clients=20, seed=0), ct.Task(ct.models.mlp(64, 10, 10))
    monkeypatch.setattr(ifca_cifar, "DRAWS", 1)
    with pytest.raises(ConfigError, match="none of 1 draws"):
        attractive(ct.IFCA(clusters=2, local=ct.LocalSGD(steps=1), start="random"), data, task, 1)
