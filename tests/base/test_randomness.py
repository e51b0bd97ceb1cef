"""Random numbers that are functions: uniform, independent, the same however they are asked for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from coterie.base import randomness

KEYS = randomness.fold(torch.arange(200), "test")


def test_uniform_and_normal_pass_a_goodness_of_fit_test() -> None:
    u = randomness.uniform(KEYS, 500, torch.float64).flatten().numpy()
    assert stats.kstest(u, "uniform").pvalue > 1e-3
    z = randomness.normal(KEYS, 500, torch.float64).flatten().numpy()
    assert stats.kstest(z, "norm").pvalue > 1e-3
    assert randomness.uniform(KEYS, 500).max() < 1
    assert randomness.uniform(KEYS, 500).min() >= 0
    assert randomness.uniform(KEYS, 5, torch.float64).dtype == torch.float64


def test_every_bit_is_fair() -> None:
    words = randomness.bits(KEYS, 500).flatten().numpy().view(np.uint64)
    ones = np.array([((words >> np.uint64(b)) & np.uint64(1)).mean() for b in range(64)])
    assert np.abs(ones - 0.5).max() < 4.5 * 0.5 / np.sqrt(len(words))


@pytest.mark.parametrize("other", ["next client", "next round", "other purpose", "other seed", "next draw"])
def test_neighbours_are_uncorrelated(other: str) -> None:
    keys = torch.arange(20_000)

    def draw(shift: int = 0, seed: int = 0, purpose: str = "a", round: int = 0, draw: int = 0) -> np.ndarray:
        base = randomness.fold(randomness.client_keys(keys + shift, seed), purpose, round)
        return np.asarray(randomness.uniform(base, 2, torch.float64)[:, draw])

    change = {
        "next client": {"shift": 1},
        "next round": {"round": 1},
        "other purpose": {"purpose": "b"},
        "other seed": {"seed": 1},
        "next draw": {"draw": 1},
    }[other]
    r = np.corrcoef(draw(), draw(**change))[0, 1]  # type: ignore[arg-type]
    assert abs(r) < 4 / np.sqrt(len(keys))


def test_a_clients_key_is_the_same_from_an_array_or_a_tensor() -> None:
    keys = torch.tensor([0, 5, -7])
    assert torch.equal(randomness.client_keys(keys.numpy(), 3), randomness.client_keys(keys, 3))
    assert torch.equal(randomness.client_keys(keys, 3), keys ^ randomness.base_key(3))


def test_keys_do_not_collide_and_order_of_folding_matters() -> None:
    key = randomness.base_key(0)
    many = {int(randomness.fold(key, a, b)) for a in range(60) for b in range(60)}
    assert len(many) == 3600
    assert randomness.fold(key, "a", "b") != randomness.fold(key, "b", "a")
    assert randomness.fold(key, -1) == randomness.fold(key, torch.tensor(-1)) == randomness.fold(key, (1 << 64) - 1)
    assert randomness.base_key(2**70) == randomness.base_key(0)  # any whole number is a seed


def test_a_permutation_ignores_the_padding_behind_the_samples() -> None:
    key = randomness.base_key(3)
    short = randomness.permutation(key, torch.ones(7))
    assert sorted(short.tolist()) == list(range(7))
    padded = randomness.permutation(key, torch.tensor([1.0] * 7 + [0.0] * 5))
    assert torch.equal(padded[:7], short)
    assert padded[7:].tolist() == list(range(7, 12))


def test_permutations_are_uniform() -> None:
    orders = randomness.permutation(randomness.fold(torch.arange(6000), "p"), torch.ones(6000, 3))
    _, counts = np.unique(orders.numpy(), axis=0, return_counts=True)
    assert len(counts) == 6
    assert stats.chisquare(counts).pvalue > 1e-3


def test_the_same_inside_and_outside_vmap_for_one_key_or_many() -> None:
    mask = (torch.arange(9) < torch.arange(3, 8).unsqueeze(-1)).float()
    keys = KEYS[:5]

    def one(key: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        key = randomness.fold(key, "x", 4)
        return randomness.uniform(key, 6), randomness.normal(key, 6), randomness.permutation(key, mask)

    together = torch.func.vmap(one)(keys, mask)
    for stacked, outside in zip(together, one(keys, mask), strict=True):
        assert torch.equal(stacked, outside)
    for i in range(5):
        for stacked, alone in zip(together, one(keys[i], mask[i]), strict=True):
            assert torch.equal(stacked[i], alone)
    assert torch.equal(randomness.uniform(keys, 9)[:, :4], randomness.uniform(keys, 4))
