"""Where an aggregator may be used: only where the server sees every client's reply."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from coterie.aggregation.rules import Aggregator
from coterie.base import randomness
from coterie.base.annotations import guarded
from coterie.base.settings import setting, with_setting
from coterie.errors import ConfigError, TooFew


@guarded
def aggregated(
    aggregate: Aggregator, stacked: Any, weights: Tensor, asked: int, *, key: Tensor, start: Any = None
) -> Any | None:
    """The replies as one, or None if they are too few for the rule although all `asked` clients would be enough: some did
    not answer, or are in another cluster. A rule that could not work even with all of them is an error."""
    try:
        return aggregate(stacked, weights, key=key, start=start)
    except TooFew:
        aggregate(torch.zeros(asked, 1), key=key)
        return None


@guarded
def for_group(aggregate: Aggregator, members: int, asked: int) -> Any:
    """The rule for one group of `members` among `asked` clients: the numbers of liars (and of those kept) in proportion,
    rounded up, and lowered as far as so small a group demands."""
    rule: Any = aggregate
    if (inner := setting(rule, "inner")) is not None:
        size = setting(rule, "size", 1)
        rule = replace(rule, inner=for_group(inner, -(-members // size), -(-asked // size)))
    if (liars := setting(rule, "n_corrupted")) is None:
        return rule
    if (keep := setting(rule, "keep")) is not None:
        rule = replace(rule, keep=-(-keep * members // asked))
    for fewer in range(-(-liars * members // asked), 0, -1):
        if _enough(trial := replace(rule, n_corrupted=fewer), members):
            return trial
    return replace(rule, n_corrupted=0)


def _enough(rule: Aggregator, members: int) -> bool:
    try:
        rule(torch.zeros(members, 1), key=randomness.base_key(0))
    except TooFew:
        return False
    return True


@guarded
def with_aggregate(algorithm: Any, aggregate: Aggregator) -> Any:
    """The same algorithm with another aggregator, also inside a wrapper's `base`; an error if its server sees only sums."""
    changed = with_setting(algorithm, "aggregate", aggregate)
    if changed is not None:
        return changed
    raise ConfigError(
        f"{type(algorithm).__name__} only offers additive asks, whose server never sees one client's reply, or combines "
        f"replies by a rule of its own, so {type(aggregate).__name__} has nothing to work on. Use one with an `aggregate` "
        "option, such as FedAvg, Ditto or CFL."
    )
