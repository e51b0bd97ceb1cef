"""Sums of squares and products of rows, in disjoint folds, as one Gaussian release that protects a unit of rows.

A row v is shortened to the clip c and told as v vᵀ, whose Frobenius norm is at most c². A unit has at most k rows, all of
them in one fold, so it changes all sums together by at most k c². Matrices v vᵀ have no negative inner product: one unit in
the place of another changes the sums by at most √2 k c². Matrices are handled as vectors of their upper halves, in which
what stands off the diagonal counts √2 times, so that norms agree."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.base.annotations import guarded
from coterie.base.arguments import Count, Part, Positive, numbers, regular
from coterie.errors import DataError
from coterie.privacy.mechanisms.gaussian import Book
from coterie.privacy.mechanisms.lattice import Floats, Integers, Lattice, clip_rows
from coterie.privacy.mechanisms.noise import Noise
from coterie.privacy.mechanisms.sums import ClippedSum
from coterie.privacy.taint import Released
from coterie.privacy.terms import Adjacency, Clip

_BLOCK = 1 << 22  # numbers at work at once


def vectors(matrices: Floats) -> Floats:
    """Symmetric matrices (…, q, q) as vectors of the same norm (…, q (q + 1) / 2)."""
    i, j = np.triu_indices(matrices.shape[-1])
    return np.asarray(matrices[..., i, j] * np.where(i == j, 1.0, math.sqrt(2)))


def matrices(vectors: Floats, q: int) -> Floats:
    """The symmetric matrices of such vectors."""
    i, j = np.triu_indices(q)
    found = np.zeros((*vectors.shape[:-1], q, q))
    found[..., i, j] = found[..., j, i] = vectors / np.where(i == j, 1.0, math.sqrt(2))
    return found


def kept_rows(unit: Any, most: int, noise: Noise) -> np.ndarray[Any, Any]:
    """Which rows count: of every unit at most `most`, chosen at random among its own rows alone."""
    draw = noise.bits(len(unit))
    order = np.lexsort((draw, unit))
    first = np.flatnonzero(np.r_[True, np.diff(unit[order]) != 0]) if len(unit) else np.zeros(0, np.int64)
    place = np.arange(len(unit)) - np.repeat(first, np.diff(np.r_[first, len(unit)]))
    kept = np.zeros(len(unit), bool)
    kept[order] = place < most
    return kept


@guarded
@dataclass(frozen=True)
class UnitMoments(ClippedSum):
    """Σ v vᵀ over the rows of each fold, (folds, columns, columns), with one Gaussian of σ = noise_multiplier·Δ.

    A unit's fold is drawn by itself, so that no other unit's place depends on it. Rows not finite count as zeros."""

    name: str
    folds: Count
    columns: Count
    clip: Clip
    noise_multiplier: Positive
    most: Count = 1
    adjacency: Adjacency = "zero-out"
    sampling: Part = 1.0
    bits: Count = 20

    @property
    def dimension(self) -> int:  # type: ignore[override]
        return self.columns * (self.columns + 1) // 2

    @property
    def lattice(self) -> Lattice:
        return Lattice(self.most * self.clip**2, self.dimension, self.bits)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.folds, self.dimension)

    @property
    def lattice_sensitivity(self) -> float:
        """Rounding moves each of two units by √D/2 at most."""
        alone = self.lattice.radius
        return alone if self.adjacency == "zero-out" else math.sqrt(2) * (alone + math.sqrt(self.dimension) / 2)

    @property
    def derivation(self) -> str:
        factor, rounding = ("", "g·√D/2") if self.adjacency == "zero-out" else ("√2·", "g·√D")
        change = "one unit more or less" if self.adjacency == "zero-out" else "one unit in the place of another"
        return (
            f"{factor}(k·c² + {rounding}) for {change}, k = {self.most} rows of a unit, c = {self.clip:g} the L2 clip of a "
            f"row, g = k·c²·2^-{self.bits}, D = {self.dimension}"
        )

    def partial(self, rows: Any, unit: Any, fold: Any) -> Integers:
        """The exact sums, of rows with these units; `fold` is that of every unit."""
        rows = np.array(numbers("rows", rows), ndmin=2)
        unit, fold = (regular(n, v) for n, v in (("unit", unit), ("fold", fold)))
        if rows.shape != (len(unit), self.columns) or np.bincount(unit, minlength=1).max() > self.most:
            raise DataError(
                f"rows must have {self.columns} columns and a unit each, with at most {self.most} rows of a unit; got shape "
                f"{rows.shape}. Leave out rows with kept_rows."
            )
        self.require_room(len(fold))
        total, step = np.zeros(self.shape, np.int64), max(1, _BLOCK // (self.dimension * self.most))
        for start in range(0, len(fold), step):
            here = (unit >= start) & (unit < start + step)
            v = clip_rows(rows[here], self.clip).rows
            told = np.zeros((len(fold[start : start + step]), self.dimension))
            np.add.at(told, unit[here] - start, vectors(v[:, :, None] * v[:, None, :]))
            np.add.at(total, fold[start : start + step], self.lattice.round(told))
        return total

    def noisy(self, total: Integers, noise: Noise) -> Floats:
        return matrices(self.noisy_steps(total, noise) * self.step, self.columns)

    @guarded
    def __call__(self, rows: Any, unit: Any, noise: Noise, book: Book | None = None) -> Released[Floats]:
        """The release of these rows; `unit` (whole numbers) says whose each row is. Draws which rows count, and folds."""
        unit = regular("unit", unit)
        kept = kept_rows(unit, self.most, noise)
        known, code = np.unique(unit[kept], return_inverse=True)
        fold = (noise.bits(len(known)) % np.uint64(self.folds)).astype(np.int64)
        return self.give_out(self.partial(np.asarray(rows)[kept], code, fold), noise, book)
