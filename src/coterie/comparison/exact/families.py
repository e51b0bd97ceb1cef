"""Numbers that are not simply numbers: counts, positive amounts, shares, and numbers with heavy tails.

| kind | model | fitted by | judged by |
|---|---|---|---|
| regression | mean, linear | squared error | squared error |
| count | logarithm of the rate, linear | Poisson likelihood, rows counted by their exposure | Poisson deviance |
| amount | logarithm of the mean, linear | Gamma likelihood | Gamma deviance |
| share | log odds of the mean, linear | likelihood of fractions (Papke and Wooldridge 1996) | squared error |
| robust | centre, linear | Huber's loss | absolute error |

Every candidate is solved by steps of the exact linear fit (McCullagh and Nelder's working responses and weights; for Huber's
loss the residuals are cut off). Half a row at the overall mean per client keeps rates of clients without events finite."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import expit, logit, xlogy

from coterie.data.coded_table import Floats, Table
from coterie.errors import ConfigError, DataError

LINKS = ("identity", "log", "logit")
STEPS, MOST, SETTLED = 10, 2.0, 0.01  # of a fit: steps, how far a score moves in one, and when it has settled
_CUT = 1.345  # in standard deviations of the bulk: Huber's efficiency of 95 %
_TINY = 1e-9


def inverse(link: str, eta: Floats) -> Floats:
    """Means from scores."""
    if link == "log":
        return np.asarray(np.exp(np.clip(eta, -30.0, 30.0)))
    return np.asarray(expit(eta)) if link == "logit" else eta


def scores_of(link: str, mean: Floats) -> Floats:
    """Scores from means."""
    if link == "log":
        return np.asarray(np.log(np.maximum(mean, _TINY)))
    return np.asarray(logit(np.clip(mean, 1e-6, 1 - 1e-6))) if link == "logit" else mean


def bulk(values: Floats) -> Floats:
    """The standard deviation of the bulk of every column, from the median of absolute deviations; else of all, else one."""
    middle = 1.4826 * np.median(np.abs(values - np.median(values, 0)), 0)
    spread = np.where(middle > 0, middle, values.std(0))
    return np.where(spread > 0, spread, 1.0)


@dataclass(frozen=True)
class TargetKind:
    """The link, the working weight and deviance of a mean, and the loss with which boosted trees are grown."""

    name: str
    link: str
    weight: Callable[[Floats], Floats]
    deviance: Callable[[Floats, Floats], Floats]
    metric: str
    trees: str
    wanted: Callable[[Floats], np.ndarray]
    rule: str

    def scores(self, mean: Floats) -> Floats:
        return scores_of(self.link, mean)

    def working(self, y: Floats, eta: Floats) -> tuple[Floats, Floats]:
        """The response and weight of the linear fit that improves scores ``eta``."""
        if self.link == "identity":
            rest = y - eta
            cut = _CUT * float(bulk(rest[:, None])[0])
            return eta + np.clip(rest, -cut, cut), np.ones(len(y))
        mean = inverse(self.link, eta)
        slope = mean if self.link == "log" else mean * (1 - mean)
        return eta + (y - mean) / np.maximum(slope, _TINY), np.maximum(self.weight(mean), 1e-4)

    def variance(self, mean: Floats) -> Floats:
        """What the square of an error is measured by, up to a factor: the mean of counts, the squared mean of amounts."""
        if self.link != "log":
            return np.ones_like(mean)
        return np.asarray(np.maximum(mean, _TINY) ** 2 / np.maximum(self.weight(np.maximum(mean, _TINY)), _TINY))

    @property
    def tree_link(self) -> str:
        """The link of trees grown on the target itself."""
        return self.link if self.link == "log" else "identity"


def _ones(mean: Floats) -> Floats:
    return np.ones_like(mean)


def _poisson(y: Floats, mean: Floats) -> Floats:
    mean = np.maximum(mean, _TINY)
    return np.asarray(2 * (xlogy(y, y) - xlogy(y, mean) - y + mean))


def _gamma(y: Floats, mean: Floats) -> Floats:
    ratio = y / np.maximum(mean, _TINY)
    return np.asarray(2 * (ratio - 1 - np.log(ratio)))


def _squared(y: Floats, mean: Floats) -> Floats:
    return np.asarray((y - mean) ** 2)


def _absolute(y: Floats, mean: Floats) -> Floats:
    return np.asarray(np.abs(y - mean))


KINDS = {
    k.name: k
    for k in (
        TargetKind("count", "log", lambda m: m, _poisson, "poisson", "poisson", lambda y: y >= 0, "zero or more"),
        TargetKind("amount", "log", _ones, _gamma, "gamma", "gamma", lambda y: y > 0, "positive"),
        TargetKind(
            "share", "logit", lambda m: m * (1 - m), _squared, "mse", "squared_error",
            lambda y: (y >= 0) & (y <= 1), "from 0 to 1",
        ),
        TargetKind("robust", "identity", _ones, _absolute, "mae", "absolute_error", np.isfinite, "finite"),
    )
}  # fmt: skip


def of_kind(table: Table, kind: str | None) -> Table:
    """The table with its target judged as ``kind``; counts become rates, which count by their exposure."""
    if kind not in KINDS:
        if table.exposure is not None:
            raise ConfigError(f"An exposure belongs to counts; the kind is {kind or 'inferred'}. Say kind=count.")
        return table
    assert kind is not None
    chosen = KINDS[kind]
    if table.classes is not None:
        raise DataError(f"A target of kind {kind} holds numbers; this one holds classes. Choose another kind.")
    bad = ~chosen.wanted(table.y)
    if bad.any():
        raise DataError(f"A target of kind {kind} is {chosen.rule}; it holds {table.y[bad][0]:g}. Choose another kind.")
    if table.exposure is None:
        return replace(table, kind=kind)
    if kind != "count":
        raise ConfigError(f"An exposure belongs to counts; the kind is {kind}. Say kind=count, or leave it out.")
    weight = table.exposure * (1.0 if table.weight is None else table.weight)
    return replace(table, kind=kind, y=table.y / table.exposure, weight=weight, exposure=None)
