"""What priors add to a loss: derivatives against finite differences, and the pull of a mixture."""

import numpy as np
import pytest
import torch
from torch import nn

import coterie as ct
from coterie.algorithms import priors
from coterie.algorithms.mixture_prior import MixturePriorState, responsibilities

CLASSES = {"cross_entropy": 3, "bce": 1, "mse": 1}


def batch(loss: str) -> ct.exchange.Context:
    draw = torch.Generator().manual_seed(0)
    task = ct.Task(lambda: nn.Linear(2, CLASSES[loss]), loss=loss)
    y = torch.randn(5, generator=draw).double() if loss == "mse" else torch.randint(0, 2, (5,), generator=draw)
    mask = torch.tensor([1, 1, 1, 1, 0], dtype=torch.float64)  # the last sample is padding
    x = torch.randn(5, 2, generator=draw).double()
    zero = torch.zeros((), dtype=torch.int64)
    return ct.exchange.Context(task, x, y, mask, mask.sum(), zero, zero, 0, task.init(0, torch.float64))


def slope(function, z):
    """Central differences."""
    flat, result = z.flatten(), torch.zeros_like(z).flatten()
    for i in range(len(flat)):
        e = torch.zeros_like(flat)
        e[i] = 1e-6
        result[i] = (function((flat + e).reshape(z.shape)) - function((flat - e).reshape(z.shape))) / 2e-6
    return result.reshape(z.shape)


@pytest.mark.parametrize("loss", CLASSES)
def test_derivatives_of_the_distillation_prior_and_of_the_loss(loss):
    b, draw = batch(loss), torch.Generator().manual_seed(1)
    teacher, student = (torch.randn(5, CLASSES[loss], generator=draw).double() for _ in range(2))
    close = {"rtol": 1e-6, "atol": 1e-8}
    torch.testing.assert_close(
        priors.by_student(b, teacher, student), slope(lambda z: priors.distillation(b, teacher, z), student), **close
    )
    torch.testing.assert_close(
        priors.by_teacher(b, teacher, student), slope(lambda z: priors.distillation(b, z, student), teacher), **close
    )
    value, by_z = priors.loss_and_slope(b, student)
    torch.testing.assert_close(by_z, slope(lambda z: priors.loss_and_slope(b, z)[0], student), **close)
    losses = b.task.sample_losses(student, b.y)
    torch.testing.assert_close(value, losses[:4].mean())
    assert priors.distillation(b, teacher, teacher) == 0 < priors.distillation(b, teacher, student)


def models(count: int):
    draw = torch.Generator().manual_seed(2)
    return {"a": torch.randn(count, 2, 3, generator=draw).double(), "b": torch.randn(count, 3, generator=draw).double()}


def test_a_mixture_pulls_to_all_means_by_their_responsibility():
    """Σ_l r_l (θ−μ_l)/σ_l², the derivative of −log Σ_l p_l N(θ; μ_l, σ_l²) (E13, E14), written as one pull."""
    means = models(3)
    theta = {k: t.mean(0) for k, t in means.items()}
    variances, shares = (torch.tensor(v, dtype=torch.float64) for v in ([4.0, 6.0, 5.0], [0.2, 0.5, 0.3]))
    expected = torch.func.grad(lambda p: priors.mixture(p, means, variances, shares))(theta)
    anchor, pull = ct.MixturePrior(clusters=3).pull(theta, state := MixturePriorState(means, variances, shares))
    weights = responsibilities(theta, state)
    assert float(weights.min()) > 0.01  # no component is out of the question: the test is of all of them
    for name, t in theta.items():
        torch.testing.assert_close(pull * (t - anchor[name]), expected[name])
    near = {k: t[1] + 0.01 for k, t in means.items()}
    assert int(responsibilities(near, MixturePriorState(means, variances * 0.01, shares)).argmax()) == 1


def test_an_l1_step_stops_at_the_centre():
    moved = priors.towards(torch.tensor([3.0, 0.9, -2.0]), torch.tensor([1.0, 1.0, 1.0]), 0.5)
    np.testing.assert_allclose(moved, [2.5, 1.0, -1.5])


def test_a_loss_of_ones_own_cannot_be_distilled(fed):
    task = ct.Task(lambda: nn.Linear(4, 3), loss=lambda z, y: z[:, 0] * 0 + 1.0)
    with pytest.raises(ct.errors.ConfigError, match="your own loss"):
        ct.fit(ct.AdaPeD(), fed, task, rounds=1)
