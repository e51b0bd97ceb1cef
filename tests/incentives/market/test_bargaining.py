"""Nash bargaining (Proposition 2, Lemma 25), the quality cap (Lemma 24, Proposition 3) and the pacing constant."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.incentives import (
    Duopoly,
    equilibrium_revenues,
    nash_bargaining,
    nash_product,
    pacing_bound,
    pacing_constant,
    quality_cap,
)

ratios = st.floats(0.0, 1.0)
growths = st.floats(1.0, 50.0)


@pytest.mark.parametrize(
    ("start", "q_low"),
    [
        ((0.1, 0.5), 0.3685),
        ((0.2, 0.6), 0.3968),
        ((0.05, 0.9), 0.1342),
        ((0.1, 0.3), 0.4147),
        ((0.3, 0.6), 0.4423),
        ((0.5, 0.6), 0.4526),
    ],
)
def test_known_solutions(start: tuple[float, float], q_low: float) -> None:
    bargain = nash_bargaining(*start)
    assert float(bargain) == bargain.q_low == pytest.approx(q_low, abs=2e-4)
    assert bargain.q_high == 1
    assert bargain.ratio == bargain.q_low
    assert bargain.revenues == Duopoly(bargain.q_low, 1).revenues
    assert bargain.value == pytest.approx(np.prod(np.subtract(bargain.revenues, Duopoly(*start).revenues)))


@given(st.floats(0.01, 1.0), st.floats(0.01, 1.0), st.floats(0.2, 5.0))
@settings(deadline=None, derandomize=True)
def test_no_feasible_qualities_have_a_larger_nash_product(rho: float, high: float, q_max: float) -> None:
    low0, high0 = rho * high * q_max, high * q_max
    bargain = nash_bargaining(low0, high0, q_max)
    disagreement = Duopoly(low0, high0).revenues
    grid_low, grid_high = np.meshgrid(np.linspace(0.001, 1, 400) * q_max, np.linspace(high, 1, 7) * q_max)
    grid_low = np.minimum(grid_low, grid_high)
    products = nash_product(*equilibrium_revenues(grid_low, grid_high), disagreement)
    assert np.nanmax(products, initial=0.0) <= bargain.value + 1e-10 * q_max**2
    assert bargain.revenues.low >= disagreement.low - 1e-12
    assert bargain.revenues.high >= disagreement.high - 1e-12


@given(st.floats(0.01, 1.0), st.floats(0.01, 1.0), st.floats(0.1, 10.0))
@settings(deadline=None, derandomize=True)
def test_homogeneity(rho: float, high: float, scale: float) -> None:
    unit, scaled = nash_bargaining(rho * high, high), nash_bargaining(rho * high * scale, high * scale, scale)
    assert scaled.value == pytest.approx(scale**2 * unit.value, abs=1e-12)
    if unit.value > 1e-9:
        assert scaled.q_low == pytest.approx(scale * unit.q_low, rel=1e-6)


def test_ratio_stays_below_043_for_starts_below_it() -> None:
    largest = 0.0
    for rho in np.linspace(0.005, 1, 60):
        for high in np.linspace(0.01, 0.99, 40):
            ratio = nash_bargaining(rho * high, high).ratio
            if rho <= ratio:
                largest = max(largest, ratio)
    assert 0.42 < largest <= 0.43
    assert nash_bargaining(0.3, 0.3).ratio == pytest.approx(0.4244, abs=1e-4)  # no revenue to lose
    assert nash_bargaining(0.45, 0.8).ratio > 0.43  # a start above its own solution


def test_two_losses_are_not_an_agreement() -> None:
    disagreement = Duopoly(0.1, 0.5).revenues
    assert np.isnan(nash_product(0.0, 0.0, disagreement))
    assert nash_product(*disagreement, disagreement) == 0


@given(ratios, growths)
@settings(deadline=None, derandomize=True)
def test_cap_equals_the_printed_formula(a: float, b: float) -> None:
    if a < 0.999:
        printed = 4 - (4 - a) ** 2 / (2 * (1 - a)) * (b - math.sqrt(b**2 - 12 * (1 - a) * b / (4 - a) ** 2))
        assert quality_cap(a, b) == pytest.approx(printed, abs=1e-9)


@given(ratios, growths, growths)
@settings(deadline=None, derandomize=True)
def test_cap_is_a_growing_semigroup(a: float, b1: float, b2: float) -> None:
    assert quality_cap(a, 1.0) == pytest.approx(a, abs=1e-12)
    assert a - 1e-12 <= quality_cap(a, b1) <= 1 + 1e-12
    two_steps = quality_cap(np.clip(quality_cap(a, b1), 0.0, 1.0), b2)
    assert two_steps == pytest.approx(quality_cap(a, b1 * b2), abs=1e-9)


def test_slope_of_the_cap_and_arrays() -> None:
    a = np.linspace(0.0, 0.95, 20)
    slope = (np.asarray(quality_cap(a, 1 + 1e-7)) - a) / 1e-7
    np.testing.assert_allclose(slope, (1 - a) * (4 - a) / (2 + a), rtol=1e-5)
    assert quality_cap(1.0, 3.0) == pytest.approx(1)


@given(st.floats(0.02, 0.98), st.floats(0.1, 1.0), st.floats(1.0, 3.0), st.floats(0.0, 1.0))
@settings(deadline=None, derandomize=True)
def test_at_the_cap_the_high_firm_keeps_its_revenue_and_nobody_loses_below_it(
    rho: float, q_high: float, growth: float, where: float
) -> None:
    before = Duopoly(rho * q_high, q_high)
    cap = quality_cap(rho, growth) * growth * q_high
    after = Duopoly(cap, growth * q_high)
    assert after.revenues.high == pytest.approx(before.revenues.high, abs=1e-12)
    between = Duopoly(before.q_low + where * (cap - before.q_low), growth * q_high)
    assert between.revenues.low >= before.revenues.low - 1e-13
    assert between.revenues.high >= before.revenues.high - 1e-13
    if 1.01 * cap < growth * q_high:
        assert Duopoly(1.01 * cap, growth * q_high).revenues.high < before.revenues.high


def test_corrected_root_for_the_low_firm() -> None:
    """The proof of Proposition 3 lacks a factor q_h in the quality at which the *low* firm is as well off as before."""
    rho, before, now = 0.3, 0.5, 0.6
    root = math.sqrt((4 - rho) ** 2 * now**2 - 48 * rho * (1 - rho) * before * now)
    top = 8 * (1 - rho) * rho * before + (4 - rho) ** 2 * now + (4 - rho) * root
    q_low = now * top / (2 * ((1 - rho) * rho * before + (4 - rho) ** 2 * now))
    assert Duopoly(q_low, now).revenues.low == pytest.approx(Duopoly(rho * before, before).revenues.low)
    assert quality_cap(rho, now / before) * now <= q_low


def test_pacing_constant_and_where_it_is_attained() -> None:
    assert pacing_constant() == pytest.approx(1.0297, abs=1e-4)
    assert pacing_bound(0.34) == pytest.approx(pacing_constant(), abs=2e-5)
    expected = {0.0: 1.092, 0.33: 1.0299, 0.35: 1.0298, 0.5: 1.082, 0.7: 2.37}
    for rho, bound in expected.items():
        assert pacing_bound(rho) == pytest.approx(bound, abs=6e-4 if rho < 0.6 else 5e-3)
    assert pacing_bound(0.8) == pacing_bound(1.0) == math.inf
    assert min(pacing_bound(rho) for rho in np.linspace(0, 0.79, 80)) >= pacing_constant() - 1e-9


@given(st.floats(0.0, 0.79))
@settings(deadline=None, derandomize=True)
def test_pacing_inequality_holds_up_to_the_bound_and_fails_beyond_it(rho: float) -> None:
    def slack(b: float) -> float:
        return quality_cap(rho, b) - rho - (4 - 5 * rho) * math.log10(b)

    bound = pacing_bound(rho)
    assert all(slack(b) >= -1e-9 for b in np.geomspace(1, min(bound, 1e6), 20))
    if bound < 1e6:
        assert slack(1.01 * bound) < 0


def test_natural_logarithm_would_leave_no_pace_at_all() -> None:
    b = 1 + 1e-6
    assert (4 - 5 * 0.34) * math.log(b) > quality_cap(0.34, b) - 0.34


def test_growth_of_the_high_firm_pays_for_the_ratio() -> None:
    """(4 − 5ρ*) log₁₀(q_h*/q_h0) ≥ ρ* − ρ_0 for every start with q_l0 ≤ q_l* and ρ_0 ≤ ρ*."""
    gaps = []
    for high in np.linspace(0.05, 0.98, 40):
        for rho in np.linspace(0.01, 0.43, 30):
            ratio = nash_bargaining(rho * high, high).ratio
            if rho * high <= ratio and rho <= ratio:
                gaps.append((4 - 5 * ratio) * math.log10(1 / high) - (ratio - rho))
    assert len(gaps) > 900
    assert min(gaps) > 0


@pytest.mark.parametrize("bad", [(0.5, 0.1), (0.0, 0.5), (0.1, 1.2), (float("nan"), 0.5), (0.1, 0.5, float("inf"))])
def test_invalid_starts_are_refused(bad: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=r"0 < q_low0 <= q_high0 <= q_max|must be a finite number"):
        nash_bargaining(*bad)


def test_invalid_ratios_are_refused() -> None:
    with pytest.raises(ValueError, match="growth >= 1"):
        quality_cap(0.3, 0.9)
    with pytest.raises(ValueError, match="0 <= rho <= 1"):
        quality_cap(1.2, 1.1)
    with pytest.raises(ValueError, match="0 <= rho <= 1"):
        pacing_bound(-0.1)
