"""Aggregators: one vector from many, some of which may come from malicious clients.

All are frozen dataclasses, called as `rule(stacked, weights, key=…, start=…)`. `stacked` holds the clients' vectors,
one per row: an (N, …) tensor, array or list, or a tree of them; tensors give tensors, all else arrays. Coordinate-wise rules
work number by number; the others see each client's whole model as one vector. Only `Mean` uses the weights: everywhere else
a client counts once; otherwise it could gain influence by claiming many samples. A row with NaN or infinity is left out, and
where distances are needed also one so long that its square is infinite. `key` feeds random choices; `start` is what the
clients started from (the last aggregate).

This is one long file: the rules have a few lines each, are best read together, and share the check of their rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from coterie.aggregation.gram import about, combine, comparable, gram, pairwise, squared_distances
from coterie.base import randomness
from coterie.base.annotations import guarded
from coterie.base.arguments import Positive, refuse_masked
from coterie.base.tree import finite_rows, leaves, take, tree_map
from coterie.errors import ConfigError, DataError, TooFew

Stacked = TypeVar("Stacked", Tensor, dict[str, Any])


class Aggregator(Protocol):
    """One value from the stacked values of many clients, weighted or not; `start` is where an iteration begins."""

    def __call__(
        self, stacked: Stacked, weights: Tensor | None = None, *, key: Tensor | None = None, start: Any = None
    ) -> Stacked: ...


class _Rule(ABC):
    """What all rules share: arrays and lists are copied into tensors, and then the result is an array too."""

    distances = False  # whether rows whose squares overflow are left out: no distance to them can be computed

    def __call__(
        self, stacked: Stacked, weights: Tensor | None = None, *, key: Tensor | None = None, start: Any = None
    ) -> Stacked:
        tensors = all(isinstance(t, Tensor) for t in leaves(stacked))
        start = None if start is None else tree_map(_tensor, start)
        weights = None if weights is None else _tensor(weights)
        rows, weights = _only_finite(tree_map(_tensor, stacked), weights)
        if self.distances:
            near = comparable(rows)
            if bool(near.any()) and not bool(near.all()):
                rows = take(rows, near.nonzero().squeeze(-1))
        result: Stacked = self._aggregate(rows, _clients(rows), weights, key, start)
        return result if tensors else tree_map(Tensor.numpy, result)

    @abstractmethod
    def _aggregate(self, stacked: Any, n: int, weights: Tensor | None, key: Tensor | None, start: Any) -> Any:
        """One value from the tensors of `n` clients."""


def _only_finite(stacked: Any, weights: Tensor | None) -> tuple[Any, Tensor | None]:
    """Leave out rows with NaN or infinity."""
    n = _clients(stacked)
    good = finite_rows(stacked)
    if bool(good.all()):
        return stacked, weights
    if not bool(good.any()):
        raise DataError(f"An aggregator needs one row of finite numbers at least; all {n} rows hold NaN or infinity.")
    rows = good.nonzero().squeeze(-1)
    return take(stacked, rows), weights[rows] if weights is not None and len(weights) == n else weights


def _tensor(values: Any) -> Tensor:
    if isinstance(values, Tensor):
        return values
    refuse_masked(values=values)
    try:
        return torch.from_numpy(np.array(values))
    except (TypeError, ValueError, RuntimeError):
        raise ConfigError(
            f"An aggregator needs one row of numbers per client, all of one length; got a {type(values).__name__} "
            "that is not such a table. Make the rows equally long."
        ) from None


# ---- coordinate by coordinate ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mean(_Rule):
    """Σ w_i z_i / Σ w_i: the best rule if all clients are honest; a single malicious client can move it anywhere."""

    def _aggregate(self, stacked: Any, n: int, weights: Tensor | None, key: Tensor | None, start: Any) -> Any:
        w = torch.ones(n, dtype=torch.float64) if weights is None else weights.double()
        if len(w) != n or bool((w < 0).any()) or not float(w.sum()) > 0:
            raise ConfigError(
                f"Mean needs one weight ≥ 0 per client, not all 0; got {len(w)} weights for {n} clients. "
                "Pass the number of each client's rows."
            )
        return combine(w / w.sum(), stacked)


@dataclass(frozen=True)
class Median(_Rule):
    """The middle value of every coordinate (the mean of the two middle ones for an even number).

    "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates" (Yin, Chen, Ramchandran, Bartlett, 2018,
    https://arxiv.org/abs/1803.01498).
    """

    def _aggregate(self, stacked: Any, n: int, weights: Tensor | None, key: Tensor | None, start: Any) -> Any:
        return _trim(stacked, (n - 1) // 2)


@guarded
@dataclass(frozen=True)
class TrimmedMean(_Rule):
    """The mean of every coordinate without its `n_corrupted` largest and smallest values.

    "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates" (Yin, Chen, Ramchandran, Bartlett, 2018,
    https://arxiv.org/abs/1803.01498).
    """

    n_corrupted: int

    def _aggregate(self, stacked: Any, n: int, weights: Tensor | None, key: Tensor | None, start: Any) -> Any:
        _require_majority(self, n)
        return _trim(stacked, self.n_corrupted)


# ---- whole vectors ---------------------------------------------------------------------------------------------------


@guarded
@dataclass(frozen=True)
class Krum(_Rule):
    """The client's vector with the smallest sum of squared distances to its N − n_corrupted − 2 nearest others.

    "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent" (Blanchard, El Mhamdi, Guerraoui, Stainer,
    2017, https://arxiv.org/abs/1703.02757).
    """

    n_corrupted: int

    distances = True

    def _aggregate(self, stacked: Any, n: int, weights: Tensor | None, key: Tensor | None, start: Any) -> Any:
        best = _krum_scores(self, stacked, n).argmin()
        return take(stacked, best)


@guarded
@dataclass(frozen=True)
class MultiKrum(_Rule):
    """The mean of the `keep` clients with the best Krum scores (None: all but n_corrupted)."""

    n_corrupted: int
    keep: int | None = None

    distances = True

    def _aggregate(self, stacked: Any, n: int, weights: Tensor | None, key: Tensor | None, start: Any) -> Any:
        scores = _krum_scores(self, stacked, n)
        keep = len(scores) - self.n_corrupted if self.keep is None else self.keep
        if keep > len(scores) - self.n_corrupted:
            raise TooFew(
                f"MultiKrum needs keep + n_corrupted ≤ clients; got keep={keep}, n_corrupted={self.n_corrupted}, "
                f"clients={len(scores)}. Lower keep."
            )
        chosen = scores.argsort(stable=True)[:keep]
        return combine(torch.zeros_like(scores).index_fill(0, chosen, 1 / keep), stacked)


@guarded
@dataclass(frozen=True)
class GeometricMedian(_Rule):
    """The point with the smallest sum of distances to all clients' vectors, by Weiszfeld's steps with distances smoothed
    at `eps` times their median.

    "Robust Aggregation for Federated Learning" (Pillutla, Kakade, Harchaoui, 2022, https://arxiv.org/abs/1912.13445).
    """

    iterations: int = 100
    eps: Positive = 1e-6

    distances = True

    def _aggregate(self, stacked: Any, n: int, weights: Tensor | None, key: Tensor | None, start: Any) -> Any:
        product = gram(stacked)
        typical = pairwise(product).median(1).values  # each client's squared distance to its median other
        smooth = max(self.eps * float(typical.median().sqrt()), 1e-150)
        # A start in which far vectors hardly count. It is no client's vector, where Weiszfeld's steps would get stuck.
        w = 1 / typical.clamp(min=smooth**2).unsqueeze(0)
        w = w / w.sum()
        for _ in range(self.iterations):
            inverse = 1 / squared_distances(product, w)[0].sqrt().clamp(min=smooth)
            w = inverse / inverse.sum()
        return combine(w[0], stacked)


@guarded
@dataclass(frozen=True)
class CentredClipping(_Rule):
    """v ← v + (1/N) Σ_i (z_i − v) min(1, radius / ‖z_i − v‖), `iterations` times.

    "Learning from History for Byzantine Robust Optimization" (Karimireddy, He, Jaggi, 2021,
    https://arxiv.org/abs/2012.10333).

    start: where v begins: "sent", what the clients were given (zero when the caller has no such thing, as for gradients),
    or the coordinate-wise "median". beyond="drop" leaves out who is further than `radius` (0 in place of
    radius / ‖z_i − v‖), a mean trimmed by distance. With iterations=1 from "sent" each client can do its part itself, so
    sums are enough: this form works in private runs."""

    radius: Positive
    iterations: int = 3
    start: Literal["sent", "median"] = "sent"
    beyond: Literal["shorten", "drop"] = "shorten"

    distances = True

    def _aggregate(self, stacked: Any, n: int, weights: Tensor | None, key: Tensor | None, start: Any) -> Any:
        if self.start == "median":
            start = Median()(stacked)
        elif start is None:
            start = tree_map(lambda t: torch.zeros_like(t[0]), stacked)
        product = gram(stacked, start)  # about the start, so v = start + Σ w_i (z_i − start)
        w = torch.zeros(1, len(product), dtype=torch.float64)
        for _ in range(self.iterations):
            distances = squared_distances(product, w)[0].sqrt()
            share = (self.radius / distances.clamp(min=self.radius)) / len(product)
            if self.beyond == "drop":
                share = (distances <= self.radius).to(share.dtype) / len(product)
            w = w * (1 - share.sum()) + share
        return about(start, w[0], stacked)


@guarded
@dataclass(frozen=True)
class Bucketing(_Rule):
    """Means of random buckets of `size` clients, aggregated by `inner`.

    Bucket means of honest clients differ less than the clients do. Every malicious client spoils at most one bucket, so
    `inner` must tolerate as many among N / size.

    "Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing" (Karimireddy, He, Jaggi, 2022,
    https://arxiv.org/abs/2006.09365).
    """

    size: int = 2
    inner: Aggregator = field(default_factory=Median)

    def _aggregate(self, stacked: Any, n: int, weights: Tensor | None, key: Tensor | None, start: Any) -> Any:
        if key is None:
            raise ConfigError("Bucketing shuffles clients and needs a random key; got None. Pass key=cohort.key('…').")
        n = _clients(stacked)
        order = randomness.permutation(randomness.fold(key, "bucketing"), torch.ones(n))
        buckets = -(-n // self.size)
        weighted = weights is not None and isinstance(self.inner, Mean)
        w = weights.double() if weights is not None and weighted else torch.ones(n, dtype=torch.float64)
        share = torch.zeros(buckets, n, dtype=torch.float64)
        share[torch.arange(n) // self.size, order] = w[order]
        total = share.sum(1, keepdim=True)
        means = combine(share / torch.where(total > 0, total, 1.0), stacked)
        return self.inner(means, total.squeeze(1), key=randomness.fold(key, "inner"), start=start)


@guarded
@dataclass(frozen=True)
class NearestNeighbourMixing(_Rule):
    """Every client's vector becomes the mean of its N − n_corrupted nearest ones, itself among them; `inner` aggregates.

    Mixed vectors of honest clients differ less than the clients do, and at least N − 2 n_corrupted of those in each mean
    are honest. It draws nothing at random, unlike `Bucketing`.

    "Fixing by Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity" (Allouah, Farhadkhani, Guerraoui, Gupta,
    Pinot, Stephan, 2023, https://arxiv.org/abs/2302.01772), Algorithm 2.
    """

    n_corrupted: int
    inner: Aggregator = field(default_factory=Median)

    distances = True

    def _aggregate(self, stacked: Any, n: int, weights: Tensor | None, key: Tensor | None, start: Any) -> Any:
        _require_majority(self, n)
        distance = pairwise(gram(stacked)).fill_diagonal_(-1)  # a client is its own nearest, also among equals
        nearest = distance.argsort(dim=1, stable=True)[:, : n - self.n_corrupted]
        share = torch.zeros(n, n, dtype=torch.float64).scatter_(1, nearest, 1 / nearest.shape[1])
        return self.inner(combine(share, stacked), key=key, start=start)


# ---- parts -----------------------------------------------------------------------------------------------------------


def _clients(stacked: Any) -> int:
    sizes = {len(t) if t.ndim else 0 for t in leaves(stacked)}
    if len(sizes) != 1 or 0 in sizes:
        raise ConfigError(
            f"An aggregator needs at least one client, and one row per client in every part; got {sorted(sizes)} rows. "
            "Stack the replies of the same clients."
        )
    return sizes.pop()


def _require_majority(rule: TrimmedMean | NearestNeighbourMixing, n: int) -> None:
    if 2 * rule.n_corrupted >= n:
        raise TooFew(
            f"{type(rule).__name__} needs 2 * n_corrupted < clients; got n_corrupted={rule.n_corrupted}, clients={n}. "
            "Lower n_corrupted or add clients."
        )


def _trim(stacked: Any, cut: int) -> Any:
    def one(t: Tensor) -> Tensor:
        kept = t.sort(0).values[cut : len(t) - cut]
        return kept.double().mean(0).to(t.dtype if t.is_floating_point() else torch.float64)

    return tree_map(one, stacked)


def _krum_scores(rule: Krum | MultiKrum, stacked: Any, n: int) -> Tensor:
    if n < 2 * rule.n_corrupted + 3:
        raise TooFew(
            f"{type(rule).__name__} needs 2 * n_corrupted + 2 < clients; got n_corrupted={rule.n_corrupted}, clients={n}. "
            "Lower n_corrupted or add clients."
        )
    nearest = pairwise(gram(stacked)).fill_diagonal_(0).sort(1).values  # the first is the client itself, at distance 0
    return nearest[:, 1 : n - rule.n_corrupted - 1].sum(1)
