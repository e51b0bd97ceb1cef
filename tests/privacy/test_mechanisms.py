"""Noise has the promised size, lives on the lattice, and estimates come out right; published estimates that cannot."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest

from coterie.errors import ConfigError, DataError
from coterie.privacy import (
    ExactNoise,
    GroupSums,
    JointSum,
    Ledger,
    LocalGaussian,
    Noise,
    NoisyPower,
    OneBit,
    Privacy,
    Quantile,
    Receipt,
    SimulationNoise,
    epsilon,
    make_noise,
    rate_moments,
)
from coterie.privacy.mechanisms import lattice

SOURCES: dict[str, Noise] = {"exact": ExactNoise(), "simulation": SimulationNoise(7)}


@pytest.mark.parametrize("source", SOURCES)
def test_variance_and_lattice_membership(source: str) -> None:
    made = JointSum("s", 8000, 1.5, 2.0)
    value = made(np.zeros((3, 8000)), SOURCES[source]).value
    steps = value / made.lattice.step
    assert (steps == np.rint(steps)).all()
    n = value.size
    assert value.var() == pytest.approx(made.sigma**2, rel=4 * math.sqrt(2 / n))
    assert abs(value.mean()) < 4 * made.sigma / math.sqrt(n)
    assert len(np.unique(np.rint(steps) % 2)) == 2  # neither parity is missing


def test_the_sum_is_kept() -> None:
    rows = np.random.default_rng(0).normal(size=(500, 4)) * 0.1
    made = JointSum("s", 4, 1.0, 1e-3)
    assert made(rows, ExactNoise()).value == pytest.approx(rows.sum(0), abs=0.01)
    group = GroupSums("g", 2, 4, 1.0, 1e-3)
    counts, sums = group(rows, np.arange(500) % 2, ExactNoise()).value
    assert counts == pytest.approx([250, 250], abs=0.02)
    assert sums == pytest.approx(np.stack([rows[::2].sum(0), rows[1::2].sum(0)]), abs=0.02)


def test_exact_noise_takes_no_seed_and_simulation_needs_one() -> None:
    with pytest.raises(ConfigError, match="takes no seed"):
        make_noise("exact", 3)
    with pytest.raises(ConfigError, match="needs a seed"):
        make_noise("simulation")
    total = np.zeros(5, np.int64)
    same = [make_noise("simulation", 3).gaussian(total, 1e6) for _ in range(2)]
    assert (same[0] == same[1]).all()
    assert (make_noise("exact").gaussian(total, 1e6) != make_noise("exact").gaussian(total, 1e6)).any()


def test_noise_is_for_integers_that_fit() -> None:
    with pytest.raises(DataError, match="int64"):
        ExactNoise().gaussian(np.zeros(3), 10.0)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="64 bits"):
        ExactNoise().gaussian(np.full(3, 2**62), 10.0)
    with pytest.raises(ConfigError, match="σ on the lattice"):
        ExactNoise().gaussian(np.zeros(3, np.int64), 0.1)


def test_events_say_how_the_sensitivity_came_about() -> None:
    made = JointSum("s", 100, 2.0, 3.0, adjacency="replace", sampling=0.5)
    event = made.event()
    assert event.sensitivity == pytest.approx(4.0, rel=1e-4)
    assert event.sigma == pytest.approx(12.0, rel=1e-4)
    assert (event.sampling, event.adjacency, event.noise) == (0.5, "replace", "exact")
    assert "2·(c + g·√D/2)" in event.derivation
    assert type(event).from_json(event.to_json()) == event


def test_local_gaussian_is_private_in_every_dimension() -> None:
    """The analytic Gaussian with Δ = 2R does not depend on the dimension (but for the lattice)."""
    for d in (1, 10, 100):
        made = LocalGaussian.calibrated("l", d, 1.5, 0.5, 1e-5)
        assert epsilon(made.noise_multiplier, 1e-5, 1) <= 0.5
        assert made.sigma == pytest.approx(3.0 * made.noise_multiplier, rel=1e-4)
    reports = LocalGaussian("l", 2, 1.0, 0.1)(np.tile([0.3, -0.4], (4000, 1)), ExactNoise()).value
    assert reports.mean(0) == pytest.approx([0.3, -0.4], abs=4 * 0.2 / math.sqrt(4000))


@pytest.mark.parametrize("epsilon", [1e-9, 1e-6, 0.1, 3.0, 40.0])
def test_the_odds_of_one_bit_are_never_above_its_epsilon(epsilon: float) -> None:
    flip = OneBit("b", epsilon).flip
    odds = (1 - flip) / flip
    with mpmath.workdps(60):
        assert 0 < mpmath.log(mpmath.mpf(odds.numerator) / odds.denominator) <= mpmath.mpf(epsilon)


def test_so_small_an_epsilon_that_a_flip_is_likelier_than_not_is_refused() -> None:
    with pytest.raises(ConfigError, match="OneBit needs epsilon to be a number from 1e-9 to 40"):
        OneBit("b", 1e-13)  # rounded up, its flip cost 1.9e-12


def test_one_bit_is_unbiased_and_within_its_odds() -> None:
    made = OneBit("b", 1.0)
    assert (1 - made.flip) / made.flip <= math.e
    assert float(made.flip) == pytest.approx(1 / (math.e + 1), rel=1e-9)
    x = np.random.default_rng(0).random(100_000)
    reports = made(x, ExactNoise()).value
    assert set(np.unique(reports)) == set(made.values)
    assert reports.mean() == pytest.approx(x.mean(), abs=4 * reports.std() / math.sqrt(len(x)))


@pytest.mark.parametrize("source", SOURCES)
def test_only_the_user_split_sees_heterogeneity(source: str) -> None:
    """Theorem 4 of Ozkara et al.: the variance of one-bit reports is 1.1707 at ε0 = 1, whatever the rates' variance."""
    rng, n, m = np.random.default_rng(1), 50, 400_000
    for a in (2, 20, 200):
        rates = rng.beta(a, a, m)
        counts = rng.binomial(n, rates)
        reports = OneBit("b", 1.0)(counts / n, SOURCES[source]).value
        assert reports.var() == pytest.approx(1.1707, abs=0.01)
        found = rate_moments(counts, n, 1.0, SOURCES[source], seed=a).value
        truth = 0.25 / (2 * a + 1)
        assert found.variance == pytest.approx(truth, abs=4 * found.variance_error)
        assert found.variance_error < 0.004


def test_quantile_finds_the_level() -> None:
    values = np.exp(np.random.default_rng(0).normal(size=20_000))
    made = Quantile("q", 0.8, 1e-3, 1e3, 20.0, len(values), steps=12)
    found = made(values, ExactNoise())
    assert (values <= found.value).mean() == pytest.approx(0.8, abs=0.02)
    assert len(found.bookings) == 1  # equal events of an unbooked search are one history entry
    ties = Quantile("q", 0.5, 1e-3, 1e3, 1.0, 1000, steps=14)(np.full(1000, 2.0), ExactNoise()).value
    assert ties == pytest.approx(2.0, rel=0.01)
    with pytest.raises(ConfigError, match="low must be below high"):
        Quantile("q", 0.5, 2.0, 1.0, 1.0, 10)


def test_noisy_power_finds_the_directions() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(20_000, 30)) * 0.05
    rows[:, :2] += rng.normal(size=(20_000, 2)) * [0.5, 0.3]
    basis = NoisyPower("p", 30, 2, 1.0, 5.0)(rows, ExactNoise()).value
    assert np.linalg.norm(basis[:2], "fro") ** 2 > 1.95
    lost = NoisyPower("p", 30, 2, 1.0, 1e6)(rows, SimulationNoise(0)).value
    assert np.linalg.norm(lost[:2], "fro") ** 2 < 1.0
    with pytest.raises(ConfigError, match="n_components"):
        NoisyPower("p", 3, 4, 1.0, 1.0)


@pytest.mark.parametrize(
    ("change", "words"),
    [({"clip": 0.0}, "clip"), ({"noise_multiplier": math.nan}, "noise_multiplier"), ({"dimension": 0}, "dimension")],
)
def test_bad_settings_are_refused_before_any_data(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        JointSum(**({"name": "s", "dimension": 2, "clip": 1.0, "noise_multiplier": 1.0} | change))


def test_group_sums_have_their_noise_on_counts_and_sums():
    """σ on every sum and σ/w on every count, within four standard errors of a deviation; nothing is summed here."""
    groups = GroupSums("g", 4, 50, 2.0, 1.5, count_weight=0.5)
    zero = np.zeros((40, 4, 51), np.int64)
    counts, sums = groups.noisy(zero, SimulationNoise(0))
    assert groups.sigma == pytest.approx(1.5 * np.hypot(2.0, 0.5), rel=1e-4)
    assert sums.std() == pytest.approx(groups.sigma, rel=4 / np.sqrt(2 * sums.size))
    assert counts.std() == pytest.approx(groups.sigma / 0.5, rel=4 / np.sqrt(2 * counts.size))


def test_what_could_wrap_around_is_refused_before_anything_is_added() -> None:
    with pytest.raises(ConfigError, match="at most 30"):
        JointSum("x", 1, 1.0, 1.0, bits=57)
    with pytest.raises(ConfigError, match="at most 30"):
        LocalGaussian("x", 1, 1.0, 1.0, bits=31)
    with pytest.raises(ConfigError, match="shorter than 2\\^31 lattice steps"):
        GroupSums("x", 2, 1, 1.0, 1.0, count_weight=2.0**40)
    with pytest.raises(ConfigError, match="shorter than 2\\^31 lattice steps"):
        JointSum("x", 2**64, 1.0, 1.0)
    most = JointSum("x", 1, 1.0, 1.0, bits=30)
    assert most.partial(np.ones((128, 1)))[0] * most.lattice.step == pytest.approx(128)
    for mechanism in (most, GroupSums("x", 2, 1, 1.0, 1.0, bits=30)):
        mechanism.require_room(2**31)
        with pytest.raises(ConfigError, match="may not fit into 64 bits"):
            mechanism.require_room(2**32)


def test_a_quantile_counts_users_at_or_below_its_threshold() -> None:
    made = Quantile("q", 0.5, 1.0, 8.0, 1.0, 6)
    values = [1.0, 2.0, 2.0, 3.0, np.nan, -np.inf]
    assert [made.count(values, x) for x in (0.5, 1.0, 2.0, 2.5, 3.0)] == [0, 1, 3, 3, 4]


def test_a_sum_of_products_needs_room_for_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """2^30 users are too many for a test, so the room is made smaller: two products of 2^32 fit, three do not."""
    monkeypatch.setattr(lattice, "ROOM", 2.5 * 2.0**32)
    power = NoisyPower("x", 2, 1, 1.0, 1.0)
    power.partial(np.ones((2, 2)), power.first_basis())
    with pytest.raises(ConfigError, match="may not fit into 64 bits"):
        power.partial(np.ones((3, 2)), power.first_basis())


WRONG = ["x", [["a"]], [[1, 2], [3]], object(), {"a": 1}, [[10**400, 1, 1]], np.zeros((2, 3, 4)), None]


@pytest.mark.parametrize("wrong", WRONG, ids=range(len(WRONG)))
def test_what_is_no_table_of_numbers_no_noise_or_no_book_is_refused_in_one_sentence(wrong: Any) -> None:
    noise, rows = ExactNoise(), np.zeros((2, 3))
    total, groups, values = (
        JointSum("m", 3, 1.0, 2.0),
        GroupSums("g", 2, 3, 1.0, 2.0),
        Quantile("q", 0.5, 0.1, 1, 2.0, 9),
    )
    calls: list[Any] = [
        lambda: total(wrong, noise), lambda: total.release(wrong, noise), lambda: total(rows, wrong),
        lambda: total(rows, noise, 3 if wrong is None else wrong), lambda: groups(wrong, [0, 1], noise),
        lambda: groups(rows, wrong, noise),
        lambda: values(wrong, noise), lambda: NoisyPower("p", 3, 2, 1.0, 2.0)(wrong, noise),
        lambda: LocalGaussian("l", 3, 1.0, 2.0)(rows, wrong), lambda: OneBit("o", 1.0)([1.0], wrong),
        lambda: Ledger(Privacy(1.0, 1e-6, 1.0)).book(wrong), lambda: Receipt.from_json(wrong),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises((ConfigError, DataError)):
            call()


def test_a_name_of_users_is_printable() -> None:
    for users in ("a\x00b", "\ud800", "two\nlines"):
        with pytest.raises(ConfigError, match="printable"):
            Privacy(1.0, 1e-6, 1.0, users=users)
