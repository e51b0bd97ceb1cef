"""coterie: find out who should learn together, and let them."""

from coterie import channels, datasets, incentives, metrics, models, robust
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
from coterie.exchange import Algorithm, Ask, Cohort, Context, MeanBy, Reply, SumBy, Up
from coterie.federation import Federation
from coterie.local import LocalSGD
from coterie.radius import Percentile
from coterie.results import Result
from coterie.run import best_of, fit
from coterie.task import Task
from coterie.threshold import ThresholdClustering, threshold_clustering

__version__ = "0.1.0"
__all__ = [
    "CFL",
    "IFCA",
    "Algorithm",
    "Ask",
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
    "FixedSize",
    "HypCluster",
    "KNNPer",
    "Local",
    "LocalEngine",
    "LocalSGD",
    "LoopEngine",
    "MeanBy",
    "MomentumClustering",
    "MyopicClustering",
    "OneShot",
    "Oracle",
    "Percentile",
    "Poisson",
    "Reply",
    "Result",
    "SumBy",
    "Task",
    "TaskError",
    "ThresholdClustering",
    "Up",
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
