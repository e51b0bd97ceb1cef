"""Budget to noise and back: known values, two accountants that agree, and the published values that do not."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from coterie.errors import ConfigError
from coterie.privacy import Composition, Event, adaped_epsilon, compose, delta, epsilon, noise_multiplier
from coterie.privacy.accounting import cross_check, round_up
from coterie.privacy.gaussian_dp import delta_of, epsilon_of, mu_of
from coterie.privacy.poisson import gaussian, rdp_epsilon


@pytest.mark.parametrize(
    ("target", "expected"),
    [((15, 1e-10, 50), 3.387), ((15, 1e-10, 10), 1.515), ((3, 1e-6, 50), 10.917), ((3, 1e-6, 10), 4.882)],
)
def test_noise_with_everybody(target: tuple[float, float, int], expected: float) -> None:
    z = noise_multiplier(*target)
    assert z == pytest.approx(expected, rel=5e-4)
    assert epsilon(z, target[1], target[2]) <= target[0]
    assert epsilon(z * (1 - 1e-6), target[1], target[2]) > target[0]  # not more than needed


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ((3, 1e-4, 240, 1 / 3), 6.40),
        pytest.param((8, 1e-4, 240, 1 / 3), 2.91, marks=pytest.mark.slow),
        ((3, 1e-4, 480, 0.15), 4.13),
        pytest.param((8, 1e-4, 300, 0.1), 1.18, marks=pytest.mark.slow),
    ],
)
def test_noise_with_poisson_sampling(target: tuple[float, float, int, float], expected: float) -> None:
    z = noise_multiplier(*target)
    assert z == pytest.approx(expected, rel=5e-3)
    reached = epsilon(z, *target[1:])
    assert target[0] * (1 - 2e-4) <= reached <= target[0]


@given(st.floats(0.05, 6), st.floats(0.0, 20.0))
def test_the_closed_form_is_the_hockey_stick_of_two_gaussians(mu: float, e: float) -> None:
    x = np.linspace(-12, 12 + mu, 40_001)
    gap = np.maximum(norm.pdf(x - mu) - math.exp(e) * norm.pdf(x), 0)
    assert delta_of(mu, e) == pytest.approx(float(np.trapezoid(gap, x)), rel=1e-3, abs=1e-12)


@given(st.floats(0.01, 30), st.floats(1e-12, 0.1))
def test_the_inverses_invert(e: float, d: float) -> None:
    mu = mu_of(e, d)
    assert delta_of(mu, e) == pytest.approx(d, rel=1e-6, abs=0)
    assert epsilon_of(mu, d) == pytest.approx(e, rel=1e-6)


@pytest.mark.parametrize(
    ("z", "rounds", "d"), [(10.917, 50, 1e-6), (3.387, 50, 1e-10), (1.0, 1, 1e-5), (40.0, 100, 1e-8)]
)
def test_loss_distributions_agree_with_the_closed_form(z: float, rounds: int, d: float) -> None:
    exact = epsilon(z, d, rounds)
    assert gaussian(z, 1.0, rounds, 1e-4, "zero-out").get_epsilon_for_delta(d) == pytest.approx(exact, rel=1e-4)
    assert cross_check(Composition(mu=math.sqrt(rounds) / z), d)[1] == pytest.approx(exact, rel=1e-4)


@pytest.mark.parametrize(("z", "q", "rounds"), [(1.2, 0.1, 100), (4.0, 0.3, 50), (0.8, 0.02, 500)])
def test_renyi_is_never_below_loss_distributions(z: float, q: float, rounds: int) -> None:
    assert rdp_epsilon(((z, q, rounds),), 1e-5) >= epsilon(z, 1e-5, rounds, q)


def test_loss_distributions_agree_with_opacus() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        accountants: Any = pytest.importorskip(
            "opacus.accountants", reason="opacus is not installed: no second opinion"
        )
        for z, q, rounds in ((1.2, 0.1, 100), (4.0, 0.3, 50), (10.917, 1.0, 50)):
            prv = accountants.PRVAccountant()
            prv.history = [(z, q, rounds)]
            assert prv.get_epsilon(1e-5) == pytest.approx(epsilon(z, 1e-5, rounds, q), rel=0.01)


def test_sampling_helps_and_replacement_costs() -> None:
    everybody, half = epsilon(5.0, 1e-5, 20), epsilon(5.0, 1e-5, 20, 0.5)
    replaced = epsilon(5.0, 1e-5, 20, 0.5, adjacency="replace")
    assert half < replaced < everybody
    assert epsilon(5.0, 1e-5, 20, 1 - 1e-9, adjacency="replace") == pytest.approx(everybody, rel=1e-3)


def test_replace_with_sampling_covers_the_pair_of_opposite_users() -> None:
    """The bound must lie above the two users +c and −c, whose loss distribution dp-accounting knows."""
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution as pld

    for z, q, rounds in ((3.0, 0.2, 30), (1.0, 0.05, 10)):
        pair = pld.from_gaussian_mechanism(2 * z, sampling_prob=q, neighboring_relation=NeighboringRelation.REPLACE_ONE)
        assert epsilon(z, 1e-5, rounds, q, adjacency="replace") >= pair.self_compose(rounds).get_epsilon_for_delta(1e-5)


def event(**changes: Any) -> Event:
    return Event(**({"name": "x", "sensitivity": 1.0, "derivation": "", "sigma": 5.0, "dimension": 1} | changes))


def test_different_releases_compose_in_one_sum() -> None:
    parts = [event(noise_multiplier=4.0), event(noise_multiplier=10.0, count=9)]
    exact = compose(parts)
    assert exact.exact
    assert exact.mu == pytest.approx(math.sqrt(1 / 16 + 9 / 100))
    mixed = compose([*parts, event(noise_multiplier=2.0, sampling=0.1, count=20)])
    alone = compose([event(noise_multiplier=2.0, sampling=0.1, count=20)])
    assert (
        max(exact.epsilon(1e-5), alone.epsilon(1e-5)) < mixed.epsilon(1e-5) < exact.epsilon(5e-6) + alone.epsilon(5e-6)
    )
    assert mixed.delta(mixed.epsilon(1e-5)) == pytest.approx(1e-5, rel=1e-3)
    bits = event(kind="randomised response", pure_epsilon=0.5, noise_multiplier=0.0)
    assert compose([bits, bits]).epsilon(1e-5) == pytest.approx(1.0)
    assert compose([*parts, bits]).epsilon(1e-5) > exact.epsilon(1e-5)


def test_order_does_not_matter_and_reported_budgets_round_up() -> None:
    parts = [event(noise_multiplier=z, sampling=q) for z, q in ((3.0, 1.0), (2.0, 0.5), (4.0, 1.0))]
    assert compose(parts) == compose(parts[::-1])
    assert round_up(2.9999701, 4) == 3.0
    assert round_up(1.2341e-7) == 1.24e-7
    assert delta(5.0, 1.0, 10) == pytest.approx(delta_of(math.sqrt(10) / 5, 1.0))


def test_the_lattice_costs_little_and_is_counted() -> None:
    fine = event(noise_multiplier=5.0, sigma=5.0, step=2.0**-20, dimension=44_000)
    coarse = event(noise_multiplier=5.0, sigma=5.0, step=1.0, dimension=100)
    assert 0 < fine.slack < 1e-8
    assert coarse.slack > 0.1  # integers with σ = 5 in 100 coordinates are not as good as a continuous Gaussian
    assert compose([coarse]).epsilon(1e-5) > compose([fine]).epsilon(1e-5) + 0.1
    assert compose([event(noise_multiplier=0.01, sigma=0.01, step=0.5, dimension=10**6)]).epsilon(1e-6) == math.inf


def test_the_slack_covers_the_discrete_gaussian_in_one_dimension() -> None:
    """δ(ε) of the discrete Gaussian, summed exactly, is below the bound, for coarse lattices too."""
    for sigma, shift in ((1.5, 1), (4.0, 3), (10.0, 7)):
        made = event(noise_multiplier=sigma / shift, sigma=sigma, step=1.0)
        y = np.arange(-400, 401)
        mass = np.exp(-(y**2) / (2 * sigma**2)) / np.exp(-(y**2) / (2 * sigma**2)).sum()
        moved = np.exp(-((y - shift) ** 2) / (2 * sigma**2)) / np.exp(-((y - shift) ** 2) / (2 * sigma**2)).sum()
        for e in (0.05, 0.3, 1.0, 2.0):
            truth = np.maximum(moved - math.exp(e) * mass, 0).sum()
            assert truth <= compose([made]).delta(e) + 1e-15


def test_published_noise_that_does_not_hold() -> None:
    """The classical σ at (15, 1e-10); the d-dimensional local claim of ε = 0.5 with σ² = 8a² ln(2/δ)/ε²."""
    classical = math.sqrt(2 * math.log(1.25e10)) / 15
    assert classical == pytest.approx(0.4546, abs=1e-4)
    assert epsilon(classical, 1e-10, 1) == pytest.approx(15.94, abs=0.01)
    assert noise_multiplier(15, 1e-10, 1) == pytest.approx(0.4791, abs=1e-4)
    sigma = math.sqrt(8 * math.log(2e5)) / 0.5
    for d, truth in ((10, 1.22), (50, 2.98), (100, 4.44)):
        assert epsilon(sigma / (2 * math.sqrt(d)), 1e-5, 1) == pytest.approx(truth, abs=0.01)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: noise_multiplier(0, 1e-6, 5), "epsilon must be"),
        (lambda: noise_multiplier(float("nan"), 1e-6, 5), "epsilon must be"),
        (lambda: noise_multiplier(1, 0.0, 5), "delta must be a number from 1e-300 to below 1"),
        (lambda: noise_multiplier(1, 1e-6, 0), "rounds must be"),
        (lambda: noise_multiplier(1, 1e-6, 2.5), "rounds must be"),
        (lambda: noise_multiplier(1, 1e-6, 5, 1.2), "sampling must be a number above 0 and at most 1"),
        (lambda: epsilon(-1, 1e-6, 5), "noise_multiplier must be"),
        (lambda: epsilon(1, 1e-6, 5, adjacency="other"), "adjacency must be"),
        (lambda: delta(1, True, 5), "epsilon must be"),
    ],
)
def test_bad_input_is_one_sentence(call: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as error:
        call()
    assert "\n" not in str(error.value)


def test_extreme_settings_are_quick_and_never_under_report() -> None:
    """Budgets so large, or sampling so rare, that hardly any noise is needed; the answer holds all the same."""
    assert noise_multiplier(3, 1e-6, 1, sampling=1e-7) == 0.05  # the sampling alone is private enough
    for setting in ((30, 1e-6, 5, 0.05), (0.01, 1e-6, 1000, 0.1)):
        target, delta, rounds, sampling = setting
        z = noise_multiplier(target, delta, rounds, sampling)
        assert 0.999 * target <= epsilon(z, delta, rounds, sampling) <= target


def test_theorem_7_promises_less_than_holds() -> None:
    """22 of 66 clients and 240 rounds: at the noise for a promised ε of 9.1 its steps alone cost far more, and one step of
    one client in one round is a Gaussian of two clipped derivatives."""
    promised, holds = adaped_epsilon(2 * math.sqrt(2), 1.0, 1e-4, rounds=240, cohort=22, clients=66)
    assert promised == pytest.approx(9.105, rel=2e-3)
    assert holds > 2 * promised
    alone = adaped_epsilon(3.0, 1.0, 1e-5, rounds=1, cohort=1, clients=1, steps=1)[1]
    assert alone == pytest.approx(epsilon(3 / math.sqrt(2), 1e-5, 1))
