"""LG-FedAvg: every client has its own lower layers, which make features, and all share the layers that predict from
them.

"Think Locally, Act Globally: Federated Learning with Local and Global Representations" (Paul Pu Liang, Terrance Liu,
Liu Ziyin, Nicholas B. Allen, Randy P. Auerbach, David Brent, Ruslan Salakhutdinov, Louis-Philippe Morency, 2020,
https://arxiv.org/abs/2001.01523).

Symbols of Algorithm 1: θ_m^ℓ → own (the body), θ^g → common (the head). A client trains both together and sends θ^g,
which the server averages by numbers of samples: the opposite of FedPer. The authors' experiments begin with rounds of
FedAvg, because bodies trained apart from a random start do not fit one head: pass the result's model as `start`. A
client that never took part trains a body once under the common head. A network of one layer is all head, and LG-FedAvg
is FedAvg there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coterie.algorithms.families import SharingPart
from coterie.base.annotations import guarded
from coterie.base.tree import Params, names
from coterie.learning.body_and_head import split
from coterie.learning.task import Task


@guarded
@dataclass(frozen=True, kw_only=True)
class LGFedAvg(SharingPart):
    """`head` names the common layers, such as ["4"]; by default the last layer."""

    way = "shrunk"

    head: Sequence[str] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "head", names(self.head, "LGFedAvg", "head"))

    def own(self, task: Task, params: Params) -> Params:
        return split(params, self.head)[0]
