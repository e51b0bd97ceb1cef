"""The input of the rule: losses of several methods on rows that training did not see, whatever produced them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from coterie.evidence.gains import Floats, Ints

WAYS = ("alone", "together", "shrunk", "groups")  # the simplest first
METHODS = ("constant", *WAYS)


@dataclass(frozen=True)
class Scores:
    """Losses of one metric. ``rows[repeat, method, row]`` is NaN where the row cannot be scored.

    ``methods`` names the overall average first, then learning alone, then the others; ``ways`` says which of the four ways
    each of them is. Exact fits are cross-validated, several times. Trained methods are run on several splits: ``fold`` then
    names a row's split, ``test_share`` is the share of rows that a split holds out (1 when all runs share a split), and a
    row that several splits hold out occurs in each of them."""

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
        """Distinct rows per scored client; those that several splits share count once on average."""
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
        return replace(self, rows=self.rows[..., at], fold=fold, n_folds=1, owner=self.owner[at], scored=scored)

    def mean_rows(self) -> Floats:
        """(methods, rows), averaged over repeats."""
        return np.asarray(self.rows.mean(0))

    def by_client(self, rows: Floats) -> Floats:
        """Means of values (…, rows) per scored client (…, scored clients)."""
        flat = np.nan_to_num(rows.reshape(-1, rows.shape[-1]))
        total = np.stack([np.bincount(self.owner, weights=r, minlength=self.n_clients) for r in flat])
        count = np.bincount(self.owner, minlength=self.n_clients)
        return np.asarray((total[:, self.scored] / count[self.scored]).reshape(*rows.shape[:-1], -1))

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
