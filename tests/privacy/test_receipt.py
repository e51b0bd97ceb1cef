"""A receipt is valid only if every step is paid for, and it says everything a privacy officer asks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.errors import ConfigError
from coterie.privacy import (
    ExactNoise,
    JointSum,
    Ledger,
    Line,
    LocalGaussian,
    Privacy,
    Receipt,
    Released,
    SimulationNoise,
    combine,
    make_plan,
    non_private,
    public,
    write_receipt,
)
from coterie.privacy.receipt import weak_delta

ROWS = np.random.default_rng(0).normal(size=(50, 3))


def run(noise: Any, epsilon: float = 3.0, ledger: Path | None = None) -> tuple[Ledger, list[Released[Any]]]:
    plan = make_plan(epsilon, 1e-6, [Line("mean", 0.1), Line("rounds", 0.9, 3)])
    book = Ledger(Privacy(epsilon, 1e-6, 1.0, noise=noise.name, ledger=ledger), plan)
    mean, rounds = (JointSum(n, 3, 1.0, plan.noise_multiplier(n)) for n in ("mean", "rounds"))
    return book, [mean(ROWS, noise, book.book), *(rounds(ROWS, noise, book.book) for _ in range(2))]


def test_a_clean_run_gets_a_valid_receipt(tmp_path: Path) -> None:
    book, values = run(ExactNoise(), ledger=tmp_path / "l.sqlite")
    made = write_receipt(book, values, n_users=50, choices={"clip": "public", "start": "released: mean"})
    assert made.valid
    assert made.reasons == ()
    assert made.epsilon < 3  # two of three rounds
    assert made.delta == 1e-6
    mean, rounds = made.releases
    assert (rounds["count"], rounds["planned"], mean["share"]) == (2, 3, 0.1)
    assert mean["sigma"] == pytest.approx(mean["noise_multiplier"] * mean["sensitivity"])
    assert made.cross_check["epsilon"] == pytest.approx(made.epsilon, rel=1e-3)
    assert all(d1 >= d2 for (_, d1), (_, d2) in zip(made.curve, made.curve[1:], strict=False))
    assert dict(made.curve)[made.epsilon] <= 1e-6
    assert made.strength == ""
    assert Receipt.from_json(made.to_json()) == made
    assert json.loads(made.to_json())["valid"] is True
    text = made.to_text()
    for word in (
        "PRIVACY RECEIPT",
        "zero-out",
        "OpenDP",
        "trust",
        "not covered",
        "timing",
        "2 of 3 planned",
        "50 users",
    ):
        assert word in text, word
    assert "<script" not in made._repr_html_()
    assert made.page() == text


def test_earlier_runs_are_on_the_receipt(tmp_path: Path) -> None:
    plan = make_plan(1, 1e-6, [Line("mean", 1)])
    budget = Privacy(1, 1e-6, 1.0, ledger=tmp_path / "l.sqlite", total_epsilon=3.0)
    made = []
    for _ in range(2):
        book = Ledger(budget, plan)
        value = JointSum("mean", 3, 1.0, plan.noise_multiplier("mean"))(ROWS, ExactNoise(), book.book)
        book.close()
        made.append(write_receipt(book, [value], n_users=50))
    assert made[0].cumulative["epsilon"] == made[0].epsilon == made[1].epsilon
    assert made[1].cumulative["epsilon"] > made[1].epsilon
    assert made[1].cumulative["earlier_releases"] == 1


def test_a_simulation_is_not_a_release() -> None:
    book, values = run(SimulationNoise(3))
    made = write_receipt(book, values, n_users=50)
    assert not made.valid
    assert made.to_text().startswith("NOT A DP RELEASE")
    assert any("NOT A DP RELEASE" in reason for reason in made.reasons)


def test_a_large_epsilon_is_called_weak() -> None:
    book, values = run(ExactNoise(), epsilon=15.0)
    assert write_receipt(book, values, n_users=50).strength == "weak formal guarantee"
    assert "weak formal guarantee" in write_receipt(book, values, n_users=50).to_text()


def test_a_delta_of_one_in_n_is_named() -> None:
    for n in range(1, 2000):
        assert weak_delta(1 / n, n), n  # 1/49 · 49 is a little less than 1
        assert not weak_delta(1 / (n + 1), n), n


def test_a_release_of_another_run_is_not_covered(tmp_path: Path) -> None:
    budget = Privacy(1, 1e-6, 1.0, ledger=tmp_path / "l.sqlite", total_epsilon=3.0)
    first, second = Ledger(budget), Ledger(budget)
    made = JointSum("mean", 3, 1.0, 20.0)
    others, own = (made(ROWS, ExactNoise(), book.book) for book in (first, second))
    assert write_receipt(second, [own], n_users=50).valid
    assert write_receipt(second, [own, others], n_users=50).reasons == (
        "unaccounted: the release 'mean' is not booked in this run's ledger",
    )


def test_taint_travels_with_the_values() -> None:
    book, values = run(ExactNoise())
    seeds = non_private(ROWS[:2], "the start publishes raw rows")
    derived = combine(lambda start, noisy: start + noisy, seeds, values[0]).map(np.tanh)
    assert not derived.clean
    made = write_receipt(book, [derived], n_users=50)
    assert not made.valid
    assert made.reasons == ("unaccounted: the start publishes raw rows",)
    assert "NO PRIVACY CLAIM" in made.to_text()
    clean = combine(lambda a, b, c: a + b * c, values[0], values[1], public(2.0)).map(abs)
    assert clean.clean
    assert len(clean.bookings) == 2
    assert write_receipt(book, [clean], n_users=50).valid


@pytest.mark.parametrize(
    "spoil",
    [
        lambda book, values: ([combine(lambda a, b: a + b, values[0], ROWS[0])], {}),  # clear data mixed in
        lambda book, values: ([JointSum("mean", 3, 1.0, 9.0)(ROWS, ExactNoise())], {}),  # never booked
        lambda book, values: (values, {"number of clusters": "tuned on the training users"}),
        lambda book, values: (values, {"clip": "released: quantile"}),  # no such release
        lambda book, values: ([], {}),
        lambda book, values: (run(ExactNoise())[1], {}),  # booked in another ledger
        lambda book, values: (book.void("unaccounted: individual replies were read"), (values, {}))[1],
    ],
)
def test_everything_unaccounted_voids_the_receipt(spoil: Any) -> None:
    book, values = run(ExactNoise())
    assert write_receipt(book, values, n_users=50).valid
    shown, choices = spoil(book, values)
    made = write_receipt(book, shown, n_users=50, choices=choices)
    assert not made.valid
    assert all(reason.startswith("unaccounted: ") for reason in made.reasons)


def test_a_local_run_says_so() -> None:
    book = Ledger(Privacy(1, 1e-5, 1.0))
    made = LocalGaussian.calibrated("reports", 3, 1.0, 0.99, 1e-5)
    receipt = write_receipt(book, [made(ROWS, ExactNoise(), book.book)], n_users=50)
    assert receipt.valid
    assert receipt.guarantee == "local"
    assert receipt.epsilon == pytest.approx(0.99, rel=2e-3)
    assert "not even the server" in receipt.who_sees_what
    with pytest.raises(ConfigError, match="guarantee must be"):
        write_receipt(book, [], n_users=50, guarantee="total")
    both = Ledger(Privacy(3, 1e-5, 1.0))
    values = [made(ROWS, ExactNoise(), both.book), JointSum("sum", 3, 1.0, 9.0)(ROWS, ExactNoise(), both.book)]
    mixed = write_receipt(both, values, n_users=50, guarantee="local")
    assert mixed.reasons == ("a local guarantee was claimed, and a release is not local",)
    assert write_receipt(both, values, n_users=50).guarantee == "central"
    with pytest.raises(ConfigError, match="not a privacy receipt"):
        Receipt.from_json("{}")
