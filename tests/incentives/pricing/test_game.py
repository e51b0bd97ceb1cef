"""The one-shot pricing game: Theorem 6, Corollaries 2 and 3, best responses, and the true mixed equilibrium."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from coterie.incentives import PricingGame

EXAMPLE = PricingGame(0.5, 5, 15, 5, 5)
CASE_A = PricingGame(0.5, 10, 15, 2.5, 1)


@st.composite
def games(draw: st.DrawFn) -> PricingGame:
    low, spread = draw(st.floats(0.5, 20)), draw(st.floats(0.5, 20))
    mu, cost = draw(st.floats(0.05, 0.95)), draw(st.floats(0.05, 0.95))
    assume(abs(low - mu * (low + spread)) > 1e-3)
    return PricingGame(mu, low, low + spread, cost * spread, draw(st.floats(0.01, 10)))


def test_running_example() -> None:
    assert (EXAMPLE.alpha_star, EXAMPLE.q_star) == (0.5, 0.5)
    assert [EXAMPLE.seller_utility(a) for a in (0, 0.5, 1)] == [7.5, 8.75, 6.25]
    assert [EXAMPLE.buyer_utility(a) for a in (0, 0.5, 1)] == [0, 0, 2.5]
    assert EXAMPLE.seller_utility(0.5 + 1e-9) == 6.25  # the jump just above α*
    np.testing.assert_allclose(EXAMPLE.seller_utility(np.array([0, 0.5, 1])), [7.5, 8.75, 6.25])
    promise = EXAMPLE.commitment()
    assert (promise.alpha, promise.seller_utility, promise.buyer_utility, promise.blind_price) == (0.5, 8.75, 0, 15)


def test_equilibria_of_the_running_example() -> None:
    quiet, loud = EXAMPLE.equilibrium(0.5), EXAMPLE.equilibrium(1.0)
    assert (quiet.evasion, quiet.seller_utility) == (0, 8.75)
    assert (loud.evasion, loud.low_price_at_low_signal, loud.buyer_utility) == (0.5, 1.0, 2.5)
    mixed = EXAMPLE.equilibrium(0.8, kind="mixed")
    assert mixed.low_price_at_low_signal == pytest.approx(0.5 / 0.8)
    assert (mixed.evasion, mixed.seller_utility, mixed.buyer_utility) == (0.5, 6.25, 0)


def test_case_a() -> None:
    assert CASE_A.low_price_blind
    assert (CASE_A.q_star, CASE_A.blind_price, CASE_A.alpha_star) == (1, 10, 0.5)
    assert [CASE_A.seller_utility(a) for a in (0, 0.5, 1)] == [10, 11.25, 9.5]
    assert [CASE_A.buyer_utility(a) for a in (0, 0.5, 1)] == [5, 2.5, 2.5]
    assert CASE_A.equilibrium(0.9, "mixed").low_price_at_low_signal == 1


@given(games())
@settings(deadline=None, derandomize=True)
def test_order_of_utilities(game: PricingGame) -> None:
    star = game.alpha_star
    grid = np.linspace(0, 1, 201)
    assert np.max(game.seller_utility(grid)) <= game.seller_utility(star) + 1e-9
    assert game.seller_utility(star) > game.seller_utility(0.0) > game.seller_utility(1.0)
    if game.low_price_blind:
        assert game.buyer_utility(0.0) > game.buyer_utility(1.0)
        assert game.buyer_utility(1.0) == pytest.approx(game.buyer_utility(star))
    else:
        assert game.buyer_utility(1.0) > game.buyer_utility(0.0) == game.buyer_utility(star) == 0


@given(games(), st.floats(0, 1), st.sampled_from(["printed", "mixed"]))
@settings(deadline=None, derandomize=True)
def test_utilities_follow_from_prices_and_evasion(game: PricingGame, alpha: float, kind: str) -> None:
    e = game.equilibrium(alpha, kind)  # type: ignore[arg-type]
    blind_high = float(e.blind_price == game.high)
    payoffs = [
        a * game_payoff(1.0, 1 - e.low_price_at_low_signal, e.evasion)
        + b * game_payoff(blind_high, blind_high, e.evasion)
        for a, b, game_payoff in [(alpha, 1 - alpha, game.seller_payoff), (alpha, 1 - alpha, game.buyer_payoff)]
    ]
    assert payoffs == pytest.approx([e.seller_utility, e.buyer_utility], abs=1e-9)


def leader_objective(game: PricingGame, evasion: np.ndarray | float, alpha: float) -> np.ndarray:
    """g(q): a θ_H buyer's utility if the aware seller best-replies to q, ties going to θ_L (Theorem 6, part b)."""
    q = np.asarray(evasion)
    keeps_low = game.low * (q * game.mu + 1 - game.mu) >= game.high * q * game.mu - 1e-12 * game.high
    from_blind = (1 - alpha) * (game.high - game.blind_price)
    return from_blind + alpha * q * game.spread * keeps_low - game.buyer_cost * q


@given(games(), st.floats(0, 1))
@settings(deadline=None, derandomize=True)
def test_best_responses(game: PricingGame, alpha: float) -> None:
    """The mixed equilibrium survives every deviation; the printed one is a buyers' commitment (part b)."""
    gains = game.deviation_gains(game.equilibrium(alpha, "mixed"))
    assert max(gains) <= 1e-9
    printed = game.equilibrium(alpha)
    seller_gains = game.deviation_gains(printed)[:4]
    assert max(seller_gains) <= 1e-9
    q = np.append(np.linspace(0, 1, 1001), game.q_star)
    objective = leader_objective(game, q, alpha)
    assert objective.max() == pytest.approx(leader_objective(game, printed.evasion, alpha), abs=1e-9)
    assert printed.buyer_utility == pytest.approx(leader_objective(game, printed.evasion, alpha), abs=1e-9)


def test_the_printed_equilibrium_is_not_one_when_the_seller_is_fixed() -> None:
    """Case (b), α > α*: a θ_H buyer gains by evading with probability 1 (5 instead of 2.5)."""
    printed = EXAMPLE.equilibrium(1.0)
    assert EXAMPLE.deviation_gains(printed).buyer_high == pytest.approx(2.5)
    assert EXAMPLE.buyer_payoff(1, 0, 1.0) == pytest.approx(5)
    assert EXAMPLE.deviation_gains(EXAMPLE.equilibrium(1.0, "mixed")).buyer_high == pytest.approx(0)
    assert CASE_A.deviation_gains(CASE_A.equilibrium(1.0)).buyer_high == pytest.approx(0)


def test_payoff_table() -> None:
    prices = {"pd": (1, 0), "high": (1, 1), "low": (0, 0), "reverse": (0, 1)}
    table = {name: [float(EXAMPLE.seller_payoff(*p, q)) for q in (0, 0.5)] for name, p in prices.items()}
    assert table == {"pd": [10, 6.25], "high": [7.5, 6.25], "low": [5, 3.75], "reverse": [2.5, 3.75]}


def test_simulated_buyers_give_the_equilibrium_utilities() -> None:
    rng, n = np.random.default_rng(0), 200_000
    for game in (EXAMPLE, CASE_A):
        for alpha in (0.0, 0.5, 1.0):
            e = game.equilibrium(alpha)
            high = rng.random(n) < game.mu
            evades = high & (rng.random(n) < e.evasion)
            aware = rng.random(n) < alpha
            price = np.where(aware, np.where(high & ~evades, game.high, game.low), e.blind_price)
            buys = price <= np.where(high, game.high, game.low)
            seller = price * buys - game.seller_cost * evades
            assert seller.mean() == pytest.approx(e.seller_utility, abs=4 * seller.std() / n**0.5 + 1e-12)
            buyer = ((game.high - price) * buys - game.buyer_cost * evades)[high]
            assert buyer.mean() == pytest.approx(e.buyer_utility, abs=4 * buyer.std() / buyer.size**0.5 + 1e-12)


def test_alpha_typed_by_hand_is_still_alpha_star() -> None:
    game = PricingGame(0.5, 0.1, 0.4, 0.09, 0.1)  # c_B/Δθ is 0.3 up to rounding
    assert game.equilibrium(0.3).evasion == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 5, 15, 5, 5), "mu"),
        ((1, 5, 15, 5, 5), "mu"),
        ((0.5, 15, 5, 5, 5), "low < high"),
        ((0.5, 0, 15, 5, 5), "low to be a finite number above 0"),
        ((0.5, 5, 15, 10, 5), "buyer_cost"),
        ((0.5, 5, 15, -1, 5), "buyer_cost"),
        ((0.5, 5, 15, 5, -1), "seller_cost"),
        ((float("nan"), 5, 15, 5, 5), "mu"),
    ],
)
def test_invalid_games_are_refused(arguments: tuple[float, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PricingGame(*arguments)


def test_invalid_alpha_and_kind_are_refused() -> None:
    for call in (EXAMPLE.seller_utility, EXAMPLE.buyer_utility, EXAMPLE.equilibrium):
        with pytest.raises(ValueError, match="probability"):
            call(1.1)
    with pytest.raises(ValueError, match="kind"):
        EXAMPLE.equilibrium(0.5, "true")  # type: ignore[arg-type]
