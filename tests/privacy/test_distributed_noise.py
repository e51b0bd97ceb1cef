"""Noise that several sites add in parts: what the accountant claims, against convolutions computed number by number."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from coterie.errors import ConfigError
from coterie.privacy.accounting import compose
from coterie.privacy.events import Event
from coterie.privacy.mechanisms.noise import ExactNoise, closeness
from coterie.privacy.mechanisms.sums import GroupSums, JointSum

Floats = NDArray[np.float64]
HERE = 60  # how far the numbers reach


def discrete(variance: float) -> Floats:
    """The probabilities of N_Z(0, variance) at −HERE … HERE."""
    x = np.arange(-HERE, HERE + 1)
    weight = np.exp(-(x**2) / (2 * variance))
    return np.asarray(weight / weight.sum())


def summed(variance: float, parts: int) -> Floats:
    one = found = discrete(variance)
    for _ in range(parts - 1):
        found = np.convolve(found, one)
    middle = len(found) // 2
    return np.asarray(found[middle - HERE : middle + HERE + 1])


@pytest.mark.parametrize(("variance", "parts"), list(product((0.51, 0.6, 0.8, 1.0), (2, 3, 5, 10))))
def test_a_sum_of_discrete_gaussians_is_as_close_to_one_as_the_accountant_says(variance: float, parts: int) -> None:
    sigma = math.sqrt(parts * variance)
    there = np.abs(np.arange(-HERE, HERE + 1)) < 4 * sigma  # beyond, the convolution's own rounding counts
    ratio = np.abs(np.log(summed(variance, parts)[there] / discrete(sigma**2)[there])).max()
    assert ratio <= closeness(sigma, parts)
    assert parts > 2 or ratio > closeness(sigma, parts) / 50  # the bound is of the right size


def delta_of(one: Floats, other: Floats, epsilon: float) -> float:
    return float(np.maximum(one - math.exp(epsilon) * other, 0).sum())


@pytest.mark.parametrize(("variance", "parts", "epsilon"), list(product((0.6, 0.8, 1.0), (2, 4), (0.5, 1.0, 2.0))))
def test_the_cost_of_one_release_is_at_least_that_of_the_convolution(
    variance: float, parts: int, epsilon: float
) -> None:
    """One coordinate that moves by 1: δ(ε) of the sum of the parts, computed number by number, against that of one discrete
    Gaussian with what the accountant adds for the difference."""
    sigma = math.sqrt(parts * variance)
    noise, whole = summed(variance, parts), discrete(sigma**2)
    event = Event("sum", 1.0, "1", sigma, sigma, 1, step=1.0, parts=parts)
    more = event.slack - replace(event, parts=1).slack
    assert more == pytest.approx(2 * closeness(sigma, parts))
    counted = math.exp(more) * delta_of(whole[:-1], whole[1:], epsilon - more)
    assert max(delta_of(noise[:-1], noise[1:], epsilon), delta_of(noise[1:], noise[:-1], epsilon)) <= counted
    assert compose([event]).slack == event.slack


def test_parts_that_are_too_small_are_refused() -> None:
    with pytest.raises(ConfigError, match="needs σ² ≥ 1/2"):
        closeness(1.0, 4)
    assert closeness(0.1, 1) == 0  # one part is a discrete Gaussian itself


MECHANISMS: list[Any] = [
    JointSum("sums", 3, 1.0, 0.02, bits=10, parts=4),
    GroupSums("sums", 2, 3, 1.0, 0.02, bits=10, parts=4),
]


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=["joint", "groups"])
def test_the_parts_together_have_the_noise_that_is_claimed(mechanism: Any) -> None:
    zero = np.zeros((4000, *mechanism.shape), np.int64)
    total = sum(mechanism.part(zero, ExactNoise()) for _ in range(mechanism.parts)) * mechanism.step
    wanted, found = mechanism.sigma**2, np.asarray(total).reshape(-1)
    assert abs((found**2).mean() - wanted) < 4 * wanted * math.sqrt(2 / len(found))
    assert mechanism.event().parts == 4
    assert mechanism.event().slack >= replace(mechanism, parts=1).event().slack
