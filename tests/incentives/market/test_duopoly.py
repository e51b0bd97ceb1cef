"""Lemma 22, Lemma 23 and Proposition 1: equilibrium prices, revenues and their derivatives for two firms."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.incentives import Duopoly, equilibrium_revenues

qualities = st.tuples(st.floats(0.01, 0.98), st.floats(0.02, 1.0)).filter(lambda q: q[0] < 0.99 * q[1])


def revenue_derivatives(low: float, high: float) -> np.ndarray:
    """The 2×2 matrix ∂U_i/∂q_j of equilibrium revenues, low firm first (Proposition 1)."""
    by_role = [
        [high**2 * (4 * high - 7 * low), low**2 * (2 * high + low)],
        [-4 * high**2 * (2 * high + low), 4 * high * (4 * high**2 - 3 * high * low + 2 * low**2)],
    ]
    return np.array(by_role) / (4 * high - low) ** 3


def best_replies(market: Duopoly, p_low: float, p_high: float) -> tuple[float, float]:
    """Each firm's best price against the other's: where both sell, a monopoly price, or where one firm just drops out."""
    low, high = market.q_low, market.q_high
    low_candidates = (low * p_high / (2 * high), low / 2, p_high - (high - low))
    high_candidates = ((p_low + high - low) / 2, high / 2, p_low * high / low)
    return (
        max((max(0.0, p) for p in low_candidates), key=lambda p: market.revenues_at(p, p_high).low),
        max((max(0.0, p) for p in high_candidates), key=lambda p: market.revenues_at(p_low, p).high),
    )


def test_closed_forms_by_hand() -> None:
    market = Duopoly(0.3, 0.9)  # 4 q_h − q_l = 3.3
    assert market.prices == pytest.approx((0.3 * 0.6 / 3.3, 1.8 * 0.6 / 3.3))
    assert market.revenues == pytest.approx((0.3 * 0.9 * 0.6 / 3.3**2, 4 * 0.81 * 0.6 / 3.3**2))
    assert market.demands == pytest.approx((0.9 / 3.3, 1.8 / 3.3))
    assert market.prices.low < market.prices.high


@given(qualities)
@settings(deadline=None, derandomize=True)
def test_equilibrium_is_consistent_with_demand_at_any_price(q: tuple[float, float]) -> None:
    market = Duopoly(*q)
    assert market.demands_at(*market.prices) == pytest.approx(market.demands)
    assert market.revenues_at(*market.prices) == pytest.approx(market.revenues)
    rho = q[0] / q[1]
    assert market.revenues.high == pytest.approx(q[1] * 4 * (1 - rho) / (4 - rho) ** 2)
    assert market.revenues.low == pytest.approx(rho / 4 * market.revenues.high)


def test_no_price_on_a_grid_is_a_profitable_deviation() -> None:
    rng = np.random.default_rng(0)
    for _ in range(10):
        low, high = np.sort(rng.uniform(0.05, 1, 2))
        market = Duopoly(low, high)
        prices, revenues = market.prices, market.revenues
        grid = np.linspace(0, 1.1, 2001)
        assert max(market.revenues_at(p, prices.high).low for p in grid) <= revenues.low + 1e-12
        assert max(market.revenues_at(prices.low, p).high for p in grid) <= revenues.high + 1e-12
        # and prices that are not the equilibrium do leave a gain, so that the check can fail
        assert max(market.revenues_at(p, 1.3 * prices.high).low for p in grid) > (
            market.revenues_at(prices.low, 1.3 * prices.high).low + 1e-6
        )


@given(qualities.filter(lambda q: q[0] < 0.95 * q[1]), st.floats(0.001, 3.0), st.floats(0.001, 3.0))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_best_replies_converge_to_the_equilibrium_from_any_start(
    q: tuple[float, float], p_low: float, p_high: float
) -> None:
    market = Duopoly(*q)
    prices = (p_low, p_high)
    for _ in range(150):
        prices = best_replies(market, *prices)
    assert tuple(prices) == pytest.approx(tuple(market.prices), abs=1e-9)


def test_best_replies_are_the_printed_reactions_inside_and_right_outside() -> None:
    market = Duopoly(0.4, 0.8)
    assert best_replies(market, 0.05, 0.3) == pytest.approx((0.4 * 0.3 / 1.6, (0.05 + 0.4) / 2))
    assert best_replies(market, 0.39, 5.0) == pytest.approx((0.2, 0.4))  # monopoly prices q/2: the rival is out
    grid = np.linspace(0, 1, 4001)
    for p_low, p_high in [(0.02, 0.1), (0.3, 0.5), (0.25, 0.7)]:
        low, high = best_replies(market, p_low, p_high)
        assert max(market.revenues_at(p, p_high).low for p in grid) <= market.revenues_at(low, p_high).low + 1e-12
        assert max(market.revenues_at(p_low, p).high for p in grid) <= market.revenues_at(p_low, high).high + 1e-12


@given(qualities)
@settings(deadline=None, derandomize=True)
def test_derivatives_match_finite_differences_and_their_signs(q: tuple[float, float]) -> None:
    low, high = q
    exact, step = revenue_derivatives(low, high), 1e-6 * low
    for column, shift in enumerate([(step, 0.0), (0.0, step)]):
        up, down = (equilibrium_revenues(low + s * shift[0], high + s * shift[1]) for s in (1, -1))
        assert exact[:, column] == pytest.approx((np.array(up) - np.array(down)) / (2 * step), abs=1e-7)
    assert exact[1, 1] >= 0
    assert exact[1, 0] <= 0
    assert exact[0, 1] >= 0
    if abs(low - 4 * high / 7) > 1e-6:
        assert (exact[0, 0] > 0) == (low < 4 * high / 7)


def test_equal_qualities_earn_nothing() -> None:
    market = Duopoly(0.7, 0.7)
    assert market.prices == (0, 0)
    assert market.revenues == (0, 0)
    assert sum(market.demands) == pytest.approx(1)
    assert market.demands_at(0.2, 0.3) == pytest.approx((1 - 0.2 / 0.7, 0))
    assert market.demands_at(0.2, 0.2) == pytest.approx(((1 - 0.2 / 0.7) / 2,) * 2)


@given(qualities)
@settings(deadline=None, derandomize=True)
def test_roles_swap_when_the_low_firm_overtakes(q: tuple[float, float]) -> None:
    before, after = Duopoly(*q), Duopoly(q[1], q[0])
    assert after.swapped
    assert not before.swapped
    assert after.prices == before.prices[::-1]
    assert after.revenues == before.revenues[::-1]
    assert min(after.revenues) >= 0  # using the printed formulas with q_l > q_h would give negative revenues
    assert after.demands == before.demands[::-1]
    assert after.demands_at(0.2, 0.1) == before.demands_at(0.1, 0.2)[::-1]


def test_demand_when_the_low_offer_is_dominated_or_prices_are_absurd() -> None:
    market = Duopoly(0.4, 0.8)
    assert market.demands_at(0.3, 0.4) == pytest.approx((0, 0.5))
    assert market.demands_at(9, 9) == (0, 0)
    assert market.demands_at(0, 0) == pytest.approx((0, 1))
    assert market.demands_at(0.1, 0.7) == pytest.approx((1 - 0.25, 0))


@pytest.mark.parametrize("bad", [(0, 0.5), (-0.1, 0.5), (0.5, float("nan")), (0.5, float("inf"))])
def test_invalid_qualities_are_refused(bad: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="positive, finite qualities"):
        Duopoly(*bad)


def test_invalid_prices_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 0"):
        Duopoly(0.2, 0.4).demands_at(-0.1, 0.2)
