"""Users' histograms as blocks of rows, in memory or on disk: the only view of the data the fitting loops have."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial, reduce
from typing import Any, Literal, TypeVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from coterie.base.cores import usable_cores
from coterie.errors import DataError
from coterie.estimation.histograms.counts import Counts, Floats, Ints
from coterie.estimation.histograms.kl import entropies, normalise, row_sums

Result = TypeVar("Result")
Weighting = Literal["user", "token"]
Load = Callable[[int, int], Counts]


def default_threads() -> int:
    """The cores this process may use, or fewer when OMP_NUM_THREADS says so."""
    cores = usable_cores()
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores, int(limit)) if limit.isdigit() and int(limit) > 0 else cores


class HistogramRows:
    """Rows w_u Q̂_u in blocks; w_u = 1 (each user counts once, the paper's) or m_u (each token counts once).

    `load(start, stop)` returns raw counts. Blocks of data in memory are prepared once; blocks on disk every time,
    so that memory does not grow with the number of users.
    """

    def __init__(
        self,
        load: Load,
        users: int,
        weighting: Weighting = "user",
        *,
        prepare: Callable[[Counts], Counts] | None = None,
        keep: bool = True,
        block: int = 4096,
        threads: int | None = None,
    ) -> None:
        self.users, self.weighting, self.threads = users, weighting, threads or default_threads()
        self._load, self._prepare = load, prepare
        self._spans = [(start, min(start + block, users)) for start in range(0, users, block)]
        self._kept: list[Counts] | None = None
        if keep:
            self._kept = self.map(lambda start, stop, rows: rows)

    @property
    def keeps(self) -> bool:
        """Whether the blocks are in memory."""
        return self._kept is not None

    def reduced(self, prepare: Callable[[Counts], Counts]) -> HistogramRows:
        """The same users with prepared counts."""
        load = self._load
        return HistogramRows(
            lambda start, stop: prepare(load(start, stop)),
            self.users,
            self.weighting,
            keep=self.keeps,
            threads=self.threads,
        )

    @classmethod
    def in_memory(cls, counts: Counts, weighting: Weighting = "user", **options: Any) -> HistogramRows:
        return cls(partial(row_slice, counts), counts.shape[0], weighting, **options)

    def map(self, work: Callable[[int, int, Counts], Result]) -> list[Result]:
        """work(start, stop, rows) for every block, in order; SciPy's products release the GIL, so threads help."""
        return list(self.each(work))

    def total(self, work: Callable[[int, int, Counts], NDArray[Any]]) -> NDArray[Any]:
        """The sum of work(start, stop, rows) over the blocks, in their order."""
        return reduce(np.add, self.each(work))

    def each(self, work: Callable[[int, int, Counts], Result]) -> Iterator[Result]:
        def run(index: int) -> Result:
            start, stop = self._spans[index]
            return work(start, stop, self._block(index))

        indices = range(len(self._spans))
        if self.threads == 1 or len(self._spans) == 1:
            yield from map(run, indices)
            return
        with ThreadPoolExecutor(self.threads) as pool:
            yield from pool.map(run, indices)

    def _block(self, index: int) -> Counts:
        if self._kept is not None:
            return self._kept[index]
        counts = self._load(*self._spans[index])
        counts = counts if self._prepare is None else self._prepare(counts)
        return counts if self.weighting == "token" else normalise(counts)[0]

    def sample(self, size: int, rng: np.random.Generator) -> tuple[Counts, Ints]:
        """Raw counts of at most `size` users drawn without replacement; all of them when there are no more."""
        picked = np.arange(self.users) if size >= self.users else np.sort(rng.choice(self.users, size, replace=False))
        blocks = []
        for start, stop in self._spans:
            inside = picked[np.searchsorted(picked, start) : np.searchsorted(picked, stop)]
            if len(inside) == stop - start:
                blocks.append(self._load(start, stop))
            elif len(inside):
                blocks.append(self._load(start, stop)[inside - start])
        return sp.csr_array(sp.vstack(blocks, format="csr")), picked

    def statistics(self) -> tuple[Floats, float]:
        """m_u of every user and Σ_u w_u h(Q̂_u)."""

        def work(start: int, stop: int, rows: Counts) -> tuple[Floats, float]:
            if self.weighting == "user":
                return row_sums(self._load(start, stop)), float(entropies(rows).sum())
            histograms, tokens = normalise(rows)
            return tokens, float(tokens @ entropies(histograms))

        tokens, entropy = zip(*self.each(work), strict=True)
        return np.concatenate(tokens), float(sum(entropy))

    def mean(self) -> Floats:
        """Q_fa = Σ_u w_u Q̂_u / Σ_u w_u, a sum over all users."""
        total = np.sum(self.map(lambda start, stop, rows: np.asarray(rows.sum(axis=0)).ravel()), axis=0)
        if total.sum() <= 0:
            raise DataError(
                "Counts need at least one user with tokens; all users are empty. Add users that have tokens."
            )
        return np.asarray(total / total.sum(), dtype=np.float64)


def row_slice(counts: Counts, start: int, stop: int) -> Counts:
    """counts[start:stop] as a view: the data are not copied."""
    begin, end = int(counts.indptr[start]), int(counts.indptr[stop])
    pointers = counts.indptr[start : stop + 1] - counts.indptr[start]
    return sp.csr_array(
        (counts.data[begin:end], counts.indices[begin:end], pointers), shape=(stop - start, counts.shape[1])
    )
