"""The algorithms, and where each lives. A line here is all that a new file needs: the file's name is its name on the command
line, in configurations and in the conformance suite; `coterie.base.lazy` reads this file as a table."""

from typing import Any

from coterie.algorithms.adaped import AdaPeD as AdaPeD
from coterie.algorithms.apfl import APFL as APFL
from coterie.algorithms.cfl import CFL as CFL
from coterie.algorithms.defection_free import DefectionFree as DefectionFree
from coterie.algorithms.discrete_prior import DiscretePrior as DiscretePrior
from coterie.algorithms.ditto import Ditto as Ditto
from coterie.algorithms.fedala import FedALA as FedALA
from coterie.algorithms.fedamp import FedAMP as FedAMP
from coterie.algorithms.fedavg import FedAvg as FedAvg
from coterie.algorithms.fedbabu import FedBABU as FedBABU
from coterie.algorithms.fedbn import FedBN as FedBN
from coterie.algorithms.feddyn import FedDyn as FedDyn
from coterie.algorithms.fedem import FedEM as FedEM
from coterie.algorithms.federated_clustering import FederatedClustering as FederatedClustering
from coterie.algorithms.fedpac import FedPAC as FedPAC
from coterie.algorithms.fedper import FedPer as FedPer
from coterie.algorithms.fedproto import FedProto as FedProto
from coterie.algorithms.fedprox import FedProx as FedProx
from coterie.algorithms.fedrc import FedRC as FedRC
from coterie.algorithms.fedrep import FedRep as FedRep
from coterie.algorithms.fedrod import FedROD as FedROD
from coterie.algorithms.fedsoft import FedSoft as FedSoft
from coterie.algorithms.fesem import FeSEM as FeSEM
from coterie.algorithms.finetuned import FineTuned as FineTuned
from coterie.algorithms.gaussian_prior import GaussianPrior as GaussianPrior
from coterie.algorithms.hypcluster import HypCluster as HypCluster
from coterie.algorithms.ifca import IFCA as IFCA
from coterie.algorithms.knnper import KNNPer as KNNPer
from coterie.algorithms.laplace_prior import LaplacePrior as LaplacePrior
from coterie.algorithms.lgfedavg import LGFedAvg as LGFedAvg
from coterie.algorithms.local import Local as Local
from coterie.algorithms.mixture_prior import MixturePrior as MixturePrior
from coterie.algorithms.momentum_clustering import MomentumClustering as MomentumClustering
from coterie.algorithms.moon import MOON as MOON
from coterie.algorithms.mutual_learning import MutualLearning as MutualLearning
from coterie.algorithms.myopic_clustering import MyopicClustering as MyopicClustering
from coterie.algorithms.oneshot import OneShot as OneShot
from coterie.algorithms.oracle import Oracle as Oracle
from coterie.algorithms.pacfl import PACFL as PACFL
from coterie.algorithms.perfedavg import PerFedAvg as PerFedAvg
from coterie.algorithms.pfedme import PFedMe as PFedMe
from coterie.algorithms.quped import QuPeD as QuPeD
from coterie.algorithms.scaffold import Scaffold as Scaffold

NAMES: tuple[str, ...]
ALGORITHMS: dict[str, type[Any]]
