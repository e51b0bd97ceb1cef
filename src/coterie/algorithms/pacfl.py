"""PACFL: clients are grouped once, by the angles between the main directions of their data, before training.

"Efficient Distribution Similarity Identification in Clustered Federated Learning via Principal Angles Between Client
Data Subspaces" (Saeed Vahidian, Mahdi Morafah, Weijia Wang, Vyacheslav Kungurtsev, Chen Chen, Mubarak Shah, Bill Lin,
2023, https://arxiv.org/abs/2209.10526).

Symbols of Algorithm 1: U_p → basis, the first p → directions left singular vectors of a client's data (columns are
samples), β → threshold. Every client sends U_p once. The proximity of two clients is their smallest principal angle in
degrees (equation 2), or the sum of all p (`by="sum"`, after equation 3, which takes the angles between vectors of equal
rank and depends on their signs). Hierarchical clustering with mean linkage cuts at β; then federated averaging inside
each group. A client that did not answer takes the model of smallest loss. Labels are not looked at, so that groups that
differ in them alone are not found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from torch import Tensor

from coterie.algorithms.families import PartitionedOnce, PartitionState
from coterie.base.annotations import guarded
from coterie.base.arguments import Count, Positive
from coterie.base.tree import repeat, row
from coterie.exchange.messages import Ask, Cohort, Context, Exchange, Up


@guarded
@dataclass(frozen=True, kw_only=True)
class PACFL(PartitionedOnce):
    """`directions` is p; groups closer than `threshold` degrees are one."""

    way = "groups"

    directions: Count = 3
    threshold: Positive = 10.0
    by: Literal["smallest", "sum"] = "smallest"

    @classmethod
    def example(cls) -> PACFL:
        return cls(directions=1, threshold=40.0)

    def partition(self, state: PartitionState, cohort: Cohort) -> Exchange[PartitionState]:
        reply = yield Ask(self.subspace, np.arange(len(state.label)), updates={"basis": None})
        if not len(reply.clients):
            return state
        found = grouped(self.angles(reply.values["basis"]), self.threshold)
        label = state.label.index_copy(0, torch.from_numpy(reply.clients), torch.from_numpy(found))
        return PartitionState(repeat(row(state.models, 0), int(found.max()) + 1), label)

    def subspace(self, ctx: Context) -> Up:
        rows = (ctx.x.flatten(1) * ctx.mask.unsqueeze(1)).to(ctx.mask.dtype)
        basis = torch.linalg.svd(rows.nan_to_num(0, 0, 0), full_matrices=False).Vh[: self.directions]
        largest = basis.gather(1, basis.abs().argmax(1, keepdim=True))
        broken = (rows * 0).sum()  # NaN if any number is NaN or infinite
        return Up(send={"basis": basis * largest.sign() + broken})  # a singular vector has no sign of its own

    def angles(self, basis: Tensor) -> Tensor:
        """(clients, clients): the proximity in degrees."""
        cosines = torch.linalg.svdvals(torch.einsum("ipd,jqd->ijpq", basis.double(), basis.double())).clamp(max=1)
        angle = torch.rad2deg(torch.arccos(cosines))
        return angle.sum(-1) if self.by == "sum" else angle[..., 0]


def grouped(angle: Tensor, threshold: float) -> npt.NDArray[np.int64]:
    """Each client's group, in the order in which they are met."""
    if len(angle) == 1:
        return np.zeros(1, np.int64)
    even = ((angle + angle.T) / 2).fill_diagonal_(0).numpy()
    tree = linkage(squareform(even, checks=False), "average")
    label = fcluster(tree, threshold, "distance")
    _, first, inverse = np.unique(label, return_index=True, return_inverse=True)
    order: npt.NDArray[np.int64] = np.argsort(np.argsort(first))[inverse].astype(np.int64)
    return order
