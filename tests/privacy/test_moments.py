"""Sums of squares that protect rows: no neighbour moves them by more than Δ; an audit passes them and catches less noise."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.errors import DataError
from coterie.privacy import SimulationNoise, UnitMoments, audit, compose, mechanism_worlds, noise_multiplier
from coterie.privacy.mechanisms.moments import kept_rows, matrices, vectors

Z = noise_multiplier(3, 1e-5, 1)
SCALES = (1e-3, 0.3, 1.0, 50.0)


@st.composite
def neighbours(draw: Any) -> tuple[UnitMoments, np.ndarray, np.ndarray]:
    """A mechanism, and the rows of one unit in two worlds; directions, lengths and numbers of rows are searched."""
    q, most = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    made = UnitMoments(
        "m",
        draw(st.integers(1, 3)),
        q,
        draw(st.sampled_from([0.5, 1.0, 3.0])),
        1.0,
        most,
        bits=draw(st.integers(3, 20)),
    )
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    def rows() -> np.ndarray:
        found = rng.normal(size=(draw(st.integers(1, most)), q)) * draw(st.sampled_from(SCALES)) * made.clip
        if draw(st.booleans()):  # all in one direction, as far apart from other directions as can be
            found = np.zeros_like(found) + np.eye(q)[draw(st.integers(0, q - 1))] * 3 * made.clip
        return np.asarray(found)

    return made, rows(), rows()


def change(made: UnitMoments, one: np.ndarray, other: np.ndarray, folds: tuple[int, int]) -> float:
    """The length of the difference of the exact sums, computed with Python's integers; other units are there too."""
    rest = np.full((2, made.columns), 0.2)
    sums = [
        made.partial(np.concatenate([rest, rows]), np.r_[0, 1, np.full(len(rows), 2)], np.array([0, 0, fold]))
        for rows, fold in zip((one, other), folds, strict=True)
    ]
    return math.sqrt(sum(int(v) ** 2 for v in (sums[0] - sums[1]).ravel()))


@given(neighbours(), st.data())
def test_no_unit_changes_the_sums_by_more_than_stated(found: Any, data: Any) -> None:
    made, one, other = found
    folds = tuple(data.draw(st.integers(0, made.folds - 1)) for _ in range(2))
    replaced = replace(made, adjacency="replace")
    assert change(made, one, other, folds) <= replaced.lattice_sensitivity
    assert change(made, one, np.zeros((0, made.columns)), (folds[0], 0)) <= made.lattice_sensitivity


@pytest.mark.parametrize("most", [1, 4])
def test_the_stated_sensitivity_is_reached(most: int) -> None:
    """By units whose rows stand at a right angle to the other's: the bound is not loose."""
    made = UnitMoments("m", 1, 3, 2.0, 1.0, most)
    one, other = np.tile([9.0, 0, 0], (most, 1)), np.tile([0, 9.0, 0], (most, 1))
    reached = change(made, one, other, (0, 0)) / replace(made, adjacency="replace").lattice_sensitivity
    assert 0.9999 < reached <= 1
    assert 0.9999 < change(made, one, np.zeros((0, 3)), (0, 0)) / made.lattice_sensitivity <= 1


def test_vectors_keep_norms_and_turn_back() -> None:
    rng = np.random.default_rng(0)
    m = rng.normal(size=(4, 5, 5))
    m = m + m.swapaxes(1, 2)
    assert np.allclose(np.linalg.norm(vectors(m), axis=1), np.linalg.norm(m, axis=(1, 2)))
    assert np.allclose(matrices(vectors(m), 5), m)


def test_rows_beyond_the_most_of_a_unit_are_left_out_by_that_unit_alone() -> None:
    unit = np.array([3, 1, 1, 1, 7, 1, 3])
    kept = kept_rows(unit, 2, SimulationNoise(0))
    assert np.bincount(unit[kept], minlength=8).tolist() == [0, 2, 0, 2, 0, 0, 0, 1]
    often = np.mean([kept_rows(unit, 2, SimulationNoise(s)) for s in range(2000)], 0)
    assert np.abs(often - [1, 0.5, 0.5, 0.5, 1, 0.5, 1]).max() < 4 * math.sqrt(0.25 / 2000)


def test_a_unit_with_too_many_rows_is_refused_by_the_sums() -> None:
    made = UnitMoments("m", 2, 2, 1.0, Z, 2)
    with pytest.raises(DataError, match="at most 2 rows of a unit"):
        made.partial(np.ones((3, 2)), np.zeros(3, np.int64), np.zeros(1, np.int64))


def test_the_release_is_the_sum_with_noise_of_the_stated_size() -> None:
    made = UnitMoments("m", 3, 2, 1.0, Z)
    rows = np.random.default_rng(1).uniform(-1, 1, (50, 2)) / 2
    told = np.stack([made(rows, np.arange(50), SimulationNoise(s)).value for s in range(2000)])
    total, margin = told.sum(1), 4 * math.sqrt(3) * made.sigma / math.sqrt(2000)
    assert np.abs(total.mean(0) - rows.T @ rows).max() < margin  # over folds
    off = told[:, :, 0, 1] - told[:, :, 0, 1].mean(0)
    drawn = (rows[:, 0] * rows[:, 1]).var() * 50 / 3  # of which rows are in the fold, about
    assert abs(off.var() / (made.sigma**2 / 2 + drawn) - 1) < 0.1


@pytest.mark.parametrize("adjacency", ["zero-out", "replace"])
@pytest.mark.parametrize("most", [1, 3])
def test_an_audit_passes_it_and_catches_a_tenth_of_the_noise(adjacency: str, most: int) -> None:
    made = UnitMoments("rows", 2, 4, 1.0, Z, most, adjacency)
    claim = compose([made.event()])
    found = audit(mechanism_worlds(made, "simulation"), claim, seed=1)
    assert found.passed, found.to_text()
    assert found.epsilon_lower <= 3
    assert found.mu_lower >= 0.8 * found.claimed_mu  # the canary is as loud as it may be
    broken = replace(made, noise_multiplier=Z / 10)
    assert not audit(mechanism_worlds(broken, "simulation"), claim, seed=1).passed


def test_an_audit_catches_rows_that_are_not_clipped() -> None:
    made = UnitMoments("rows", 1, 3, 1.0, Z)
    loud = replace(made, clip=2.0, noise_multiplier=Z / 4)  # the same noise, and a clip twice as long
    assert not audit(mechanism_worlds(loud, "simulation"), compose([made.event()]), seed=2).passed
