"""The public names of the estimators and where each lives."""

from coterie.estimation.advice import Advice as Advice
from coterie.estimation.advice import advise as advise
from coterie.estimation.histograms import *  # noqa: F403
from coterie.estimation.means import GaussianMeans as GaussianMeans
from coterie.estimation.means import least_risk as least_risk
from coterie.estimation.mixtures import MixtureMeans as MixtureMeans
from coterie.estimation.quantiser import Quantiser as Quantiser
from coterie.estimation.quantiser import clipping_radius as clipping_radius
from coterie.estimation.quantiser import norm_bound as norm_bound
from coterie.estimation.rates import BernoulliRates as BernoulliRates
from coterie.estimation.regression.linear import LinearModels as LinearModels
from coterie.estimation.regression.logistic import LogisticModels as LogisticModels
from coterie.estimation.regression.mixture_prior import MixtureModels as MixtureModels
