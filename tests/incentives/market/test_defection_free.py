"""Collaboration schemes and Algorithm 5 on quadratic losses: who loses revenue, and who never does."""

import math

import numpy as np
import pytest

from coterie.incentives import (
    CompleteSharing,
    DefectionFreeSharing,
    Duopoly,
    Learner,
    OnlyHighShares,
    OnlyLowShares,
    RevenueLedger,
    climb,
    collaborate,
    low_target,
    nash_bargaining,
    pacing_constant,
    quadratic_firms,
    quality_cap,
)
from coterie.incentives.market.defection_free import Collaboration, Scheme
from reproductions.printed.firms import PrintedWhileLoop

STARTS = [(0.15, 0.60), (0.35, 0.45), (0.10, 0.80)]


def run(start: tuple[float, float], scheme: Scheme, rounds: int = 300, flatness: float = 0.2) -> Collaboration:
    low, high = quadratic_firms(*start, flatness=flatness)
    return collaborate(low, high, scheme, rounds=rounds, q_max=0.95)


@pytest.mark.parametrize(("start", "q_low"), [((0.15, 0.60), 0.3437), ((0.35, 0.45), 0.4266), ((0.10, 0.80), 0.2110)])
@pytest.mark.parametrize("pace", [pacing_constant(), 1.005, 1.5, None])
def test_defection_free_reaches_the_bargain_and_no_round_lowers_a_revenue(
    start: tuple[float, float], q_low: float, pace: float | None
) -> None:
    result = run(start, DefectionFreeSharing(pace=pace), rounds=400)
    frame = result.ledger.frame
    assert result.ledger.defection_free(1e-12)
    assert frame["revenue_low"].diff().iloc[1:].min() >= -1e-12
    assert frame["revenue_high"].diff().iloc[1:].min() >= -1e-12
    last = frame.iloc[-1]
    assert last["q_low"] == pytest.approx(q_low, abs=1e-4)
    assert last["q_low"] == pytest.approx(result.bargain.q_low, abs=1e-6)
    assert last["q_high"] == pytest.approx(0.95, abs=1e-6)
    assert last["nash_product"] / result.bargain.value == pytest.approx(1, abs=1e-6)
    if pace is not None:
        assert (frame["q_high"] / frame["q_high"].shift()).max() <= pace + 1e-9


def test_a_low_firm_that_starts_above_the_bargain_never_moves() -> None:
    result = run((0.55, 0.65), DefectionFreeSharing())
    frame = result.ledger.frame
    assert (frame["q_low"] == frame["q_low"].iloc[0]).all()
    assert result.ledger.defection_free()
    last = frame.iloc[-1]
    assert (last["q_low"], last["q_high"]) == pytest.approx((0.55, 0.95), abs=1e-6)
    assert last["nash_product"] / result.bargain.value == pytest.approx(0.853, abs=1e-3)


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("step", [1.0, 0.1, 0.01])
def test_the_printed_while_loop_loses_revenue(start: tuple[float, float], step: float) -> None:
    """Any fixed step leaves the loop only after passing the cap; with the full step 1/L the loss is large."""
    drop = run(start, PrintedWhileLoop(step=step), rounds=100).ledger.largest_drop
    assert drop > {1.0: 0.1, 0.1: 0.005, 0.01: 0.0005}[step]
    assert run(start, DefectionFreeSharing(), rounds=100).ledger.largest_drop < 1e-12


def test_without_time_to_follow_an_unpaced_high_firm_leaves_the_low_firm_short() -> None:
    """Allowance not used within a round is lost; pacing matters only if the low firm has few steps per round."""
    hurried = run((0.15, 0.6), DefectionFreeSharing(pace=None, low_steps=1), flatness=1.0)
    assert hurried.ledger.frame["q_low"].iloc[-1] < hurried.bargain.q_low - 0.003
    assert hurried.ledger.defection_free()
    paced = run((0.15, 0.6), DefectionFreeSharing(low_steps=1), flatness=1.0)
    assert paced.ledger.frame["q_low"].iloc[-1] == pytest.approx(paced.bargain.q_low, abs=1e-4)


@pytest.mark.parametrize("pace", [1.01, 1.0297, 1.2])
def test_following_the_cap_reaches_the_same_ratio_at_any_pace(pace: float) -> None:
    rho, q_high = 0.25, 0.6
    while q_high < 0.95:
        grown = min(pace * q_high, 0.95)
        rho, q_high = quality_cap(rho, grown / q_high), grown
    assert rho == pytest.approx(quality_cap(0.25, 0.95 / 0.6), abs=1e-12)
    assert nash_bargaining(0.15, 0.6, 0.95).ratio <= rho


@pytest.mark.parametrize("start", STARTS)
def test_complete_sharing_drives_both_revenues_to_zero(start: tuple[float, float]) -> None:
    ledger = run(start, CompleteSharing()).ledger
    last = ledger.frame.iloc[-1]
    assert (last["q_low"], last["q_high"]) == pytest.approx((0.95, 0.95), abs=1e-4)
    assert max(last["revenue_low"], last["revenue_high"]) < 1e-4
    assert not ledger.defection_free()


@pytest.mark.parametrize("start", STARTS)
def test_if_only_the_high_firm_shares_it_is_overtaken_and_revenues_stay_positive(start: tuple[float, float]) -> None:
    frame = run(start, OnlyHighShares()).ledger.frame
    last = frame.iloc[-1]
    assert last["q_low"] > last["q_high"] + 0.02
    assert last["revenue_high"] < 0.2 * frame["revenue_high"].iloc[0]
    assert last["revenue_low"] > last["revenue_high"]
    assert frame[["revenue_low", "revenue_high"]].to_numpy().min() >= 0


@pytest.mark.parametrize("start", STARTS)
def test_if_only_the_low_firm_shares_and_stands_still_both_revenues_rise(start: tuple[float, float]) -> None:
    frame = run(start, OnlyLowShares(low_trains=False)).ledger.frame
    assert frame[["revenue_low", "revenue_high"]].diff().iloc[1:].min().min() >= -1e-12
    ours = run(start, DefectionFreeSharing()).ledger.frame.iloc[-1]
    assert ours["revenue_low"] > frame["revenue_low"].iloc[-1]
    assert ours["revenue_high"] < frame["revenue_high"].iloc[-1]  # the high firm would prefer a frozen rival


def test_if_the_sharing_low_firm_trains_alone_the_high_firm_can_lose() -> None:
    assert run((0.15, 0.6), OnlyLowShares()).ledger.largest_drop > 0.05


def test_one_sided_revenues_of_the_worked_example() -> None:
    assert Duopoly(0.15, 0.95).revenues == pytest.approx((0.0086, 0.2168), abs=1e-4)
    assert Duopoly(0.3437, 0.95).revenues == pytest.approx((0.0166, 0.1832), abs=1e-4)


def test_rounds_of_proposition_5_and_rate_of_theorem_5() -> None:
    for start in STARTS:
        low, high = quadratic_firms(*start)
        distance, smoothness, epsilon = float(np.sum(high.state**2)), 1.0, 0.01
        pace = pacing_constant()
        rounds = math.ceil(math.log(0.95 / start[1]) / math.log((pace + 1) / 2) + smoothness * distance / (2 * epsilon))
        result = collaborate(low, high, DefectionFreeSharing(), rounds=rounds, q_max=0.95)
        frame, star = result.ledger.frame, result.bargain
        last = frame.iloc[-1]
        assert 0.95 - last["q_high"] <= epsilon
        assert star.ratio - last["rho"] <= (4 - 5 * star.ratio) * math.log10(0.95 / (0.95 - epsilon)) + 1e-6
        steps = frame["step_high"].cumsum().iloc[1:]
        gap = 0.95 - frame["q_high"].iloc[1:]
        assert (gap <= distance / (2 * steps) + 1e-12).all()
        bound = distance / steps + (star.ratio - frame["rho"].iloc[1:]).abs()
        assert (star.value - frame["nash_product"].iloc[1:] <= bound + 1e-12).all()


def test_stochastic_non_convex_training_with_backtracking_never_lowers_a_revenue() -> None:
    """A learner without a slope, whose steps overshoot, waste or even hurt: only back-tracking protects the firms."""
    rng = np.random.default_rng(3)

    def step(quality: float, size: float) -> float:
        gain = size * (0.97 - quality) * rng.normal(0.3, 0.5)
        return float(np.clip(quality + gain + 0.02 * size * np.sin(40 * quality), 0.01, 0.97))

    learner: Learner[float] = Learner(quality=lambda q: q, step=step, max_step=1.0)
    from coterie.incentives import Firm

    result = collaborate(
        Firm(0.2, learner, learner), Firm(0.5, learner, learner), DefectionFreeSharing(), rounds=200, q_max=1.0
    )
    assert result.ledger.defection_free()
    assert result.ledger.frame["q_high"].iloc[-1] > 0.9
    assert result.ledger.frame["rho"].iloc[-1] > 0.35


def test_climb_takes_back_bad_steps_and_gives_up() -> None:
    calls: list[float] = []

    def worse(quality: float, size: float) -> float:
        calls.append(size)
        return quality - size

    assert climb(Learner(lambda q: q, worse), 0.5, 0.9, max_steps=5, max_halvings=3) == (0.5, 0.5, 0.0)
    assert calls == [1.0, 0.5, 0.25, 0.125]
    up: Learner[float] = Learner(lambda q: q, lambda q, size: q + size)
    assert climb(up, 0.5, 0.9, max_steps=20).quality <= 0.9
    assert climb(up, 0.5, 0.9, max_steps=20, tolerance=1e-3, max_halvings=20).quality == pytest.approx(0.9, abs=1e-3)
    assert climb(up, 0.95, 0.9).state == 0.95  # already there
    flat: Learner[float] = Learner(lambda q: q, lambda q, size: q + size, slope=lambda q: 0.0)
    assert climb(flat, 0.5, 0.9).state == 0.5


def test_target_is_the_smallest_of_the_three_limits() -> None:
    bargain = nash_bargaining(0.15, 0.6, 0.95)
    free = low_target(0.15, 0.6, 0.61, bargain)
    assert free == pytest.approx(quality_cap(0.25, 0.61 / 0.6) * 0.61)
    assert low_target(0.15, 0.6, 0.9, bargain) == pytest.approx(bargain.ratio * 0.9)
    assert low_target(bargain.q_low, 0.94, 0.95, bargain) is None
    assert low_target(0.3, 0.6, 0.61, bargain) is None  # ratio already above ρ*


def test_ledger_reports_drops_and_columns() -> None:
    ledger = RevenueLedger().record(0.2, 0.6).record(0.3, 0.6).record(0.7, 0.6)
    frame = ledger.frame
    assert list(frame.columns[:8]) == [
        "t", "q_low", "q_high", "rho", "price_low", "price_high", "revenue_low", "revenue_high",
    ]  # fmt: skip
    assert frame["rho"].iloc[2] > 1
    assert frame["revenue_low"].iloc[2] == Duopoly(0.7, 0.6).revenues.low
    assert frame["nash_product"].iloc[0] == 0
    assert np.isnan(frame["nash_product"].iloc[1])
    assert ledger.largest_drop == pytest.approx(frame["revenue_high"].iloc[1] - frame["revenue_high"].iloc[2])
    assert not ledger.defection_free()
    assert RevenueLedger().largest_drop == 0
    assert RevenueLedger().frame.empty


def test_invalid_input_is_refused() -> None:
    low, high = quadratic_firms(0.2, 0.6)
    with pytest.raises(ValueError, match="rounds"):
        collaborate(low, high, CompleteSharing(), rounds=0)
    with pytest.raises(ValueError, match="q_max"):
        collaborate(low, high, CompleteSharing(), rounds=1, q_max=0.5)
    with pytest.raises(ValueError, match="pace"):
        DefectionFreeSharing(pace=1.0)
    with pytest.raises(ValueError, match="low_steps"):
        DefectionFreeSharing(low_steps=0)
    with pytest.raises(ValueError, match="a loss cannot be negative"):
        quadratic_firms(0.2, 0.6, 0.95, difference=0.5)
    with pytest.raises(ValueError, match="flatness"):
        quadratic_firms(0.2, 0.6, flatness=0.0)
