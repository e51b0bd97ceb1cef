"""coterie: find out who should learn together, and let them.

Names are imported when first used: the estimators need no torch, and `coterie --help` answers at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie import attacks, channels, datasets, incentives, metrics, models, robust
    from coterie.algorithms import (
        CFL,
        IFCA,
        DefectionFree,
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
    from coterie.comparison import Comparison, compare
    from coterie.engines import LocalEngine, LoopEngine
    from coterie.errors import ClientError, ConfigError, CoterieError, DataError, Diverged, TaskError
    from coterie.estimation.advise import Advice, advise
    from coterie.estimation.bernoulli import BernoulliRates
    from coterie.estimation.gaussian import GaussianMeans
    from coterie.estimation.histogram_baselines import FedAvgHistogram, IFCAHistograms, LocalHistograms
    from coterie.estimation.histogram_soft import DirichletMultinomialMixture
    from coterie.estimation.histograms import HistogramMixture, TokenReduction, save_counts
    from coterie.estimation.linear import LinearModels
    from coterie.estimation.logistic import LogisticModels
    from coterie.estimation.mixture import MixtureMeans
    from coterie.estimation.quantiser import Quantiser
    from coterie.exchange import Algorithm, Ask, Cohort, Context, MeanBy, Reply, SumBy, Up
    from coterie.federation import Federation
    from coterie.local import LocalSGD
    from coterie.participation import Coalition, Participation
    from coterie.radius import Fixed, Percentile, Proof, Theory
    from coterie.results import Result
    from coterie.run import best_of, fit
    from coterie.task import Task
    from coterie.threshold import ThresholdClustering, threshold_clustering
__version__ = "0.1.0"

_HOME = {
    "Coalition": "coterie.participation",
    "Participation": "coterie.participation",
    "DefectionFree": "coterie.algorithms",
    "DirichletMultinomialMixture": "coterie.estimation.histogram_soft",
    "IFCAHistograms": "coterie.estimation.histogram_baselines",
    "FedAvgHistogram": "coterie.estimation.histogram_baselines",
    "LocalHistograms": "coterie.estimation.histogram_baselines",
    "save_counts": "coterie.estimation.histograms",
    "TokenReduction": "coterie.estimation.histograms",
    "HistogramMixture": "coterie.estimation.histograms",
    "Comparison": "coterie.comparison",
    "compare": "coterie.comparison",
    "Advice": "coterie.estimation.advise",
    "Algorithm": "coterie.exchange",
    "Ask": "coterie.exchange",
    "BernoulliRates": "coterie.estimation.bernoulli",
    "CFL": "coterie.algorithms",
    "Choice": "coterie.choose",
    "ClientError": "coterie.errors",
    "Cohort": "coterie.exchange",
    "ConfigError": "coterie.errors",
    "Context": "coterie.exchange",
    "CoterieError": "coterie.errors",
    "DataError": "coterie.errors",
    "Ditto": "coterie.algorithms",
    "Diverged": "coterie.errors",
    "Dropout": "coterie.channels",
    "Everyone": "coterie.cohorts",
    "FedAvg": "coterie.algorithms",
    "FederatedClustering": "coterie.algorithms",
    "Federation": "coterie.federation",
    "FineTuned": "coterie.algorithms",
    "Fixed": "coterie.radius",
    "FixedSize": "coterie.cohorts",
    "GaussianMeans": "coterie.estimation.gaussian",
    "HypCluster": "coterie.algorithms",
    "IFCA": "coterie.algorithms",
    "KNNPer": "coterie.algorithms",
    "LinearModels": "coterie.estimation.linear",
    "Local": "coterie.algorithms",
    "LocalEngine": "coterie.engines",
    "LocalSGD": "coterie.local",
    "LogisticModels": "coterie.estimation.logistic",
    "LoopEngine": "coterie.engines",
    "MeanBy": "coterie.exchange",
    "MixtureMeans": "coterie.estimation.mixture",
    "MomentumClustering": "coterie.algorithms",
    "MyopicClustering": "coterie.algorithms",
    "OneShot": "coterie.algorithms",
    "Oracle": "coterie.algorithms",
    "Percentile": "coterie.radius",
    "Poisson": "coterie.cohorts",
    "Proof": "coterie.radius",
    "Quantiser": "coterie.estimation.quantiser",
    "Reply": "coterie.exchange",
    "Result": "coterie.results",
    "SumBy": "coterie.exchange",
    "Task": "coterie.task",
    "TaskError": "coterie.errors",
    "Theory": "coterie.radius",
    "ThresholdClustering": "coterie.threshold",
    "Up": "coterie.exchange",
    "advise": "coterie.estimation.advise",
    "attacks": "coterie.attacks",
    "best_of": "coterie.run",
    "channels": "coterie.channels",
    "choose_clusters": "coterie.choose",
    "datasets": "coterie.datasets",
    "fit": "coterie.run",
    "incentives": "coterie.incentives",
    "metrics": "coterie.metrics",
    "models": "coterie.models",
    "robust": "coterie.robust",
    "threshold_clustering": "coterie.threshold",
}
"""Where each public name lives."""

__all__ = [
    "CFL",
    "IFCA",
    "Advice",
    "Algorithm",
    "Ask",
    "BernoulliRates",
    "Choice",
    "ClientError",
    "Coalition",
    "Cohort",
    "Comparison",
    "ConfigError",
    "Context",
    "CoterieError",
    "DataError",
    "DefectionFree",
    "DirichletMultinomialMixture",
    "Ditto",
    "Diverged",
    "Dropout",
    "Everyone",
    "FedAvg",
    "FedAvgHistogram",
    "FederatedClustering",
    "Federation",
    "FineTuned",
    "Fixed",
    "FixedSize",
    "GaussianMeans",
    "HistogramMixture",
    "HypCluster",
    "IFCAHistograms",
    "KNNPer",
    "LinearModels",
    "Local",
    "LocalEngine",
    "LocalHistograms",
    "LocalSGD",
    "LogisticModels",
    "LoopEngine",
    "MeanBy",
    "MixtureMeans",
    "MomentumClustering",
    "MyopicClustering",
    "OneShot",
    "Oracle",
    "Participation",
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
    "TokenReduction",
    "Up",
    "advise",
    "attacks",
    "best_of",
    "channels",
    "choose_clusters",
    "compare",
    "datasets",
    "fit",
    "incentives",
    "metrics",
    "models",
    "robust",
    "save_counts",
    "threshold_clustering",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'coterie' has no attribute {name!r}")
    module = import_module(_HOME[name])
    value = module if _HOME[name] == f"coterie.{name}" and not hasattr(module, name) else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
