"""FedBN: federated averaging of everything except batch normalisation, which every client keeps.

"FedBN: Federated Learning on Non-IID Features via Local Batch Normalization" (Xiaoxiao Li, Meirui Jiang, Xiaofei Zhang,
Michael Kamp, Qi Dou, 2021, https://arxiv.org/abs/2102.07623), Algorithm 1: the server averages layer by layer and leaves out
the normalising layers. With `keep="statistics"` the layers' weights are averaged too and only the running means and
variances stay on the client: "Siloed Federated Learning for Multi-Centric Histopathology Datasets" (Mathieu Andreux, Jean
Ogier du Terrail, Constance Beguier, Eric W. Tramel, 2020, https://arxiv.org/abs/2008.07424).

A client that has never taken part has no layers of its own yet: it predicts with the common part and with normalising layers
trained once on its own data, the common part held fixed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coterie.algorithms.families import CommonState, SharingPart
from coterie.base.annotations import guarded
from coterie.base.tree import Params, named_like, names
from coterie.errors import ConfigError
from coterie.exchange.messages import Population
from coterie.learning.task import Task


@guarded
@dataclass(frozen=True, kw_only=True)
class FedBN(SharingPart):
    """`keep` is what stays on the clients: "layers" (all of every BatchNorm layer), "statistics" (its running means and
    variances alone), or names of parts of the network."""

    way = "shrunk"

    keep: str | Sequence[str] = "layers"

    @classmethod
    def example(cls) -> FedBN:
        return cls(keep=("0", "1", "bias"))

    def __post_init__(self) -> None:
        if self.keep not in ("layers", "statistics"):
            object.__setattr__(self, "keep", names(self.keep, "FedBN", "keep"))

    def own(self, task: Task, params: Params) -> Params:
        if self.keep in ("layers", "statistics"):
            kept = task.normalising if self.keep == "layers" else task.statistics
            return {name: t for name, t in params.items() if name in kept}
        return named_like(params, self.keep)

    def init(self, task: Task, population: Population, seed: int, start: Params) -> CommonState:
        own = self.own(task, start)
        if not own:
            raise ConfigError(
                f"FedBN keeps normalising layers on the clients (keep={self.keep!r}); this network has none such. "
                f"Add nn.BatchNorm, or name parts of it: {', '.join(start)}."
            )
        if len(own) == len(start):
            raise ConfigError("FedBN keeps all of this network on the clients. Use Local, or keep less.")
        return super().init(task, population, seed, start)
