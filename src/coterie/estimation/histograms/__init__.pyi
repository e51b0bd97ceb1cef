"""The public names of `ct.histograms` and where each lives."""

from coterie.estimation.histograms.baselines import FedAvgHistogram as FedAvgHistogram
from coterie.estimation.histograms.baselines import IFCAHistograms as IFCAHistograms
from coterie.estimation.histograms.baselines import LocalHistograms as LocalHistograms
from coterie.estimation.histograms.mixture import HistogramMixture as HistogramMixture
from coterie.estimation.histograms.mixture import TokenReduction as TokenReduction
from coterie.estimation.histograms.mixture import save_counts as save_counts
from coterie.estimation.histograms.soft import DirichletMultinomialMixture as DirichletMultinomialMixture
from coterie.estimation.histograms.vocabulary import count_tokens as count_tokens
from coterie.estimation.histograms.vocabulary import discover_tokens as discover_tokens
