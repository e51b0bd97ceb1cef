"""Shares: any `threshold` of them give the secret, and one fewer fit every secret."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.secure.shamir import PRIME, joined, value_at, weights

NUMBERS = st.integers(0, PRIME - 1)


def test_the_prime_is_the_largest_below_two_to_the_256() -> None:
    """Fermat's test with many bases; every number between has a small factor."""
    assert all(pow(base, PRIME - 1, PRIME) == 1 for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37))
    assert all(pow(2, n - 1, n) != 1 for n in range(PRIME + 2, 2**256, 2))


@given(st.lists(NUMBERS, min_size=1, max_size=6), st.integers(0, 4), st.randoms())
def test_any_threshold_of_the_shares_gives_the_secret(polynomial: list[int], more: int, random: object) -> None:
    threshold = len(polynomial)
    shares = {i: value_at(polynomial, i) for i in range(threshold + more)}
    chosen = random.sample(sorted(shares), threshold)  # type: ignore[attr-defined]
    assert joined({i: shares[i] for i in chosen}, weights(chosen)) == polynomial[-1]


@given(NUMBERS, NUMBERS, NUMBERS)
def test_fewer_shares_fit_every_secret(secret: int, other: int, slope: int) -> None:
    """The share of one of two members could belong to any secret: some other line goes through it."""
    share = value_at([slope, secret], 1)
    line = (share - other) * pow(2, -1, PRIME) % PRIME
    assert value_at([line, other], 1) == share


def test_shares_of_one_polynomial_agree_in_every_choice() -> None:
    polynomial = [11, 22, 33, 44]
    shares = {i: value_at(polynomial, i) for i in range(7)}
    for chosen in combinations(shares, 4):
        assert joined({i: shares[i] for i in chosen}, weights(chosen)) == 44
    assert joined({i: shares[i] for i in range(3)}, weights(range(3))) != 44


@pytest.mark.parametrize("false", [1, PRIME - 1])
def test_a_false_share_changes_the_secret(false: int) -> None:
    shares = {0: value_at([5, 7], 0), 1: (value_at([5, 7], 1) + false) % PRIME}
    assert joined(shares, weights([0, 1])) != 7
