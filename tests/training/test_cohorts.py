"""Who takes part: as many as asked, as often as asked, whatever the order of the clients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import coterie as ct
from coterie.training.cohorts import sampler


@pytest.fixture(scope="module")
def many() -> ct.Federation:
    n = 400
    return ct.Federation.from_flat(
        np.zeros((2 * n, 1), np.float32), np.tile([0, 1], n), sizes=np.full(n, 2), clients=[f"u{i}" for i in range(n)]
    )


def test_a_fixed_number_uniformly_without_replacement(many: ct.Federation) -> None:
    rounds = [ct.training.FixedSize(40).sample(many, 0, r) for r in range(300)]
    assert all(len(set(c.tolist())) == 40 and (np.diff(c) > 0).all() for c in rounds)
    counts = np.bincount(np.concatenate(rounds), minlength=400)
    assert np.abs(counts - 30).max() < 4.5 * np.sqrt(300 * 0.1 * 0.9)
    assert any(set(rounds[0]) != set(c) for c in rounds[1:])


def test_poisson_has_the_rate_and_the_spread_of_independent_draws(many: ct.Federation) -> None:
    sizes = np.array([len(ct.training.Poisson(0.1).sample(many, 0, r)) for r in range(300)])
    variance = 400 * 0.1 * 0.9
    assert abs(sizes.mean() - 40) < 4 * np.sqrt(variance / 300)
    assert abs(sizes.var() - variance) < 4 * variance * np.sqrt(2 / 299)
    assert len(ct.training.Poisson(1.0).sample(many, 0, 0)) == 400
    assert len(ct.training.Poisson(1e-9).sample(many, 0, 0)) == 0


def test_who_is_drawn_does_not_depend_on_where_a_client_stands(many: ct.Federation) -> None:
    turned = many.subset(list(many.clients)[::-1])
    for who in (ct.training.FixedSize(30), ct.training.Poisson(0.2)):
        one, two = ({f.clients[i] for i in who.sample(f, 3, 5)} for f in (many, turned))
        assert one == two
    few = many.subset([f"u{i}" for i in range(0, 400, 3)])
    drawn = {many.clients[i] for i in ct.training.Poisson(0.2).sample(many, 3, 5)}
    assert {few.clients[i] for i in ct.training.Poisson(0.2).sample(few, 3, 5)} == drawn & set(few.clients)


def test_short_forms_and_errors(many: ct.Federation) -> None:
    assert sampler(None) == ct.training.Everyone()
    assert sampler(5) == sampler(np.int64(5)) == ct.training.FixedSize(5)  # type: ignore[arg-type]
    assert sampler(0.5) == sampler(np.float32(0.5)) == ct.training.Poisson(0.5)  # type: ignore[arg-type]
    assert sampler(ct.training.FixedSize(2)) == ct.training.FixedSize(2)
    wrong: Any
    for wrong in (0, -3, 0.0, 1.5, "all", True):
        with pytest.raises(ct.errors.ConfigError):
            sampler(wrong)
    with pytest.raises(ct.errors.ConfigError, match="A cohort of 500 needs as many clients; got 400"):
        ct.training.FixedSize(500).sample(many, 0, 0)


def test_few_of_very_many_are_uniform_without_replacement() -> None:
    """A small cohort of a large federation is drawn without a number for every client."""
    size, n = 50, 20_000
    large = ct.Federation.from_flat(
        np.zeros((2 * n, 1)), np.zeros(2 * n), sizes=np.full(n, 2), clients=range(n), kind="regression", test_fraction=0
    )
    drawn = np.stack([ct.training.FixedSize(size).sample(large, 0, r) for r in range(400)])
    assert drawn.shape == (400, size)
    assert (np.diff(drawn, axis=1) > 0).all()
    assert 0 <= drawn.min() <= drawn.max() < n
    counts = np.bincount(drawn.ravel() * 10 // n, minlength=10)
    expected, deviation = 40 * size, np.sqrt(400 * size * 0.1 * 0.9)
    assert (abs(counts - expected) < 4 * deviation).all()
    np.testing.assert_array_equal(ct.training.FixedSize(size).sample(large, 0, 7), drawn[7])
    assert not np.array_equal(ct.training.FixedSize(size).sample(large, 1, 7), drawn[7])
