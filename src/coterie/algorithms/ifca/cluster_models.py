"""What IFCA's server keeps between rounds, and small operations on one model per cluster."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from coterie.base.tree import Params
from coterie.exchange.messages import one_per


@dataclass(frozen=True)
class IFCAState:
    """The models of all clusters. `identity` is a client's cluster where the server knows it (−1: it does not), and
    `closed` says that such clients are no longer sent all models; both serve the early stop. Before the run has `started`
    from a split, `identity` is a client's part of it."""

    models: Params  # (k, …): the part of the model each cluster has for itself
    shared: Params  # the part all clusters share (empty without weight sharing)
    started: bool
    identity: Tensor = field(metadata=one_per("client"))  # (m,)
    closed: bool


def first_models(draws: list[Params], shared: Params) -> Params:
    """The clusters' own parts of k whole models, stacked; empty when everything is shared."""
    return {name: torch.stack([d[name] for d in draws]) for name in draws[0] if name not in shared}


def per_cluster(total: Tensor, members: Tensor, otherwise: Tensor | None = None) -> Tensor:
    """Row j of a sum divided by entry j of `members`; a cluster without members has its row of `otherwise`, if given."""
    column = members.reshape(-1, *[1] * (total.dim() - 1))
    seen = column > 0
    mean = (total / torch.where(seen, column, 1.0)).to(total.dtype)
    return mean if otherwise is None else torch.where(seen, mean, otherwise)
