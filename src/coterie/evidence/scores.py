"""The input of the rule: losses of several methods on rows that training did not see, whatever produced them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from coterie.evidence.gains import Floats, Ints

WAYS = ("alone", "together", "shrunk", "groups")  # the simplest first
METHODS = ("constant", *WAYS)


@dataclass(frozen=True)
class Difference:
    """By how much one method's losses exceed another's: the mean per scored client over rows and repeats, the sum of squares
    within each client, and the mean over clients in every fold of every repeat."""

    clients: Floats
    squares: Floats
    per_fold: Floats  # (repeats, folds)


@dataclass(frozen=True)
class Scores:
    """Losses of one metric. ``rows[repeat, method, row]`` is NaN where the row cannot be scored.

    ``methods`` names the overall average first, then learning alone, then the others; ``ways`` says which of the four ways
    each of them is. Exact fits are cross-validated, several times. Trained methods are run on several splits: ``fold`` then
    names a row's split, ``test_share`` is the share of rows that a split holds out (1 when all runs share a split), and a
    row that several splits hold out occurs in each of them. ``unit`` names rows that count as one piece of evidence;
    ``ordered`` says that these are stretches of time, of which neighbours are alike."""

    metric: str
    rows: Floats
    fold: Ints  # (repeats, rows)
    n_folds: int
    owner: Ints
    scored: Ints  # positions of the clients with a score
    n_clients: int
    methods: tuple[str, ...] = METHODS
    ways: tuple[str, ...] = METHODS
    test_share: float | None = None
    unit: Ints | None = None
    ordered: bool = False

    @property
    def repeats(self) -> int:
        return len(self.rows)

    @property
    def others(self) -> tuple[str, ...]:
        """The methods that are compared with learning alone."""
        return self.methods[2:]

    def way(self, method: str) -> str:
        return self.ways[self.methods.index(method)]

    @property
    def sizes(self) -> Floats:
        """Distinct rows per scored client, or units; those that several splits share count once on average."""
        if self.unit is not None:
            return np.bincount(self.pieces[1], minlength=self.n_clients)[self.scored].astype(np.float64)
        often = 1.0 if self.test_share is None else 1 + (self.n_folds - 1) * self.test_share
        return np.bincount(self.owner, minlength=self.n_clients)[self.scored] / often

    def parts(self) -> Sequence[Scores]:
        """Single repeats of the cross-validation, or single splits."""
        if self.test_share is None:
            return [replace(self, rows=self.rows[r : r + 1], fold=self.fold[r : r + 1]) for r in range(self.repeats)]
        return [self._split(s) for s in range(self.n_folds)]

    def _split(self, split: int) -> Scores:
        at = self.fold[0] == split
        scored = np.intersect1d(self.scored, self.owner[at])
        fold = np.zeros((1, int(at.sum())), np.int64)
        unit = None if self.unit is None else self.unit[at]
        return replace(
            self, rows=self.rows[..., at], fold=fold, n_folds=1, owner=self.owner[at], scored=scored, unit=unit
        )

    @cached_property
    def pieces(self) -> tuple[Ints, Ints]:
        """Every row's unit within its client, coded, and the client of every such unit."""
        assert self.unit is not None
        width = int(self.unit.max(initial=0)) + 1
        both, code = np.unique(self.owner * width + self.unit, return_inverse=True)
        return code, both // width

    def spread(self, values: Floats, means: Floats) -> Floats:
        """Within-client sums of squares of rows' values around the clients' means; units count as rows of their own size."""
        if self.unit is None:
            return np.asarray(np.maximum(self.sizes * (self.by_client(values**2) - means**2), 0))
        code, of = self.pieces
        centre = np.zeros(self.n_clients)
        centre[self.scored] = means
        total = np.bincount(code, weights=values - centre[self.owner], minlength=len(of)) ** 2
        count = np.bincount(self.owner, minlength=self.n_clients)[self.scored]
        return np.asarray(
            np.bincount(of, weights=total, minlength=self.n_clients)[self.scored] * (self.sizes / count) ** 2
        )

    def mean_rows(self) -> Floats:
        """(methods, rows), averaged over repeats."""
        return np.asarray(self.rows.mean(0))

    def by_client(self, rows: Floats) -> Floats:
        """Means of values (…, rows) per scored client (…, scored clients)."""
        flat = np.nan_to_num(rows.reshape(-1, rows.shape[-1]))
        total = np.stack([np.bincount(self.owner, weights=r, minlength=self.n_clients) for r in flat])
        count = np.bincount(self.owner, minlength=self.n_clients)
        return np.asarray((total[:, self.scored] / count[self.scored]).reshape(*rows.shape[:-1], -1))

    def difference(self, over: int, method: int) -> Difference:
        """The losses of ``over`` minus those of ``method``, which is the gain of ``method``."""
        rows = np.nan_to_num(self.rows[:, over] - self.rows[:, method])  # (repeats, rows)
        averaged = rows.mean(0)
        clients = self.by_client(averaged)
        m, weight = len(clients), np.zeros(self.n_clients)
        count = np.bincount(self.owner, minlength=self.n_clients)[self.scored]
        weight[self.scored] = self.n_folds / (m * count) if m else 0.0
        sums = [
            np.bincount(fold, weights=row * weight[self.owner], minlength=self.n_folds)
            for fold, row in zip(self.fold, rows, strict=True)
        ]
        return Difference(clients, self.spread(averaged, clients), np.stack(sums))

    def gain(self, method: int, over: int) -> Any:
        """The gain, where there are only sums over clients; otherwise None, and `mean_gains.gain` computes it."""
        return None

    def losses(self) -> Floats:
        """(methods, scored clients)."""
        return self.by_client(self.mean_rows())

    def mean_losses(self) -> dict[str, float]:
        """The mean over clients per method."""
        return {name: float(v) for name, v in zip(self.methods, self.losses().mean(1), strict=True)}

    def alone(self) -> float:
        """The mean loss of alone, of which gains are shares; at least a billionth of the overall average's loss."""
        mean = self.mean_losses()
        return max(mean[self.methods[1]], 1e-9 * mean[self.methods[0]], 1e-300)


@dataclass(frozen=True, kw_only=True)
class ClientScores(Scores):
    """The same from sums that clients tell of their rows, which stay with them; no field of rows is filled. Clients are the
    scored ones.

    ``told`` (parts, methods, clients) are mean losses, ``products`` (parts, methods, methods, clients) sums over a client's
    rows of products of centred losses. Part 0 is the mean of each row's losses over the repeats, the others are the single
    repeats; of trained methods part 0 has the rows of all splits, and the others are the splits. ``counts`` (parts, clients)
    are numbers of rows, or (clients,) those of every part. ``folds_told`` (repeats, folds, methods, clients) are sums of
    losses."""

    counts: Floats
    told: Floats
    products: Floats
    folds_told: Floats

    @classmethod
    def of(
        cls, metric: str, scored: Ints, n_clients: int, counts: Floats, told: Floats, products: Floats, folds: Floats,
        **more: Any,
    ) -> ClientScores:  # fmt: skip
        none, nobody = np.empty((len(folds), told.shape[1], 0)), np.empty(0, np.int64)
        return cls(
            metric, none, np.empty((len(folds), 0), np.int64), folds.shape[1], nobody, scored, n_clients,
            counts=np.broadcast_to(counts, told[:, 0].shape), told=told, products=products, folds_told=folds, **more,
        )  # fmt: skip

    @property
    def _often(self) -> float:
        """In how many splits a row is on average."""
        return 1.0 if self.test_share is None else 1 + (self.n_folds - 1) * self.test_share

    @property
    def sizes(self) -> Floats:
        return np.asarray(self.counts[0] / self._often)

    def parts(self) -> Sequence[Scores]:
        def part(r: int) -> Scores:
            keep = [r + 1, r + 1]
            one: dict[str, Any] = {
                "counts": self.counts[keep],
                "told": self.told[keep],
                "products": self.products[keep],
            }
            if self.test_share is not None:
                return replace(self, **one, n_folds=1, folds_told=self.folds_told[:, r : r + 1])
            return replace(self, **one, rows=self.rows[:1], folds_told=self.folds_told[r : r + 1])

        return [part(r) for r in range(len(self.told) - 1)]

    def difference(self, over: int, method: int) -> Difference:
        squares = self.products[0]
        within = squares[over, over] + squares[method, method] - 2 * squares[over, method]
        count = self.counts[0]
        sums = (self.folds_told[:, :, over] - self.folds_told[:, :, method]) / count
        weight = self.n_folds / max(len(count), 1)
        clients = self.told[0, over] - self.told[0, method]
        return Difference(clients, np.maximum(within, 0) / self._often, weight * sums.sum(-1))

    def losses(self) -> Floats:
        return np.asarray(self.told[0])
