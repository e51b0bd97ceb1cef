"""Releases that are not what they were booked as: noise of one's own, other bookings, claims beyond what was released."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, replace
from typing import Any

import mpmath
import numpy as np
import pytest

import coterie as ct
from coterie.privacy import (
    ExactNoise,
    JointSum,
    Ledger,
    LocalGaussian,
    NoisyPower,
    OneBit,
    Privacy,
    Quantile,
    public,
    write_receipt,
)
from coterie.privacy.gaussian_dp import delta_of, epsilon_of, mu_of
from coterie.privacy.signing import canonical
from coterie.privacy.taint import Booking

ROWS = np.ones((50, 1))
SUM = JointSum("sum", 1, 1.0, 20.0)


class Silent:
    """Says that it is exact, and adds nothing."""

    name, source = "exact", "mine"

    def gaussian(self, total: Any, sigma: float) -> Any:
        return total

    def bits(self, size: int) -> Any:
        return np.zeros(size, np.uint64)


class Seeded(ExactNoise):
    def gaussian(self, total: Any, sigma: float) -> Any:
        return total + np.random.default_rng(0).integers(-9, 9, total.shape)


def receipt(release: Any, **options: Any) -> Any:
    ledger = Ledger(Privacy(9.0, 1e-3, clip=1.0))
    return write_receipt(ledger, [release(ledger)], n_users=50, **options)


@pytest.mark.parametrize("noise", [Silent(), Seeded()])
def test_noise_that_only_says_it_is_exact_voids_the_receipt(noise: Any) -> None:
    mechanisms: list[Any] = [
        lambda n, book: SUM(ROWS, n, book),
        lambda n, book: LocalGaussian("local", 1, 1.0, 20.0)(ROWS, n, book),
        lambda n, book: OneBit("bit", 0.5)(ROWS[:, 0], n, book),
        lambda n, book: Quantile("quantile", 0.5, 0.1, 1.0, 20.0, 50)(ROWS[:, 0], n, book),
        lambda n, book: NoisyPower("power", 1, 1, 1.0, 20.0)(ROWS, n, book),
    ]
    for release in mechanisms:
        made = receipt(lambda ledger, release=release: release(noise, ledger.book))
        assert not made.valid
        assert type(noise).__name__ in made.reasons[0]
        exact = receipt(lambda ledger, release=release: release(ExactNoise(), ledger.book))
        assert exact.valid, exact.reasons


def test_a_release_is_booked_as_what_it_is() -> None:
    changed: list[Any] = [
        lambda ledger: lambda event: ledger.book(replace(event, count=0)),
        lambda ledger: lambda event: ledger.book(replace(event, noise_multiplier=2000.0)),
        lambda ledger: lambda event: Booking(event),
        lambda ledger: lambda event: Booking(event, ledger.id, 7),
    ]
    for book in changed:
        assert not receipt(lambda ledger, book=book: SUM(ROWS, ExactNoise(), book(ledger))).valid


def test_only_a_run_says_that_a_sample_was_drawn() -> None:
    sampled = replace(SUM, sampling=0.01)
    for drawn in (True, "yes"):
        made = receipt(
            lambda ledger, drawn=drawn: sampled.release(sampled.partial(ROWS), ExactNoise(), ledger.book, drawn=drawn)
        )
        assert not made.valid


def test_a_receipt_lists_the_values_that_somebody_called_public() -> None:
    ledger = Ledger(Privacy(9.0, 1e-3, clip=1.0))
    values = [SUM(ROWS, ExactNoise(), ledger.book), public(np.ones(3))]
    assert "declared public by the user: a value (ndarray)" in write_receipt(ledger, values, n_users=50).public


def test_names_that_were_released_are_not_public_by_themselves(tmp_path: Any) -> None:
    """A ledger paid for them, and nobody knows whether it is that of the run they go into."""
    ledger = Ledger(Privacy(9.0, 1e-3, clip=1.0))
    released = SUM(ROWS, ExactNoise(), ledger.book)
    data = {name: (np.ones((4, 2)), np.array([0, 1, 0, 1])) for name in "ab"}
    for classes, known in ((public([0, 1]), True), (released.map(lambda _: [0, 1]), False)):
        assert ("classes" in ct.Federation.from_arrays(data, classes=classes).declared) == known
    counts = np.random.default_rng(0).poisson(1.0, (200, 3))
    for number, (words, known) in enumerate(
        ((public(list("xyz")), True), (released.map(lambda _: list("xyz")), False))
    ):
        folder = ct.histograms.save_counts(tmp_path / str(number), [counts], vocabulary=words)
        made = ct.HistogramMixture(clusters=2, privacy=Privacy(5.0, 1e-5, clip=1.0)).fit(folder)
        assert made.receipt_.valid == known


# ---- edited receipts whose checksum was made anew ---------------------------------------------------------------------


def signed_anew(made: Any) -> Any:
    text = hashlib.sha256(canonical(asdict(made))).hexdigest()
    return replace(made, signature=made.signature | {"checksum": text})


def test_claims_beyond_the_listed_releases_are_found_without_a_ledger() -> None:
    made = receipt(lambda ledger: SUM(ROWS, ExactNoise(), ledger.book))
    assert not made.verify().fault
    for change in ({"adjacency": "replace"}, {"guarantee": "local"}, {"n_users": 10**7}):
        assert signed_anew(replace(made, **change)).verify().fault


def test_a_receipt_with_a_weak_delta_is_believed() -> None:
    ledger = Ledger(Privacy(9.0, 0.1, clip=1.0))
    made = write_receipt(ledger, [SUM(ROWS, ExactNoise(), ledger.book)], n_users=50)
    assert "1/50" in made.strength
    assert not made.verify().fault


# ---- tiny budgets -----------------------------------------------------------------------------------------------------


def test_tiny_budgets_are_rounded_to_the_safe_side() -> None:
    """Against 60 digits. An absolute tolerance in μ gave δ(ε) = 2.9e45·δ at (1e-12, 1e-100)."""
    with mpmath.workdps(60):

        def true(mu: float, epsilon: float) -> Any:
            m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
            return mpmath.ncdf(-e / m + m / 2) - mpmath.exp(e) * mpmath.ncdf(-e / m - m / 2)

        for epsilon in (1e-12, 1e-9, 1e-6, 1e-3, 1.0, 50.0):
            for delta in (1e-300, 1e-100, 1e-15, 1e-12, 1e-6, 0.3):
                mu = mu_of(epsilon, delta)
                assert true(mu, epsilon) <= delta
                assert true(mu * (1 + 1e-3), epsilon) > delta or epsilon < 1e-9  # and not far on it
                assert true(mu, epsilon_of(mu, delta)) <= delta
                assert delta_of(mu, epsilon) >= true(mu, epsilon)


def test_a_private_fit_forgets_what_an_earlier_one_told_of_users() -> None:
    counts = np.random.default_rng(0).poisson(1.0, (200, 6))
    budget = Privacy(5.0, 1e-5, clip=1.0)
    mixture, mean = ct.HistogramMixture(clusters=2).fit(counts), ct.histograms.FedAvgHistogram(lam=0.5).fit(counts)
    for made in (mixture, mean):
        made.set_params(privacy=budget).fit(counts)
        assert made.receipt_.valid
    assert not {"note_", "labels_", "objective_"} & set(vars(mixture))
    assert not {"concentration_", "labels_", "objective_"} & set(vars(mean))
