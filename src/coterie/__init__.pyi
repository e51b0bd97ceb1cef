"""The public names of coterie and where each lives. `coterie.base.lazy` reads this file as a table."""

from coterie import aggregation as _aggregation
from coterie import comparison as comparison
from coterie import datasets as datasets
from coterie import engines as engines
from coterie import errors as errors
from coterie import estimation as estimation
from coterie import exchange as exchange
from coterie import incentives as incentives
from coterie import privacy as privacy
from coterie import training as training
from coterie.algorithms import *  # noqa: F403
from coterie.comparison.advice import advise as advise
from coterie.comparison.compare import Comparison as Comparison
from coterie.comparison.compare import compare as compare
from coterie.comparison.deploy.estimator import CoterieClassifier as CoterieClassifier
from coterie.comparison.deploy.estimator import CoterieRegressor as CoterieRegressor
from coterie.comparison.deploy.stored import load_model as load_model
from coterie.data.federation import Federation as Federation
from coterie.estimation import histograms as histograms
from coterie.estimation.histograms.mixture import HistogramMixture as HistogramMixture
from coterie.estimation.means import GaussianMeans as GaussianMeans
from coterie.estimation.mixtures import MixtureMeans as MixtureMeans
from coterie.estimation.rates import BernoulliRates as BernoulliRates
from coterie.estimation.regression.linear import LinearModels as LinearModels
from coterie.estimation.regression.logistic import LogisticModels as LogisticModels
from coterie.learning import metrics as metrics
from coterie.learning import models as models
from coterie.learning import schedules as schedules
from coterie.learning.local_sgd import LocalAdam as LocalAdam
from coterie.learning.local_sgd import LocalSGD as LocalSGD
from coterie.learning.scoring import Scorer as Scorer
from coterie.learning.task import Task as Task
from coterie.privacy.settings import Privacy as Privacy
from coterie.training.conformance import check as check
from coterie.training.number_of_clusters import choose_clusters as choose_clusters
from coterie.training.result import Result as Result
from coterie.training.run import fit as fit
from coterie.training.sweeps import fit_seeds as fit_seeds
from coterie.training.sweeps import grid as grid
from coterie.training.tables import table as table
from coterie.training.tuning import best_of as best_of

robust = _aggregation
__version__: str
