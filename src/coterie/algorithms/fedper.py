"""FedPer: common base layers, and personalisation layers that stay on each client.

"Federated Learning with Personalization Layers" (Manoj Ghuhan Arivazhagan, Vinay Aggarwal, Aaditya Kumar Singh, Sunav
Choudhary, 2019, https://arxiv.org/abs/1912.00818).

Symbols of Algorithms 1 and 2: W_B → common, W_{P_j} → own (the head), γ_j → the client's share of all samples. A client
trains base and personalisation layers together and sends the base; the server averages bases, weighted by γ. FedRep
trains the two in turns instead. A client's model is the newest base with its own head; a client that never took part
trains a head once on the base. A network of one layer is all head: then every client trains alone.
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
class FedPer(SharingPart):
    """`head` names the personalisation layers, such as ["4"]; by default the last layer."""

    way = "shrunk"

    head: Sequence[str] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "head", names(self.head, "FedPer", "head"))

    def own(self, task: Task, params: Params) -> Params:
        return split(params, self.head)[1]
