"""What IFCA's server keeps between rounds, and how a cluster's part and the shared part make one model."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from coterie.exchange.messages import one_per
from coterie.tree import Params


@dataclass(frozen=True)
class IFCAState:
    models: Params  # (k, …): the part of the model each cluster has for itself
    shared: Params  # the part all clusters share (empty without weight sharing)
    started: bool
    identity: Tensor = field(
        metadata=one_per("client")
    )  # (m,) clusters the server knows once it stopped sending all models; −1: unknown
    closed: bool


def merge(model: Params, shared: Params, like: Params) -> Params:
    """A whole model from a cluster's own part and the shared part, in the order of `like`."""
    return {name: shared[name] if name in shared else model[name] for name in like}
