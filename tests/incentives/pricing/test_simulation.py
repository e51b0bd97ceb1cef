"""The repeated pricing game: the belief estimator, Propositions 7–10, biased beliefs, and where the theory breaks."""

from dataclasses import dataclass

import numpy as np
import pytest

from coterie.incentives import (
    BUYERS,
    CBER,
    SELLERS,
    AdaptiveStackelberg,
    FixedEvasion,
    LearningSeller,
    Mixed,
    Prices,
    PricingGame,
    Sales,
    Simulation,
    Stackelberg,
    View,
    policy_regret,
    simulate,
)
from coterie.incentives.pricing.sellers import exp3_rate
from reproductions.pricing import bias_sweep

EXAMPLE = PricingGame(0.5, 5, 15, 5, 5)
CASE_A = PricingGame(0.5, 10, 15, 2.5, 1)
OPTIMUM = EXAMPLE.commitment().seller_utility


@pytest.fixture(scope="module")
def played() -> Simulation:
    return simulate(EXAMPLE, "all", rounds=8000, seeds=12)


def final(simulation: Simulation, seller: str, column: str) -> np.ndarray:
    rows = simulation.final
    return rows.loc[rows["seller"] == seller, column].to_numpy()


def near(values: np.ndarray, target: float, floor: float = 0.0) -> bool:
    """Is the mean over seeds within four standard errors of the target?"""
    return abs(values.mean() - target) <= 4 * values.std(ddof=1) / values.size**0.5 + floor


def test_discriminating_always_has_no_regret_and_earns_little(played: Simulation) -> None:
    assert np.abs(played.array("regret")[played.sellers.index("pd")]).max() < 1e-9
    assert near(final(played, "pd", "seller_utility"), 6.25, floor=0.01)
    assert near(final(played, "pd", "buyer_utility"), 2.5, floor=0.01)
    assert final(played, "pd", "belief") == pytest.approx(1, abs=0.02)


def test_never_discriminating_earns_the_blind_equilibrium(played: Simulation) -> None:
    assert near(final(played, "no-pd", "seller_utility"), 7.5)
    assert (final(played, "no-pd", "belief") == 0).all()
    assert (final(played, "no-pd", "truthful_share") == 1).all()


def test_no_regret_learner_ends_below_the_commitment(played: Simulation) -> None:
    """Proposition 8: CExp3 has little regret, and therefore loses the buyers' truthfulness: 6.25 < 8.75."""
    utility = final(played, "cexp3", "seller_utility")
    assert final(played, "cexp3", "regret").mean() < 0.12
    assert 6.1 < utility.mean() < 6.4
    assert final(played, "cexp3", "belief").min() > 0.5
    buyers = final(played, "cexp3", "buyer_utility")
    assert (buyers > 0).all()
    assert (buyers < 2.5).all()


@pytest.mark.slow
def test_blind_exp3_never_discriminates_and_approaches_the_blind_equilibrium(played: Simulation) -> None:
    assert (final(played, "exp3", "belief") == 0).all()
    assert (final(played, "exp3", "pd") + final(played, "exp3", "reverse_pd") == 0).all()
    assert 7.2 < final(played, "exp3", "seller_utility").mean() < 7.5
    assert final(played, "exp3", "high_high").min() > 0.85
    gap = 7.5 - simulate(EXAMPLE, "exp3", rounds=32_000, seeds=4).seller_utility.mean()
    assert gap < 0.7 * (7.5 - final(played, "exp3", "seller_utility").mean())  # shrinks like 1/√T


@pytest.mark.slow
def test_exact_commitment_does_not_converge(played: Simulation) -> None:
    """At exactly α* the belief walks around the buyers' threshold: truthful shares spread over all of [0, 1]."""
    utility = final(played, "stackelberg", "seller_utility")
    assert utility.max() - utility.min() > 1.5
    assert utility.mean() < OPTIMUM - 0.5
    share = final(played, "stackelberg", "truthful_share")
    assert share.min() < 0.2
    assert share.max() > 0.8
    longer = simulate(EXAMPLE, "stackelberg", rounds=32_000, seeds=12).seller_utility
    assert longer.std() > 0.5  # four times the rounds do not help


def test_commitment_below_alpha_star_converges_to_its_value(played: Simulation) -> None:
    limit = 7.5 + 0.45 * 2.5
    utility = final(played, "stackelberg-eps", "seller_utility")
    assert utility.mean() == pytest.approx(limit, abs=0.06)
    assert utility.std() < 0.05
    wide = simulate(EXAMPLE, Stackelberg(epsilon=0.2), rounds=4000, seeds=12).seller_utility[0]
    assert near(wide, 7.5 + 0.3 * 2.5, floor=0.02)


@pytest.mark.parametrize("seller", [AdaptiveStackelberg(), AdaptiveStackelberg(known_mu=False, margin=0.005)])
@pytest.mark.parametrize("game", [EXAMPLE, CASE_A, PricingGame(0.3, 4, 20, 6, 2)])
def test_adaptive_commitment_reaches_the_optimum_and_buyers_stay_truthful(
    seller: AdaptiveStackelberg, game: PricingGame
) -> None:
    result = simulate(game, seller, rounds=6000, seeds=8)
    best = game.commitment().seller_utility
    slope = (best - float(game.seller_utility(0.0))) / game.alpha_star
    assert near(result.seller_utility[0], best - seller.margin * slope, floor=0.01 * best)
    assert result.final["truthful_share"].min() > 0.99


@dataclass(frozen=True)
class Wandering:
    """A seller whose two probabilities change with time in an arbitrary way."""

    speed_high: float
    speed_low: float
    phase: float

    def init(self, game: PricingGame, rounds: int, shape: tuple[int, ...]) -> np.ndarray:
        return np.zeros(shape)

    def prices(self, state: np.ndarray, view: View, draws: np.ndarray) -> Prices:
        hh = 0.5 + 0.5 * np.sin(self.speed_high * view.t + self.phase)
        hl = 0.5 + 0.5 * np.cos(self.speed_low * view.t)
        return Prices(draws[0] < hh, draws[1] < hl, hh, hl, hh * (1 - hl) + (1 - hh) * hl)

    def update(self, state: np.ndarray, prices: Prices, sales: Sales) -> np.ndarray:
        assert ((sales.high_signals + sales.low_signals) == 10).all()
        return state


@pytest.mark.slow
def test_no_seller_beats_the_commitment(played: Simulation) -> None:
    """Proposition 10, over all sellers here, time-varying ones, and constant mixtures."""
    rng = np.random.default_rng(5)
    sellers = {f"w{i}": Wandering(*rng.uniform(0, 0.02, 2), rng.uniform(0, 6)) for i in range(4)}
    sellers |= {f"m{i}": Mixed(*rng.uniform(0, 1, 2)) for i in range(4)}
    others = simulate(EXAMPLE, sellers, rounds=4000, seeds=6)
    for result in (played, others):
        margin = 4 * 7.5 / (result.n_buyers * result.rounds) ** 0.5  # one buyer's revenue has a deviation below 7.5
        assert result.seller_utility.max() <= OPTIMUM + margin + 0.02


def test_estimator_is_unbiased_up_to_its_factor_and_concentrates() -> None:
    """E[α̂_t] = (1/t) Σ_{τ<t} α_τ; here t = rounds + 1 and α is constant."""
    rounds, seeds, delta = 400, 400, 1e-6
    for hh, hl, buyers in [(1.0, 0.8, "truthful"), (1.0, 0.2, "strategic"), (0.4, 0.7, "strategic")]:
        alpha = hh * (1 - hl) + (1 - hh) * hl
        result = simulate(EXAMPLE, Mixed(hh, hl), buyers, rounds=rounds, seeds=seeds, checkpoints=1)
        belief = result.final["belief"].to_numpy()
        target = rounds * alpha / (rounds + 1)
        assert near(belief, target)
        weight = 0.998047 if buyers == "truthful" else 0.943686
        assert np.abs(belief - target).max() <= np.sqrt(np.log(2 * seeds / delta) / (2 * rounds)) / weight
        assert result.final["alpha_bar"].to_numpy() == pytest.approx(alpha)


@dataclass(frozen=True)
class Recorder:
    """Charges as Mixed(1, 0.5) and notes S_t, w_t and X_t I_t of every round."""

    seen: list[list[float]]

    def init(self, game: PricingGame, rounds: int, shape: tuple[int, ...]) -> np.ndarray:
        return np.zeros(shape)

    def prices(self, state: np.ndarray, view: View, draws: np.ndarray) -> Prices:
        assert view.t == view.counted[0]
        self.seen.append([view.evidence[0], view.weight[0], 0.0])
        return Mixed(1.0, 0.5).prices(state, view, draws)

    def update(self, state: np.ndarray, prices: Prices, sales: Sales) -> np.ndarray:
        informative = sales.high_signals[0] > 0 and sales.low_signals[0] > 0
        self.seen[-1][2] = float(informative and prices.high_at_high[0] != prices.high_at_low[0])
        return state


def test_belief_follows_the_recursion_round_by_round() -> None:
    """α̂_t = S_t/t, S_{t+1} = S_t + X_t I_t/w_t, and w_t is that of the signals the belief α̂_t leads to."""
    recorder = Recorder([])
    result = simulate(EXAMPLE, recorder, rounds=300, seeds=[7], n_buyers=3, checkpoints=300)
    evidence, weight, differ = np.array(recorder.seen).T
    steps = differ / weight
    np.testing.assert_allclose(evidence, np.cumsum(steps) - steps)
    rounds = np.arange(1, 301)
    evading = evidence / rounds > EXAMPLE.alpha_star
    assert 0 < evading.mean() < 1
    np.testing.assert_allclose(weight, np.where(evading, 1 - 0.25**3 - 0.75**3, 1 - 2 * 0.5**3))
    np.testing.assert_allclose(result.array("belief")[0, 0], np.cumsum(steps) / (rounds + 1))


@pytest.mark.slow
def test_buyers_who_all_hide_learn_nothing() -> None:
    """q* = 1: the printed average forgives an always-discriminating seller half the time (11.0 instead of 9.5)."""
    printed = simulate(CASE_A, "pd", CBER(estimator="printed"), rounds=4000, seeds=6)
    assert near(printed.seller_utility[0], 11.0, floor=0.01)
    assert printed.final["belief"].to_numpy() == pytest.approx(0.5, abs=0.01)
    assert printed.final["truthful_share"].to_numpy() == pytest.approx(0.5, abs=0.01)
    assert printed.final["alpha_bar"].to_numpy() == pytest.approx(1)
    rescaled = simulate(CASE_A, "pd", rounds=4000, seeds=6)
    assert near(rescaled.seller_utility[0], float(CASE_A.seller_utility(1.0)), floor=0.01)
    # its price: a careful seller, too, is never forgiven an unlucky start, whereas the printed average forgives it
    careful = [
        simulate(CASE_A, "stackelberg-eps", b, rounds=4000, seeds=6) for b in ("cber", CBER(estimator="printed"))
    ]
    assert careful[0].seller_utility.max() < 9.6
    assert careful[1].seller_utility.min() > 11.0
    # where every round can show both signals the two estimators are the same
    for estimator in ("printed", "rescaled"):
        same = simulate(EXAMPLE, "cexp3", CBER(estimator=estimator), rounds=500, seeds=3)  # type: ignore[arg-type]
        np.testing.assert_array_equal(same.frame, simulate(EXAMPLE, "cexp3", rounds=500, seeds=3).frame)


def test_one_buyer_per_round_is_refused_for_learning_buyers_only() -> None:
    with pytest.raises(ValueError, match="n_buyers >= 2"):
        simulate(EXAMPLE, "pd", rounds=10, seeds=1, n_buyers=1)
    assert simulate(EXAMPLE, "pd", "truthful", rounds=10, seeds=1, n_buyers=1).final["belief"].iloc[0] == 0


@pytest.mark.parametrize(("buyers", "q"), [("truthful", 0.0), ("strategic", 0.5), (FixedEvasion(0.8), 0.8)])
def test_fixed_buyers_give_the_payoff_table(buyers: str, q: float) -> None:
    prices = {"pd": (1, 0), "high": (1, 1), "low": (0, 0), "reverse": (0, 1), "some": (0.3, 0.6)}
    result = simulate(EXAMPLE, {k: Mixed(*v) for k, v in prices.items()}, buyers, rounds=1000, seeds=20)
    for seller, (hh, hl) in prices.items():
        assert near(final(result, seller, "seller_utility"), float(EXAMPLE.seller_payoff(hh, hl, q)))
        assert near(final(result, seller, "buyer_utility"), float(EXAMPLE.buyer_payoff(hh, hl, q)), floor=1e-9)
        assert final(result, seller, "regret").min() >= -1e-12


def test_regret_by_hand() -> None:
    """Strategic buyers at q* make the two low-signal prices equally good; truthful ones do not."""
    truthful = simulate(EXAMPLE, {"a": Mixed(1, 1), "b": Mixed(0, 1)}, "truthful", rounds=50, seeds=1).final
    assert truthful["regret"].tolist() == pytest.approx([2.5, 7.5])
    strategic = simulate(EXAMPLE, {"a": Mixed(1, 1), "b": Mixed(0, 1)}, "strategic", rounds=50, seeds=1).final
    assert strategic["regret"].tolist() == pytest.approx([0, 2.5])


def test_policy_regret_sees_what_regret_does_not(played: Simulation) -> None:
    table = policy_regret(played, step=0.1, seeds=3)
    best = float(table["best_constant"].iloc[0])
    assert 8.3 < best < OPTIMUM
    assert table["best_high_at_high"].iloc[0] == 1
    assert table["best_high_at_low"].iloc[0] == pytest.approx(0.6)
    assert table.loc["pd", "policy_regret"] > 2  # yet its regret is 0
    assert table.loc["adaptive", "policy_regret"] < 0
    assert abs(table.loc["stackelberg-eps", "policy_regret"]) < 0.3


@pytest.mark.slow
def test_biased_buyers() -> None:
    sweep = bias_sweep(EXAMPLE, rounds=4000, seeds=range(4))
    assert len(sweep) == 3 * 20 * 4
    mean = sweep.assign(bias=sweep["bias_low"].round(1)).groupby(["seller", "bias"])["seller_utility"].mean()
    expected = {-1.0: (7.2, 9.8, 8.7), -0.5: (7.2, 9.3, 8.7), 0.0: (7.2, 6.3, 6.5), 0.9: (6.0, 6.2, 6.2)}
    for bias, utilities in expected.items():
        for seller, utility in zip(("exp3", "cexp3", "stackelberg"), utilities, strict=True):
            assert mean[seller, bias] == pytest.approx(utility, abs=0.25), (seller, bias)
    direct = simulate(EXAMPLE, "cexp3", CBER(bias=(-0.3, -0.2)), rounds=4000, seeds=4, checkpoints=50)
    rows = sweep[(sweep["seller"] == "cexp3") & (sweep["bias_low"].round(1) == -0.3)]
    np.testing.assert_allclose(direct.seller_utility[0], rows["seller_utility"])


def test_a_run_depends_on_its_seed_only() -> None:
    many = simulate(EXAMPLE, ["cexp3", "adaptive"], rounds=600, seeds=5, checkpoints=7)
    one = simulate(EXAMPLE, "cexp3", rounds=600, seeds=[3], checkpoints=31)
    assert one.seller_utility[0, 0] == many.seller_utility[0, 3]
    assert one.final["belief"].iloc[0] == many.array("belief")[0, 3, -1]
    again = simulate(EXAMPLE, ["cexp3", "adaptive"], rounds=600, seeds=5, checkpoints=7)
    np.testing.assert_array_equal(again.frame, many.frame)


def test_shapes_labels_and_summary(played: Simulation) -> None:
    assert played.sellers == list(SELLERS)
    assert played.seller_utility.shape == played.buyer_utility.shape == (7, 12)
    assert played.array("belief").shape == (7, 12, 200)
    shares = played.frame[["high_high", "low_low", "pd", "reverse_pd"]].sum(axis=1)
    np.testing.assert_allclose(shares, 1)
    summary = played.summary()
    assert list(summary.index) == list(SELLERS)
    np.testing.assert_allclose(summary["short_of_optimum"], OPTIMUM - summary["seller_utility"])
    assert (summary["seller_q10"] <= summary["seller_q90"]).all()
    labelled = simulate(EXAMPLE, [Stackelberg(0.1), "pd"], rounds=5, seeds=1)
    assert labelled.sellers == ["Stackelberg(epsilon=0.1)", "pd"]
    assert simulate(EXAMPLE, {"mine": "pd"}, rounds=5, seeds=1).sellers == ["mine"]


def test_exp3_constants() -> None:
    assert exp3_rate(20_000) == pytest.approx(0.007412, abs=1e-6)


@pytest.mark.parametrize("game", [EXAMPLE, CASE_A, PricingGame(0.05, 1, 50, 3, 0)])
@pytest.mark.parametrize("buyers", BUYERS)
def test_every_seller_meets_every_crowd(game: PricingGame, buyers: str) -> None:
    frame = simulate(game, "all", buyers, rounds=60, seeds=2, n_buyers=2).frame
    assert np.isfinite(frame.drop(columns="seller").to_numpy(dtype=float)).all()
    assert (frame["regret"] >= -1e-9).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seller": "expo"}, "Unknown seller 'expo'"),
        ({"buyers": "nobody"}, "Unknown buyers 'nobody'"),
        ({"seller": []}, "at least one seller"),
        ({"rounds": 0}, "at least 1"),
        ({"seeds": 0}, "≥ 1"),
    ],
)
def test_invalid_input_is_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        simulate(EXAMPLE, **{"rounds": 10, "seeds": 1, **arguments})


def test_invalid_players_are_refused(played: Simulation) -> None:
    with pytest.raises(ValueError, match="interval"):
        CBER(bias=(0.5, 0.1))
    with pytest.raises(ValueError, match="estimator"):
        CBER(estimator="exact")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="probabilities"):
        Mixed(1.2, 0)
    with pytest.raises(ValueError, match="epsilon"):
        Stackelberg(-0.1)
    with pytest.raises(ValueError, match="FixedEvasion"):
        FixedEvasion(2.0)
    with pytest.raises(ValueError, match="step"):
        policy_regret(played, step=0)


@pytest.mark.slow
def test_full_size_runs_of_the_dissertation() -> None:
    """20,000 rounds, 20 seeds, all sellers: the limits of Figures 4.2–4.4."""
    result = simulate(EXAMPLE)
    expected = {"exp3": 7.39, "cexp3": 6.27, "stackelberg-eps": 8.62, "adaptive": 8.75, "pd": 6.25, "no-pd": 7.5}
    for seller, utility in expected.items():
        assert final(result, seller, "seller_utility").mean() == pytest.approx(utility, abs=0.04)
    assert final(result, "stackelberg", "seller_utility").std() > 0.5
    error = result.array("belief")[..., -1] - result.array("alpha_bar")[..., -1]
    assert np.abs(error).max() < 0.03


def test_the_adaptive_seller_discriminates_up_to_its_limit() -> None:
    """(S + 1/w)/(t + 1) ≤ α* = 1/2: with w = 1 and S = 0 from the second round on, with S = 1 from the fourth."""
    assert EXAMPLE.alpha_star == 0.5
    seller = AdaptiveStackelberg()
    counted = np.array([0.0, 1.0, 2.0, 3.0, 4.0])
    for evidence, expected in ((0.0, [0, 1, 1, 1, 1]), (1.0, [0, 0, 0, 1, 1])):
        view = View(EXAMPLE, 5, 1, np.full(5, evidence), counted, np.ones(5))
        prices = seller.prices(seller.init(EXAMPLE, 10, (5,)), view, np.full((2, 5), 0.5))
        np.testing.assert_array_equal(prices.high_at_high != prices.high_at_low, np.array(expected, bool))


def test_a_signal_nobody_sent_teaches_nothing() -> None:
    """All five buyers showed the high signal: the learner of the low signal stays as it was."""
    seller = SELLERS["cexp3"]
    state = seller.init(EXAMPLE, 100, (1,))
    prices = Prices(np.array([True]), np.array([True]), np.array([0.5]), np.array([0.5]), 0.5)
    sales = Sales(EXAMPLE, np.array([5.0]), np.array([0.0]), np.array([30.0]), np.array([0.0]))
    after = seller.update(state, prices, sales)
    assert after[0, 0] > 0
    np.testing.assert_array_equal(after[2:4], state[2:4])


@pytest.mark.parametrize("seller", [AdaptiveStackelberg(known_mu=False), LearningSeller(sweep=100)])
def test_a_seller_that_is_not_told_mu_does_not_use_it(seller) -> None:
    """Its prices are the same whatever μ, belief and evidence stand in what it is shown."""
    rng = np.random.default_rng(0)
    kinds = [PricingGame(mu, 5, 15, 5, 5) for mu in (0.5, 0.2)]
    shown = [(0.0, 1.0, 1.0), (7.0, 3.0, 0.5)]
    states = [seller.init(game, 300, (2,)) for game in kinds]
    for t in range(1, 301):
        draws, high = rng.random((2, 2)), rng.binomial(10, 0.5, 2).astype(float)
        prices = [
            seller.prices(state, View(game, 10, t, *(np.full(2, v) for v in values)), draws)
            for state, game, values in zip(states, kinds, shown, strict=True)
        ]
        for one, other in zip(*prices, strict=True):
            np.testing.assert_array_equal(one, other)
        states = [
            seller.update(state, prices[0], Sales(game, high, 10 - high, 15 * high, 5 * (10 - high)))
            for state, game in zip(states, kinds, strict=True)
        ]
    assert (prices[0].high_at_high != prices[0].high_at_low).any() or states[0].any()


@pytest.mark.parametrize("game", [EXAMPLE, PricingGame(0.3, 4, 20, 6, 2)])
def test_a_seller_that_learns_from_signals_and_prices_nears_the_best_promise(game: PricingGame) -> None:
    """Of what commitment gains over blind prices; always discriminating loses."""
    earned = simulate(game, LearningSeller(sweep=500), rounds=6000, seeds=8).final["seller_utility"].mean()
    blind, best = float(game.seller_utility(0.0)), game.commitment().seller_utility
    assert earned > blind + 0.8 * (best - blind)
