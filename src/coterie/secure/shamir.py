"""Shamir's shares: any ``threshold`` of them give the secret, and fewer say nothing about it.

Shamir, "How to share a secret" (CACM 1979): a secret is the value at 0 of a polynomial of degree threshold − 1 with random
coefficients, modulo a prime, and member i holds its value at i + 1. The prime is the largest below 2²⁵⁶.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

PRIME = 2**256 - 189
SIZE = 32  # bytes of a share


def value_at(coefficients: Sequence[int], member: int) -> int:
    """The share of a member, from the coefficients, of which the last is the secret."""
    value = 0
    for coefficient in coefficients:
        value = value * (member + 1) + coefficient
    return value % PRIME


def weights(members: Sequence[int]) -> dict[int, int]:
    """What each member's share counts in a secret (Lagrange's polynomials at 0)."""
    found = {}
    for i in members:
        above = below = 1
        for j in members:
            if j != i:
                above, below = above * (j + 1) % PRIME, below * (j - i) % PRIME
        found[i] = above * pow(below, -1, PRIME) % PRIME
    return found


def joined(shares: Mapping[int, int], weight: Mapping[int, int]) -> int:
    """The secret, from as many shares as the threshold, by member."""
    return sum(weight[i] * share for i, share in shares.items()) % PRIME
