"""One paper, one file. The registry serves the command line and the conformance suite; users pass objects."""

from coterie.algorithms.cfl import CFL
from coterie.algorithms.defection_free import DefectionFree
from coterie.algorithms.ditto import Ditto
from coterie.algorithms.fedavg import FedAvg
from coterie.algorithms.federated_clustering import FederatedClustering
from coterie.algorithms.finetuned import FineTuned
from coterie.algorithms.hypcluster import HypCluster
from coterie.algorithms.ifca import IFCA
from coterie.algorithms.knnper import KNNPer
from coterie.algorithms.local import Local
from coterie.algorithms.momentum_clustering import MomentumClustering
from coterie.algorithms.myopic import MyopicClustering
from coterie.algorithms.oneshot import OneShot
from coterie.algorithms.oracle import Oracle

ALGORITHMS: dict[str, type] = {
    "local": Local,
    "fedavg": FedAvg,
    "finetuned": FineTuned,
    "oracle": Oracle,
    "ifca": IFCA,
    "oneshot": OneShot,
    "hypcluster": HypCluster,
    "cfl": CFL,
    "federated_clustering": FederatedClustering,
    "momentum_clustering": MomentumClustering,
    "myopic_clustering": MyopicClustering,
    "ditto": Ditto,
    "knnper": KNNPer,
    "defection_free": DefectionFree,
}

__all__ = [
    "ALGORITHMS",
    "CFL",
    "IFCA",
    "DefectionFree",
    "Ditto",
    "FedAvg",
    "FederatedClustering",
    "FineTuned",
    "HypCluster",
    "KNNPer",
    "Local",
    "MomentumClustering",
    "MyopicClustering",
    "OneShot",
    "Oracle",
]
