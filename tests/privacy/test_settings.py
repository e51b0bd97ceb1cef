"""Settings are checked when they are made; the warning comes before the run; the command's text says what to expect."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coterie.privacy
from coterie.errors import ConfigError
from coterie.privacy import (
    ExactNoise,
    JointSum,
    Ledger,
    Privacy,
    Receipt,
    budget_text,
    noise_multiplier,
    signal,
    write_receipt,
)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"epsilon": 0}, "epsilon to be a finite number above 0"),
        ({"epsilon": float("inf")}, "epsilon to be a finite number above 0"),
        ({"delta": 1.0}, "delta to be a number from 1e-300 to below 1"),
        ({"clip": -1.0}, "clip to be a number from 1e-100"),
        ({"noise": "float"}, "noise to be one of 'exact', 'simulation'"),
        ({"adjacency": "add"}, "adjacency to be one of"),
        ({"users": ""}, "users to be a short printable name"),
        ({"total_epsilon": 1.0}, "total_epsilon must be at least epsilon"),
    ],
)
def test_bad_budgets_are_one_sentence(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Privacy(**({"epsilon": 3.0, "delta": 1e-6, "clip": 1.0} | change))


def test_the_defaults_are_the_honest_ones() -> None:
    made = Privacy(3, 1e-6, 1.0)
    assert (made.noise, made.adjacency, made.ledger, made.total) == ("exact", "zero-out", None, 3)


def test_the_warning_comes_with_the_number_of_clients_that_would_do() -> None:
    z = noise_multiplier(3, 1e-4, 240, 1 / 3)
    found = signal(z, 44_000, 66, 1 / 3)
    assert found.ratio == pytest.approx(61, abs=0.5)
    assert found.drowned
    assert "4,030 clients would be enough" in found.warning
    assert not signal(z, 44_000, found.enough, 1 / 3).drowned
    assert signal(z, 44_000, found.enough - 2, 1 / 3).drowned
    assert signal(z, 44_000, found.enough, 1 / 3, adjacency="replace").ratio == pytest.approx(2, rel=1e-3)
    assert signal(1.0, 10, 1000).warning == ""


def test_the_budget_in_words() -> None:
    text = budget_text(3, 1e-6, 50)
    assert "z = 10.92" in text
    assert "every client in every round" in text
    assert "weak" not in text
    assert "larger than the signal" in budget_text(15, 1e-6, 50, dimension=10_000, clients=20)
    assert "weak formal guarantee" in budget_text(15, 1e-6, 50)
    assert "Δ = 2·clip" in budget_text(3, 1e-6, 5, adjacency="replace")
    assert "Poisson sampling" in budget_text(1, 1e-5, 5, 0.1)


_BELOW = ("coterie.privacy", "coterie.errors", "coterie.base")


def test_the_room_stands_alone() -> None:
    """No torch, and no other room; heavy packages come when first used."""
    heavy = ("torch", "dp_accounting", "opendp", "matplotlib")
    code = f"import sys, coterie.privacy; print([m for m in {heavy} if m in sys.modules])"
    source = str(Path(coterie.privacy.__file__).parents[2])
    found = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": source}, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"
    for file in Path(coterie.privacy.__file__).parent.rglob("*.py"):
        for line in file.read_text(encoding="utf-8").splitlines():
            words = line.split()
            if words[:1] in (["from"], ["import"]) and words[1].startswith("coterie"):
                assert words[1].startswith(_BELOW), (file.name, line)


def test_every_name_is_there() -> None:
    assert all(hasattr(coterie.privacy, name) for name in coterie.privacy.__all__)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.longdouble, Fraction])
def test_numbers_of_other_types_are_counted_in_full_precision_and_written_down(kind: Any, tmp_path: Path) -> None:
    budget = Privacy(kind(3), kind(2**-12), clip=kind(1), ledger=tmp_path / "book.sqlite")
    total = JointSum("sum", np.int64(2), budget.clip, kind(20))  # type: ignore[arg-type]
    assert {type(number) for number in (budget.epsilon, budget.delta, budget.clip, total.sigma)} == {float}
    assert type(total.dimension) is int
    ledger = Ledger(budget)
    receipt = write_receipt(ledger, [total(np.ones((9, 2)), ExactNoise(), ledger.book)], n_users=np.int64(9))
    assert Receipt.from_json(receipt.to_json()) == receipt
    assert receipt.epsilon == write_again(tmp_path).epsilon


def write_again(folder: Path) -> Receipt:
    ledger = Ledger(Privacy(3.0, 2**-12, clip=1.0, ledger=folder / "again.sqlite"))
    return write_receipt(ledger, [JointSum("sum", 2, 1.0, 20.0)(np.ones((9, 2)), ExactNoise(), ledger.book)], n_users=9)


@pytest.mark.parametrize(
    "wrong",
    [
        {"epsilon": np.float16("inf")}, {"epsilon": Fraction(10**400)}, {"epsilon": np.float32("nan")},
        {"delta": 5e-324}, {"delta": 1e-301}, {"clip": Fraction(1, 10**400)},
    ],
)  # fmt: skip
def test_numbers_that_no_account_can_be_kept_of_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"Privacy needs {next(iter(wrong))} to be"):
        Privacy(**({"epsilon": 1.0, "delta": 1e-5, "clip": 1.0} | wrong))
