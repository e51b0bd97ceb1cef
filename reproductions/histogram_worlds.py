"""The best possible personalised histograms under their model, and the exact risk of fine-tuning.

Section 2.1 and Lemma 2.2 of
"Private and Personalized Histogram Estimation in a Federated Setting" (Setlur, Feldman, Talwar, 2023,
https://machinelearning.apple.com/research/private-personalized-histogram).

The model is that of `coterie.estimation.histograms.model`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import digamma, logsumexp, xlogy
from scipy.stats import betabinom

from coterie.estimation.histograms.counts import Floats, Source, read_counts
from coterie.estimation.histograms.kl import safe_log
from coterie.estimation.histograms.model import Cells, posterior_mean


def bayes_histograms(
    counts: Source,
    centers: ArrayLike,
    concentration: float | ArrayLike,
    weights: ArrayLike | None = None,
    labels: ArrayLike | None = None,
) -> Floats:
    """The oracle: E[Q_u | counts_u] with the true centres and α, optimal for E KL(Q_u‖·).

    With the true `labels` it is (αP_{c_u} + counts_u)/(α + m_u), Lemma 2.2; without, the average of these over the
    posterior of c_u. `concentration` may differ from cluster to cluster.
    """
    table = read_counts(counts).counts
    centers = np.asarray(centers, dtype=np.float64)
    alpha = np.broadcast_to(np.asarray(concentration, dtype=np.float64), (len(centers),))
    if labels is not None:
        responsibilities = np.eye(len(centers))[np.asarray(labels)]
    else:
        share = np.full(len(centers), 1 / len(centers)) if weights is None else np.asarray(weights, dtype=np.float64)
        log_joint = Cells(table).log_likelihood(alpha[:, None] * centers) + safe_log(share)
        responsibilities = np.exp(log_joint - logsumexp(log_joint, axis=1, keepdims=True))
    return posterior_mean(table, centers, alpha, responsibilities)


def fine_tuning_risk(center: ArrayLike, concentration: float, tokens: int, weight: float) -> float:
    """R(λ) = E KL(Q‖λP + (1−λ)Q̂) exactly, for Q ~ Dirichlet(αP) and m tokens: a finite sum over beta-binomials.

    `weight` is λ, on the shared model; the minimum is at α/(α + m).
    """
    p, alpha, m = np.asarray(center, dtype=np.float64), float(concentration), int(tokens)
    j = np.arange(m + 1)[:, None]
    model = weight * p + (1 - weight) * j / m
    mass = betabinom.pmf(j, m, alpha * p, alpha * (1 - p)) * (alpha * p + j) / (alpha + m)
    entropy = float((p * (digamma(alpha * p + 1) - digamma(alpha + 1))).sum())
    return entropy - float(xlogy(mass, model).sum())
