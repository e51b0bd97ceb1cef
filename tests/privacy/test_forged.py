"""Releases that are not what they were booked as: noise of one's own, other bookings, claims beyond what was released."""

from __future__ import annotations

import copy
import functools
import hashlib
import json
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
    Line,
    LocalGaussian,
    NoisyPower,
    OneBit,
    Privacy,
    Quantile,
    Receipt,
    make_plan,
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


class Unclipped(JointSum):
    def integers(self, rows: Any) -> Any:
        return np.rint(1e6 * rows / self.step).astype(np.int64)


class Forgetful(Ledger):
    def events(self) -> Any:
        return []


def with_a_method_put_in(value: Any, name: str, method: Any) -> Any:
    made = copy.copy(value)
    object.__setattr__(made, name, method)
    return made


def test_a_mechanism_that_was_changed_voids_the_receipt() -> None:
    patched = with_a_method_put_in(SUM, "integers", lambda rows: np.full((50, 1), 10**9))
    for mechanism in (Unclipped("sum", 1, 1.0, 20.0), patched):
        made = receipt(lambda ledger, m=mechanism: m(ROWS, ExactNoise(), ledger.book))
        assert not made.valid
        assert "not this package's" in made.reasons[0]


def test_one_booking_does_not_pay_for_many_releases() -> None:
    """A book of the caller's may hand out one booking again and again, as a cache does."""
    ledger = Ledger(Privacy(9.0, 1e-3, clip=1.0))
    book = functools.cache(ledger.book)
    made = write_receipt(ledger, [SUM(ROWS, ExactNoise(), book) for _ in range(50)], n_users=50)
    assert made.releases[0]["count"] == 1
    assert not made.valid
    assert "ledger.book itself" in made.reasons[0]


def test_a_ledger_that_was_changed_voids_the_receipt() -> None:
    budget = Privacy(9.0, 1e-3, clip=1.0)
    for ledger in (Forgetful(budget), with_a_method_put_in(Ledger(budget), "events", list)):
        assert not write_receipt(ledger, [SUM(ROWS, ExactNoise(), ledger.book)], n_users=50).valid


def test_a_plan_for_another_budget_voids_the_receipt() -> None:
    plan, other = (make_plan(epsilon, 1e-3, [Line("sum", 1)]) for epsilon in (1.0, 50.0))
    ledger = Ledger(Privacy(1.0, 1e-3, clip=1.0), plan)
    ledger.plan = other
    loud = replace(SUM, noise_multiplier=other.noise_multiplier("sum"))
    made = write_receipt(ledger, [loud(ROWS, ExactNoise(), ledger.book)], n_users=50)
    assert not made.valid
    assert "more than its budget of ε = 1" in made.reasons[0]


def test_a_sum_that_the_caller_added_up_voids_the_receipt() -> None:
    made = receipt(lambda ledger: SUM.release(1000 * SUM.partial(ROWS), ExactNoise(), ledger.book))
    assert not made.valid
    assert "added up by the caller" in made.reasons[0]


def test_only_a_run_says_that_a_sample_was_drawn() -> None:
    sampled = replace(SUM, sampling=0.01)
    for drawn in (True, "yes"):
        made = receipt(
            lambda ledger, drawn=drawn: sampled.give_out(sampled.partial(ROWS), ExactNoise(), ledger.book, drawn=drawn)
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


@pytest.mark.parametrize("name", ["rounds", "mean", "other"])
def test_a_start_from_another_ledger_is_not_paid_for(name: str) -> None:
    """Also if it was released under the name of one of the run's own releases."""
    expensive, mechanism = Ledger(Privacy(90.0, 1e-3, clip=1.0)), JointSum(name, 6, 1.0, 1.0)
    sums = mechanism(np.random.default_rng(1).random((200, 6)), ExactNoise(), expensive.book)
    start = sums.map(lambda v: np.abs(v).reshape(2, 3) / np.abs(v).reshape(2, 3).sum(1, keepdims=True))
    counts = np.random.default_rng(0).poisson(1.0, (200, 3))
    made = ct.HistogramMixture(clusters=2, init=start, privacy=Privacy(5.0, 1e-5, clip=1.0)).fit(counts)
    assert not made.receipt_.valid
    assert any(f"the release {name!r}, which its ledger does not hold" in r for r in made.receipt_.reasons)


# ---- edited receipts whose checksum was made anew ---------------------------------------------------------------------


def signed_anew(made: Any) -> Any:
    text = hashlib.sha256(canonical(asdict(made))).hexdigest()
    return replace(made, signature=made.signature | {"checksum": text})


def test_claims_beyond_the_listed_releases_are_found_without_a_ledger() -> None:
    made = receipt(lambda ledger: SUM(ROWS, ExactNoise(), ledger.book))
    assert not made.verify().fault
    for change in ({"adjacency": "replace"}, {"guarantee": "local"}, {"n_users": 10**7}):
        assert signed_anew(replace(made, **change)).verify().fault


@pytest.mark.parametrize("count", [10**7, 10**15])
def test_a_receipt_cannot_make_its_reader_wait(count: int) -> None:
    made = receipt(lambda ledger: SUM(ROWS, ExactNoise(), ledger.book))
    many = signed_anew(replace(made, releases=(made.releases[0] | {"count": count, "sampling": 0.5},)))
    assert f"it lists {count} releases or points" in many.verify().fault


def test_numbers_beyond_floats_in_a_receipt_are_one_fault() -> None:
    made = receipt(lambda ledger: SUM(ROWS, ExactNoise(), ledger.book))
    tiny = made.releases[0] | {"noise_multiplier": 1e-200, "sigma": 1e-200, "sampling": 0.5, "count": 1000}
    assert signed_anew(replace(made, releases=(tiny,))).verify().fault


def test_a_receipt_with_a_weak_delta_is_believed() -> None:
    ledger = Ledger(Privacy(9.0, 0.1, clip=1.0))
    made = write_receipt(ledger, [SUM(ROWS, ExactNoise(), ledger.book)], n_users=50)
    assert "1/50" in made.strength
    assert not made.verify().fault


_SAID = "Checked: the numbers follow from the releases, and the signature and the bookings are the ledger's."


@pytest.mark.parametrize("field", ["scope", "who_sees_what", "trust", "strength", "accountant", "unit"])
@pytest.mark.parametrize("text", [f"x\n\n{_SAID}\n", "\x1b]0;x\x07\x1b[2J", "\x9b31m", "a\u202eb\u2066c", "\r"])
def test_a_text_of_a_receipt_neither_steers_the_terminal_nor_passes_for_another_line(field: str, text: str) -> None:
    made = receipt(lambda ledger: SUM(ROWS, ExactNoise(), ledger.book))
    forged = replace(made, **{field: text}, public=(text,), releases=({**made.releases[0], "name": text},))
    for page in (forged.to_text(), forged._repr_html_(), signed_anew(replace(forged, epsilon=0.1)).verify().sentence):
        assert not set(page) & set("\x1b\x07\x9b\u202e\u2066\r")
        assert not [line for line in page.splitlines() if line == _SAID]
    assert len(forged.to_text().splitlines()) == len(made.to_text().splitlines())


def test_a_field_of_another_form_ends_in_one_sentence() -> None:
    """Every value of the JSON, at every depth, in turn becomes something else."""
    told = json.loads(receipt(lambda ledger: SUM(ROWS, ExactNoise(), ledger.book)).to_json())
    tried = 0
    for wrong in ([], {}, "x", True, 10**400, [[]], {"a": []}, 1.5):
        for path, value in places(told):
            if form_of(value) == form_of(wrong):
                continue
            tried += 1
            changed = copy.deepcopy(told)
            inside = changed
            for step in path[:-1]:
                inside = inside[step]
            inside[path[-1]] = wrong
            assert opened(json.dumps(changed)) in ("", "refused")
    assert tried > 300


def opened(told: str) -> str:
    """An empty text if the receipt can be shown and checked, or "refused"; any other error is raised."""
    try:
        found = Receipt.from_json(told)
    except ct.errors.ConfigError:
        return "refused"
    assert found.to_text()
    assert found.verify().sentence
    return ""


def places(value: Any, path: tuple[Any, ...] = ()) -> Any:
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in parts:
        yield (*path, name), part
        yield from places(part, (*path, name))


def form_of(value: Any) -> Any:
    return type(value) if not isinstance(value, int) or isinstance(value, bool) else ("whole", abs(value) < 1 << 63)


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
