"""One paper, one file. The registry serves the command line and the conformance suite; users pass objects."""

from coterie.algorithms.adaped import AdaPeD
from coterie.algorithms.apfl import APFL
from coterie.algorithms.cfl import CFL
from coterie.algorithms.defection_free import DefectionFree
from coterie.algorithms.discrete_prior import DiscretePrior
from coterie.algorithms.ditto import Ditto
from coterie.algorithms.fedavg import FedAvg
from coterie.algorithms.fedbn import FedBN
from coterie.algorithms.fedem import FedEM
from coterie.algorithms.federated_clustering import FederatedClustering
from coterie.algorithms.fedprox import FedProx
from coterie.algorithms.fedrep import FedRep
from coterie.algorithms.finetuned import FineTuned
from coterie.algorithms.gaussian_prior import GaussianPrior, LaplacePrior
from coterie.algorithms.hypcluster import HypCluster
from coterie.algorithms.ifca import IFCA, EarlyStop, FromUpdates
from coterie.algorithms.knnper import KNNPer
from coterie.algorithms.local import Local
from coterie.algorithms.mixture_prior import MixturePrior
from coterie.algorithms.momentum_clustering import MomentumClustering
from coterie.algorithms.mutual_learning import MutualLearning
from coterie.algorithms.myopic import MyopicClustering
from coterie.algorithms.oneshot import OneShot
from coterie.algorithms.oracle import Oracle
from coterie.algorithms.perfedavg import PerFedAvg
from coterie.algorithms.pfedme import PFedMe
from coterie.algorithms.quped import QuPeD
from coterie.algorithms.scaffold import Scaffold

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
    "fedprox": FedProx,
    "scaffold": Scaffold,
    "fedbn": FedBN,
    "fedrep": FedRep,
    "apfl": APFL,
    "pfedme": PFedMe,
    "perfedavg": PerFedAvg,
    "mutual_learning": MutualLearning,
    "quped": QuPeD,
    "adaped": AdaPeD,
    "fedem": FedEM,
    "gaussian_prior": GaussianPrior,
    "laplace_prior": LaplacePrior,
    "mixture_prior": MixturePrior,
    "discrete_prior": DiscretePrior,
}

__all__ = [
    "ALGORITHMS",
    "APFL",
    "CFL",
    "IFCA",
    "AdaPeD",
    "DefectionFree",
    "DiscretePrior",
    "Ditto",
    "EarlyStop",
    "FedAvg",
    "FedBN",
    "FedEM",
    "FedProx",
    "FedRep",
    "FederatedClustering",
    "FineTuned",
    "FromUpdates",
    "GaussianPrior",
    "HypCluster",
    "KNNPer",
    "LaplacePrior",
    "Local",
    "MixturePrior",
    "MomentumClustering",
    "MutualLearning",
    "MyopicClustering",
    "OneShot",
    "Oracle",
    "PFedMe",
    "PerFedAvg",
    "QuPeD",
    "Scaffold",
]
