"""The input of the rule where nobody may see a single client's losses: sums over clients give the same means and errors.

`contribution` is what a client adds, and `SummedScores` reads the sums. The second test of a gain weights clients by their
precision, which needs the common variance first; `weighted_contribution` is asked for afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from coterie.evidence.gains import SHARED_ROWS, Floats
from coterie.evidence.mean_gains import MANY, Gain, fold_error
from coterie.evidence.scores import Scores

FLIPS = 999
METHODS = ("constant", "alone", "together")
_ALONE, _TOGETHER = 1, 2


def contribution(n: int, mean: Floats, products: Floats, folds: Floats, key: Sequence[int]) -> dict[str, Floats]:
    """What a client with n scored rows adds: mean losses (parts, methods), sums of products of centred losses (parts,
    methods, methods), sums per fold (repeats, folds, methods), all of them also weighted, and with random signs."""
    d, e = 1 / ((n + 3) * n), n / (n + 3)
    sign = np.random.default_rng(key).choice([-1.0, 1.0], FLIPS)
    return {
        "sizes": np.array([1, n, n - 1, d, e]), "mean": mean, "squares": mean[:, :, None] * mean[:, None],
        "by_rows": n * mean, "spread": products, "spread_d": d * products, "spread_e": e * products,
        "folds": folds / n, "signs": sign, "signed": sign[:, None] * (mean[:, _ALONE] - mean[:, _TOGETHER]),
    }  # fmt: skip


def weighted_contribution(n: int, mean: Floats, products: Floats, common: Floats, between: Floats) -> dict[str, Floats]:
    """What a client adds to the mean gain of together over alone (parts, sums), weighted by its precision."""
    g = mean[:, _ALONE] - mean[:, _TOGETHER]
    error = SHARED_ROWS**2 * (_within(products) + 4 * common) / ((n + 3) * n)
    w = np.maximum(between[:, 1], 1e-300) / np.maximum(error + between[:, 0], 1e-300)  # of about 1
    return {"weighted": np.stack([w, w * g, w**2, w**2 * g, w**2 * g**2], 1)}


def _within(products: Floats, over: int = _ALONE, method: int = _TOGETHER) -> Floats:
    """Sums of squares of differences of two methods, from products (…, methods, methods)."""
    found = products[..., over, over] + products[..., method, method] - 2 * products[..., over, method]
    return np.asarray(np.maximum(found, 0))


@dataclass(frozen=True, kw_only=True)
class SummedScores(Scores):
    """The rule's input for constant, alone and together; no field of rows or clients is filled. ``part`` is 0 for the mean
    over the repeats, then the number of a repeat."""

    sums: Mapping[str, Floats]
    part: int = 0
    weighted: Floats = field(default_factory=lambda: np.zeros((0, 5)))

    @classmethod
    def of(cls, metric: str, sums: Mapping[str, Floats]) -> SummedScores:
        repeats, folds, none = *sums["folds"].shape[:2], np.empty(0, np.int64)
        empty = np.empty((repeats, len(METHODS), 0))
        nowhere = np.empty((repeats, 0), np.int64)
        return cls(metric, empty, nowhere, folds, none, none, 0, methods=METHODS, ways=METHODS, sums=sums)

    @property
    def m(self) -> int:
        return round(float(self.sums["sizes"][0]))

    def parts(self) -> Sequence[Scores]:
        return [replace(self, rows=self.rows[:1], part=r + 1) for r in range(self.repeats)]

    def losses(self) -> Floats:
        """(methods, 1): means over clients."""
        return np.asarray(self.sums["mean"][self.part, :, None] / max(self.m, 1))

    def common(self, over: int = _ALONE, method: int = _TOGETHER) -> float:
        """The common variance of a row's gain."""
        return float(_within(self.sums["spread"][self.part], over, method)) / max(float(self.sums["sizes"][2]), 1)

    def between(self) -> tuple[float, float]:
        """The variance between clients of the gain of together over alone, beyond that of their rows, and with it."""
        m, gain = self.m, self.gain(_TOGETHER, _ALONE)
        error = SHARED_ROWS**2 * gain.se_rows**2 * m
        found = max(0.0, gain.se_clients**2 * m - error) if m > 1 else 0.0
        return found, found + error

    def gain(self, method: int, over: int) -> Gain:
        """Positive where ``method`` has the smaller loss; of clients there are only sums."""
        m, (_, rows, _, d, e) = self.m, self.sums["sizes"]
        change = np.zeros(len(METHODS))
        change[over] += 1
        change[method] -= 1
        mean = float(self.sums["mean"][self.part] @ change) / m if m else 0.0
        square = float(change @ self.sums["squares"][self.part] @ change)
        common = self.common(over, method)
        by_d, by_e = (float(_within(self.sums[k][self.part], over, method)) for k in ("spread_d", "spread_e"))
        per_fold = self.sums["folds"] if self.part == 0 else self.sums["folds"][self.part - 1 : self.part]
        w, wg, ww, wwg, wwgg = self.weighted[self.part] if len(self.weighted) else np.zeros(5)
        tested = (over, method) == (_ALONE, _TOGETHER) and w > 0 and m > 1
        weighted = wg / w if tested else 0.0
        around = max(wwgg - 2 * weighted * wwg + weighted**2 * ww, 0.0)
        fold_se, fold_df = fold_error(self, per_fold @ change * self.n_folds / max(m, 1))
        return Gain(
            clients=np.full(m, mean),
            mean=mean,
            se_clients=float(np.sqrt(max(square - m * mean**2, 0) / (m - 1) / m)) if m > 1 else np.inf,
            se_rows=float(np.sqrt(by_d + 4 * common * d)) / m if m else np.inf,
            row_mean=float(self.sums["by_rows"][self.part] @ change) / rows if m else 0.0,
            row_error=float(np.sqrt(by_e + 4 * common * e)) / rows if m else np.inf,
            weighted=weighted,
            weighted_se=float(np.sqrt(around * m / (m - 1))) / w if tested else np.inf,
            variance=np.full(m, common),
            sizes=np.full(m, rows / max(m, 1)),
            fold_se=fold_se,
            fold_df=fold_df,
            flips=self._flips(mean, square) if m >= MANY else np.zeros(0),
        )

    def _flips(self, mean: float, square: float) -> Floats:
        """Studentised means of centred gains of together under the clients' random signs."""
        m = self.m
        means = (self.sums["signed"][:, self.part] - mean * self.sums["signs"]) / m
        spread = np.sqrt(np.maximum(square / m - mean**2 - means**2, 0) / (m - 1))
        return np.where(spread > 0, means / np.where(spread > 0, spread, 1), 0)
