"""The public names of the estimators and where each lives."""

from coterie.estimation.advice import Advice as Advice
from coterie.estimation.advice import advise as advise
from coterie.estimation.histograms.baselines import FedAvgHistogram as FedAvgHistogram
from coterie.estimation.histograms.baselines import IFCAHistograms as IFCAHistograms
from coterie.estimation.histograms.baselines import LocalHistograms as LocalHistograms
from coterie.estimation.histograms.mixture import HistogramMixture as HistogramMixture
from coterie.estimation.histograms.mixture import TokenReduction as TokenReduction
from coterie.estimation.histograms.mixture import save_counts as save_counts
from coterie.estimation.histograms.soft import DirichletMultinomialMixture as DirichletMultinomialMixture
from coterie.estimation.means import GaussianMeans as GaussianMeans
from coterie.estimation.means import least_risk as least_risk
from coterie.estimation.mixtures import MixtureMeans as MixtureMeans
from coterie.estimation.quantiser import Quantiser as Quantiser
from coterie.estimation.quantiser import VectorQuantiser as VectorQuantiser
from coterie.estimation.quantiser import clipping_radius as clipping_radius
from coterie.estimation.quantiser import norm_bound as norm_bound
from coterie.estimation.rates import BernoulliRates as BernoulliRates
from coterie.estimation.rates import rates_bound as rates_bound
from coterie.estimation.regression.linear import LinearModels as LinearModels
from coterie.estimation.regression.logistic import LogisticModels as LogisticModels
from coterie.estimation.regression.mixture_prior import MixtureModels as MixtureModels
