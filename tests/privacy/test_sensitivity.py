"""Sensitivity is a fact about integers: one user moves the pre-noise vector by at most Δ, whatever it sends."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from coterie.errors import DataError
from coterie.privacy import GroupSums, JointSum, Lattice, NoisyPower, Quantile, clip_rows

ANY = st.floats(allow_nan=True, allow_infinity=True, width=64)
CANARIES = {
    "one-hot": lambda d, c: np.eye(1, d)[0] * c,
    "minus one-hot": lambda d, c: -np.eye(1, d)[0] * c,
    "a thousand clips": lambda d, c: np.full(d, 1e3 * c / math.sqrt(d)),
    "just at the clip": lambda d, c: np.full(d, c / math.sqrt(d)),
    "just above the clip": lambda d, c: np.full(d, 1.004 * c / math.sqrt(d)),
    "half steps": lambda d, c: np.full(d, 2.0**-21 * c),
    "largest float": lambda d, c: np.full(d, np.finfo(float).max),
    "tiniest float": lambda d, c: np.full(d, 5e-324),
    "NaN": lambda d, c: np.full(d, np.nan),
    "one infinity": lambda d, c: np.where(np.arange(d) == 0, np.inf, 0.1),
    "empty": lambda d, c: np.zeros(d),
}


@st.composite
def users(draw: Any) -> tuple[np.ndarray, float]:
    """Six users of arbitrary floats, some of them canaries, ties included, and a clip."""
    d, clip = draw(st.integers(1, 6)), draw(st.sampled_from([1e-3, 0.7, 1.0, 250.0]))
    rows = draw(arrays(np.float64, (6, d), elements=ANY))
    for i in draw(st.lists(st.integers(0, 5), max_size=5)):
        rows[i] = CANARIES[draw(st.sampled_from(sorted(CANARIES)))](d, clip)
    if draw(st.booleans()):
        rows[1] = rows[0]
    return rows, clip


def norm(x: Any) -> float:
    """Exact: integers of Python do not overflow."""
    return math.sqrt(sum(int(v) ** 2 for v in np.asarray(x).ravel()))


@pytest.mark.parametrize("width", [1, 9, 127, 8192, 8193, 20_000])
def test_a_clipped_row_does_not_depend_on_the_other_rows(width: int) -> None:
    """To the last bit, and however many others there are; norms by einsum differ in the last digit from 8,193 numbers on."""
    rows = np.random.default_rng(width).normal(size=(12, width))
    for layout in "CF":
        together = clip_rows(np.array(rows, order=layout), 0.5).rows
        for count in (1, 2, 5):
            assert (clip_rows(np.array(rows[3 : 3 + count], order=layout), 0.5).rows == together[3 : 3 + count]).all()


@given(users())
def test_joint_sum(case: tuple[np.ndarray, float]) -> None:
    rows, clip = case
    zero, one = (JointSum("s", rows.shape[1], clip, 1.0, adjacency=a) for a in ("zero-out", "replace"))
    total, out = zero.partial(rows), zero.partial(np.vstack([np.zeros_like(rows[:1]), rows[1:]]))
    assert norm(total - out) <= zero.sensitivity / zero.lattice.step
    assert norm(total - zero.partial(np.vstack([rows[2:3], rows[1:]]))) <= one.sensitivity / one.lattice.step
    assert (zero.partial(rows[:2]) + zero.partial(rows[2:]) == total).all()  # chunks add up
    assert (zero.partial(rows[::-1]) == total).all()  # in any order


@given(
    users(), st.lists(st.integers(-1, 2), min_size=6, max_size=6), st.integers(-1, 2), st.sampled_from([0.3, 1.0, 40.0])
)
def test_counts_and_sums_by_group(case: tuple[np.ndarray, float], labels: list[int], moved: int, weight: float) -> None:
    rows, clip = case
    made = {a: GroupSums("g", 3, rows.shape[1], clip, 1.0, weight * clip, adjacency=a) for a in ("zero-out", "replace")}
    zero = made["zero-out"]
    before = zero.partial(rows, np.array(labels))
    out = zero.partial(rows, np.array([-1, *labels[1:]]))
    assert norm(before - out) <= zero.lattice_sensitivity
    other = zero.partial(np.vstack([rows[3:4], rows[1:]]), np.array([moved, *labels[1:]]))  # new data, new cluster
    assert norm(before - other) <= made["replace"].lattice_sensitivity


@given(users(), st.integers(0, 99))
def test_noisy_power(case: tuple[np.ndarray, float], seed: int) -> None:
    rows, clip = case
    d, k = rows.shape[1], min(2, rows.shape[1])
    basis = np.linalg.qr(np.random.default_rng(seed).normal(size=(d, k)))[0]
    made = {a: NoisyPower("p", d, k, clip, 1.0, adjacency=a) for a in ("zero-out", "replace")}
    total = made["zero-out"].partial(rows, basis)
    out = made["zero-out"].partial(np.vstack([np.zeros((1, d)), rows[1:]]), basis)
    other = made["zero-out"].partial(np.vstack([rows[3:4], rows[1:]]), basis)
    assert norm(total - out) <= made["zero-out"].lattice_sensitivity
    assert norm(total - other) <= made["replace"].lattice_sensitivity


@given(arrays(np.float64, 6, elements=ANY), ANY, st.floats(1e-3, 1e3))
def test_quantile_counts(values: np.ndarray, changed: float, threshold: float) -> None:
    q = Quantile("q", 0.5, 1e-3, 1e3, 1.0, 6)
    other = values.copy()
    other[0] = changed
    assert abs(q.count(values, threshold) - q.count(other, threshold)) <= 1


@pytest.mark.parametrize("name", CANARIES)
@pytest.mark.parametrize("dimension", [1, 7, 5000])
def test_each_canary_is_short_on_the_lattice(name: str, dimension: int) -> None:
    lattice = Lattice(0.3, dimension)
    assert norm(lattice.round(CANARIES[name](dimension, 0.3)[None])) <= lattice.radius


def test_the_bound_is_reached_and_not_loose() -> None:
    made = JointSum("s", 3, 2.0, 1.0)
    assert norm(made.partial([[5.0, 0, 0]])) >= 2**20 - 1
    assert made.sensitivity == pytest.approx(2.0, rel=1e-5)
    group = GroupSums("g", 2, 1, 1.0, 1.0, 1.0, adjacency="replace")
    moved = group.partial([[9.0]], [0]) - group.partial([[9.0]], [1])
    assert norm(moved) == pytest.approx(2 * 2**20, rel=1e-5)
    assert group.sensitivity == pytest.approx(2.0, rel=1e-5)


def test_clipping_keeps_direction_and_counts_what_it_did() -> None:
    done = clip_rows([[3.0, 4.0], [0.3, 0.4], [np.nan, 1.0], [1e300, 1e300]], 1.0)
    assert done.rows == pytest.approx(np.array([[0.6, 0.8], [0.3, 0.4], [0, 0], [0.5**0.5, 0.5**0.5]]))
    assert (done.n_clipped, done.n_nonfinite) == (2, 1)


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(DataError, match="each user sends 2 numbers, got 3"):
        Lattice(1.0, 2).round(np.zeros((4, 3)))
    with pytest.raises(DataError, match="labels must lie in"):
        GroupSums("g", 2, 1, 1.0, 1.0).partial(np.zeros((2, 1)), [0, 2])
    with pytest.raises(DataError, match="labels must hold"):
        GroupSums("g", 2, 1, 1.0, 1.0).partial(np.zeros((2, 1)), [0.0, 1.0])
