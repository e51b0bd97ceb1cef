"""A tree of similar clients: average linkage on the cosine distance of their gradients at the shared model.

Sattler, Müller and Samek, "Clustered Federated Learning" (2020), split by the same similarity."""

from dataclasses import dataclass

import numpy as np
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

from coterie.evidence.gains import Floats


@dataclass(frozen=True)
class Node:
    """Some clients and, unless the node is a leaf of the cut tree, the two parts they fall into."""

    members: frozenset[int]
    parts: tuple["Node", ...] = ()

    def below(self) -> list["Node"]:
        """This node and all below it."""
        return [self, *(node for part in self.parts for node in part.below())]


def cosine_distance(gradients: Floats) -> Floats:
    """1 − cosine, (clients, clients); a gradient of zero is at distance 1 from all others."""
    size = np.linalg.norm(gradients, axis=1, keepdims=True)
    unit = gradients / np.where(size > 0, size, 1)
    distance = np.clip(1 - unit @ unit.T, 0, 2)
    np.fill_diagonal(distance, 0)
    return np.asarray((distance + distance.T) / 2)


def cut_tree(distance: Floats, nodes: int) -> Node:
    """The top of the tree: all clients, and their parts down to at most ``nodes`` leaves."""
    m = len(distance)
    merges = hierarchy.linkage(squareform(np.round(distance, 12), checks=False), "average")
    kept = m - max(1, min(nodes, m))  # merges below the cut
    made: dict[int, Node] = {i: Node(frozenset([i])) for i in range(m)}
    for k, (a, b, _, _) in enumerate(merges):
        left, right = sorted((made.pop(int(a)), made.pop(int(b))), key=lambda node: min(node.members))
        made[m + k] = Node(left.members | right.members, () if k < kept else (left, right))
    (top,) = made.values()
    return top


def nearest(block: frozenset[int], others: list[frozenset[int]], distance: Floats) -> list[frozenset[int]]:
    """The other blocks, nearest first (mean distance between members, ties by smallest member)."""
    mine = sorted(block)
    return sorted(others, key=lambda o: (round(float(distance[np.ix_(mine, sorted(o))].mean()), 12), min(o)))
