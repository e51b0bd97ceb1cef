"""coterie: find out who should learn together, and let them."""

from coterie import datasets, models
from coterie.algorithms import FedAvg, FineTuned, Local, Oracle
from coterie.channels import Dropout
from coterie.cohorts import Everyone, FixedSize, Poisson
from coterie.engines import LocalEngine, LoopEngine
from coterie.errors import ClientError, ConfigError, CoterieError, DataError, Diverged, TaskError
from coterie.exchange import Algorithm, Ask, Cohort, Context, MeanBy, Reply, SumBy, Up
from coterie.federation import Federation
from coterie.local import LocalSGD
from coterie.results import Result
from coterie.run import fit
from coterie.task import Task

__version__ = "0.1.0"
__all__ = [
    "Algorithm",
    "Ask",
    "ClientError",
    "Cohort",
    "ConfigError",
    "Context",
    "CoterieError",
    "DataError",
    "Diverged",
    "Dropout",
    "Everyone",
    "FedAvg",
    "Federation",
    "FineTuned",
    "FixedSize",
    "Local",
    "LocalEngine",
    "LocalSGD",
    "LoopEngine",
    "MeanBy",
    "Oracle",
    "Poisson",
    "Reply",
    "Result",
    "SumBy",
    "Task",
    "TaskError",
    "Up",
    "datasets",
    "fit",
    "models",
]
