"""coterie: find out who should learn together, and let them."""

from coterie import attacks, channels, datasets, incentives, metrics, models, robust
from coterie.algorithms import (
    CFL,
    IFCA,
    Ditto,
    FedAvg,
    FederatedClustering,
    FineTuned,
    HypCluster,
    KNNPer,
    Local,
    MomentumClustering,
    MyopicClustering,
    OneShot,
    Oracle,
)
from coterie.channels import Dropout
from coterie.choose import Choice, choose_clusters
from coterie.cohorts import Everyone, FixedSize, Poisson
from coterie.engines import LocalEngine, LoopEngine
from coterie.errors import ClientError, ConfigError, CoterieError, DataError, Diverged, TaskError
from coterie.estimation.advise import Advice, advise
from coterie.estimation.bernoulli import BernoulliRates
from coterie.estimation.gaussian import GaussianMeans
from coterie.estimation.linear import LinearModels
from coterie.estimation.logistic import LogisticModels
from coterie.estimation.mixture import MixtureMeans
from coterie.estimation.quantiser import Quantiser
from coterie.exchange import Algorithm, Ask, Cohort, Context, MeanBy, Reply, SumBy, Up
from coterie.federation import Federation
from coterie.local import LocalSGD
from coterie.radius import Fixed, Percentile, Proof, Theory
from coterie.results import Result
from coterie.run import best_of, fit
from coterie.task import Task
from coterie.threshold import ThresholdClustering, threshold_clustering

__version__ = "0.1.0"
__all__ = [
    "CFL",
    "IFCA",
    "Advice",
    "Algorithm",
    "Ask",
    "BernoulliRates",
    "Choice",
    "ClientError",
    "Cohort",
    "ConfigError",
    "Context",
    "CoterieError",
    "DataError",
    "Ditto",
    "Diverged",
    "Dropout",
    "Everyone",
    "FedAvg",
    "FederatedClustering",
    "Federation",
    "FineTuned",
    "Fixed",
    "FixedSize",
    "GaussianMeans",
    "HypCluster",
    "KNNPer",
    "LinearModels",
    "Local",
    "LocalEngine",
    "LocalSGD",
    "LogisticModels",
    "LoopEngine",
    "MeanBy",
    "MixtureMeans",
    "MomentumClustering",
    "MyopicClustering",
    "OneShot",
    "Oracle",
    "Percentile",
    "Poisson",
    "Proof",
    "Quantiser",
    "Reply",
    "Result",
    "SumBy",
    "Task",
    "TaskError",
    "Theory",
    "ThresholdClustering",
    "Up",
    "advise",
    "attacks",
    "best_of",
    "channels",
    "choose_clusters",
    "datasets",
    "fit",
    "incentives",
    "metrics",
    "models",
    "robust",
    "threshold_clustering",
]
