"""Ditto between its two ends."""

import numpy as np
import pytest
import torch

import coterie as ct

LOCAL = ct.LocalSGD(steps=3, lr=0.05, batch_size=5)


def test_without_pull_it_is_training_alone(world):
    fed, _ = world.planted(2, 8)
    ditto, alone, one = (
        ct.fit(a, fed, world.linear(4), rounds=5, alone=False)
        for a in (ct.Ditto(lam=0.0, local=LOCAL), ct.Local(LOCAL), ct.FedAvg(LOCAL))
    )
    np.testing.assert_allclose(world.personal(ditto), world.personal(alone), rtol=1e-12)
    np.testing.assert_allclose(ditto.state.model["weight"], one.state.model["weight"], rtol=1e-12)  # w is FedAvg's
    assert abs(world.personal(ditto) - world.personal(one)).max() > 0.1


def test_with_endless_pull_it_is_the_global_model_it_was_sent(world):
    fed, _ = world.planted(2, 8)
    ditto = ct.fit(ct.Ditto(lam=1e12, local=LOCAL), fed, world.linear(4), rounds=5, alone=False)
    before = ct.fit(ct.FedAvg(LOCAL), fed, world.linear(4), rounds=4, alone=False)
    np.testing.assert_allclose(world.personal(ditto), world.personal(before), atol=1e-9)


def test_one_step_by_hand(world):
    """v ← v − η(∇F(v) + λ(v − w)), from v = w: only the second round pulls."""
    fed = world.quadratics([[0.0], [10.0]])
    start = {"weight": torch.tensor([[4.0]], dtype=torch.float64)}
    step = ct.LocalSGD(steps=1, lr=0.1, batch_size=None)
    result = ct.fit(ct.Ditto(lam=2.0, local=step), fed, world.linear(1), rounds=2, start=start, alone=False)
    w1 = (4 - 0.1 * 8 + 4 + 0.1 * 12) / 2
    v = [4 - 0.1 * 8, 4 + 0.1 * 12]
    v = [x - 0.1 * (2 * (x - c) + 2 * (x - w1)) for x, c in zip(v, (0, 10), strict=True)]
    np.testing.assert_allclose(world.personal(result).ravel(), v, rtol=1e-12)


def test_a_negative_pull_is_refused():
    with pytest.raises(ct.errors.ConfigError, match="lam"):
        ct.Ditto(lam=-1.0)
