"""Any number of firms, any density of types: agreement with the closed forms, and best-response checks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from coterie.incentives import Duopoly, Market


@given(st.floats(0.02, 1.0), st.floats(0.02, 1.0))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_two_firms_and_uniform_types_equal_the_closed_forms(first: float, second: float) -> None:
    market, exact = Market([first, second]), Duopoly(first, second)
    np.testing.assert_allclose(market.prices, exact.prices, atol=1e-12)
    np.testing.assert_allclose(market.revenues, exact.revenues, atol=1e-12)
    if first != second:
        np.testing.assert_allclose(market.demands, exact.demands, atol=1e-8)


@pytest.mark.parametrize("types", [lambda x: np.ones_like(x), lambda x: 7.0, stats.uniform(0, 1), stats.beta(1, 1)])
def test_all_ways_to_say_uniform_agree(types: object) -> None:
    market, exact = Market([0.3, 0.9], types), Duopoly(0.3, 0.9)  # type: ignore[arg-type]
    np.testing.assert_allclose(market.prices, exact.prices, atol=1e-9)
    np.testing.assert_allclose(market.demands, exact.demands, atol=1e-8)  # prices alone would not show a wrong total


@given(st.floats(0, 0.6), st.floats(0, 1.2))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_demand_at_any_prices_equals_the_duopoly(p_low: float, p_high: float) -> None:
    np.testing.assert_allclose(
        Market([0.4, 0.8]).demands_at([p_low, p_high]), Duopoly(0.4, 0.8).demands_at(p_low, p_high), atol=1e-12
    )


DENSITIES = {
    "uniform": None,
    "beta(2, 3)": stats.beta(2, 3),
    "u-shaped": stats.beta(0.5, 0.5),
    "narrow": stats.beta(20, 20),
    "rich": stats.uniform(0.8, 0.2),
    "falling": lambda x: 2 - 2 * x,
    "tent": lambda x: 1 - np.abs(2 * x - 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DENSITIES)
@pytest.mark.parametrize("qualities", [(0.3, 0.9), (0.9, 0.3, 0.6), (0.2, 0.5, 0.55, 0.9, 1.0)])
def test_no_firm_gains_by_another_price_on_an_independent_grid(name: str, qualities: tuple[float, ...]) -> None:
    market = Market(qualities, DENSITIES[name])
    prices, revenues = market.prices, market.revenues
    for firm, quality in enumerate(qualities):
        for scale in (np.linspace(0, 1.05, 120) * quality, np.linspace(0.5, 1.5, 81) * prices[firm]):
            trials = np.tile(prices, (scale.size, 1))
            trials[:, firm] = scale
            best = max(market.revenues_at(row)[firm] for row in trials)
            assert best <= revenues[firm] + 1e-8
    assert market.demands.sum() <= 1 + 1e-12
    assert market.deviation_gains(1.3 * prices + 0.01).max() > 1e-4  # other prices are not an equilibrium


def test_simulated_consumers_choose_as_the_demand_says() -> None:
    qualities, prices = np.array([0.3, 0.9, 0.6]), np.array([0.05, 0.42, 0.18])
    theta = np.sort(np.random.default_rng(1).beta(2, 3, 200_000))
    choice = np.argmax(np.column_stack([np.zeros_like(theta), theta[:, None] * qualities - prices]), axis=1)
    shares = np.bincount(choice, minlength=4)[1:] / theta.size
    np.testing.assert_allclose(
        Market(qualities, stats.beta(2, 3)).demands_at(prices), shares, atol=4 * 0.5 / 200_000**0.5
    )


def test_twins_earn_nothing_and_pull_worse_firms_down() -> None:
    market = Market([0.2, 0.5, 0.5, 0.9])
    np.testing.assert_allclose(market.prices, [0, 0, 0, 0.2], atol=1e-12)
    np.testing.assert_allclose(market.demands, [0, 0.25, 0.25, 0.5], atol=1e-12)
    np.testing.assert_allclose(Market([0.7, 0.7, 0.7]).revenues, 0, atol=1e-12)


def test_order_of_firms_does_not_matter() -> None:
    qualities = np.array([0.8, 0.2, 0.5])
    order = np.array([2, 0, 1])
    np.testing.assert_allclose(Market(qualities[order]).prices, Market(qualities).prices[order], atol=1e-12)


def test_more_competition_lowers_prices() -> None:
    assert Market([0.3, 0.6, 0.9]).prices[2] < Duopoly(0.3, 0.9).prices.high


def test_a_market_without_equilibrium_in_prices_says_so() -> None:
    def two_peaks(x: np.ndarray) -> np.ndarray:
        return stats.norm.pdf(x, 0.3, 0.01) + stats.norm.pdf(x, 0.9, 0.01)

    with pytest.raises(ValueError, match="No price equilibrium was found"):
        _ = Market([0.3, 0.9], two_peaks).prices


@pytest.mark.parametrize("bad", [[0.5], [], [0.5, 0.0], [0.5, float("nan")], [[0.1, 0.2]]])
def test_invalid_qualities_are_refused(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="two or more positive"):
        Market(bad)


@pytest.mark.parametrize(
    ("types", "message"),
    [
        (stats.norm(0.5, 0.1), r"must lie in \[0, 1\]"),
        (lambda x: -np.ones_like(x), "finite and non-negative"),
        (lambda x: np.zeros_like(x), "positive somewhere"),
        (stats.beta(0.5, 0.5).pdf, "finite and non-negative"),
        (3, "must be a density"),
    ],
)
def test_invalid_densities_are_refused(types: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Market([0.3, 0.9], types)  # type: ignore[arg-type]


def test_invalid_prices_are_refused() -> None:
    with pytest.raises(ValueError, match="one price >= 0 per firm"):
        Market([0.3, 0.9]).demands_at([0.1])
    with pytest.raises(ValueError, match="one price >= 0 per firm"):
        Market([0.3, 0.9]).revenues_at([0.1, -0.1])


@pytest.mark.parametrize("types", [None, stats.beta(2, 3)])
@pytest.mark.parametrize(("qualities", "costs"), [((0.3, 0.9, 0.6), (0.02, 0.1, 0.05)), ((0.4, 0.8), (0.0, 0.3))])
def test_profits_with_costs_have_no_better_price_on_a_grid(
    qualities: tuple[float, ...], costs: tuple[float, ...], types: object
) -> None:
    market = Market(qualities, types, costs)  # type: ignore[arg-type]
    for firm, quality in enumerate(qualities):
        for price in np.linspace(0, quality, 80):
            trial = market.prices.copy()
            trial[firm] = price
            assert (price - costs[firm]) * market.demands_at(trial)[firm] <= market.profits[firm] + 1e-8
    dearer = Market(qualities, types)  # type: ignore[arg-type]
    assert market.consumer_surplus < dearer.consumer_surplus
    np.testing.assert_allclose(dearer.profits, dearer.revenues)


def test_consumer_surplus_is_what_simulated_consumers_gain() -> None:
    market = Market([0.3, 0.9, 0.6], stats.beta(2, 3))
    theta = np.random.default_rng(2).beta(2, 3, 200_000)
    gains = np.maximum((theta[:, None] * np.array(market.qualities) - market.prices).max(axis=1), 0)
    assert abs(market.consumer_surplus - gains.mean()) < 4 * gains.std() / 200_000**0.5


def test_lying_pays_where_consumers_believe_it_and_one_is_not_near_a_rival() -> None:
    market = Market([0.3, 0.9])
    for claim in (0.2, 0.5, 0.8):
        exact = Duopoly(claim, 0.9).revenues.low - Duopoly(0.3, 0.9).revenues.low
        assert market.lying_gain(0, claim) == pytest.approx(exact)
    assert market.lying_gain(0, 0.5) > 0 > market.lying_gain(0, 0.89)
    with pytest.raises(ValueError, match="costs"):
        Market([0.3, 0.9], costs=[0.1])
