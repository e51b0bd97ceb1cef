"""What every histogram estimator does once it has centres: name the nearest, measure distances, personalise."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from coterie.errors import ConfigError
from coterie.estimation.histograms.counts import Counts, Floats, Ints, Source, read_counts
from coterie.estimation.histograms.dirichlet import concentration_mle
from coterie.estimation.histograms.kl import kl_to_centers, normalise, safe_log, smooth
from coterie.estimation.histograms.private.designs import PrivateFit
from coterie.estimation.histograms.reduction import FittedReduction

_ALPHA_ENTRIES = 100_000  # α is estimated from so many non-zero counts; its error is then about one percent.


class CenterModel(BaseEstimator):  # type: ignore[misc]
    """Users near shared centres. Fitted: `centers_`, `weights_` (the clusters' shares), `concentration_`, `reduction_`.

    `lam` is the weight λ on the shared model: a number for everybody, or None for λ_u = α/(α + m_u).
    """

    lam: float | None
    concentration: float | None
    smoothing: float
    centers_: Floats
    weights_: Floats
    concentration_: float
    reduction_: FittedReduction | None
    vocabulary_: NDArray[Any] | None
    users_: NDArray[Any] | None

    def predict(self, counts: Source) -> Ints:
        """Nearest centre in KL for each user, known or new; the largest cluster for a user without tokens."""
        return self._nearest(self._read(counts))

    def transform(self, counts: Source) -> Floats:
        """users × clusters matrix of KL(Q̂_u‖sm_s(P_k)), in nats."""
        return self._divergences(self._read(counts))

    def personalise(self, counts: Source) -> Floats:
        """λ_u P_{c_u} + (1 − λ_u) Q̂_u for each user, known or never seen (users × tokens, dense).

        A centre with zeros is smoothed, sm_s(P), so that no token is called impossible (unless `smoothing` is 0);
        others are taken as they are. A user without tokens gets the population's histogram Σ_k w_k P_k.
        Rows of a frame or file of (user, token, count) come out one per user, sorted by user: np.unique(frame["user"]).
        """
        table = self._read(counts)
        histograms, tokens = normalise(table)
        lam = self.shared_weight(tokens)
        positive = (self.centers_ > 0).all(axis=1, keepdims=True)
        centers = np.where(positive, self.centers_, smooth(self.centers_, self.smoothing))
        models = centers[self._nearest(table)]
        models[tokens == 0] = self.weights_ @ centers
        models *= lam[:, None]
        rows = np.repeat(np.arange(len(lam)), np.diff(table.indptr))
        models[rows, table.indices] += (1 - lam[rows]) * histograms.data
        return models

    def shared_weight(self, tokens: Floats) -> Floats:
        """λ_u of users with so many tokens: how much each leans on the others."""
        tokens = np.asarray(tokens, dtype=np.float64)
        if self.lam is not None:
            return np.where(tokens > 0, self.lam, 1.0)
        check_is_fitted(self, "concentration_")
        return np.asarray(self.concentration_ / (self.concentration_ + tokens), dtype=np.float64)

    def _take(self, fit: PrivateFit, vocabulary: NDArray[Any] | None) -> None:
        """What a private run gives out; what an earlier fit knew of single users is forgotten."""
        for name in ("labels_", "objective_", "history_", "n_empty_users_"):
            self.__dict__.pop(name, None)
        self.reduction_, self.users_, self.vocabulary_ = None, None, vocabulary
        self.centers_, self.weights_, self.mean_, self.receipt_ = fit.centers, fit.weights, fit.mean, fit.receipt
        if fit.tuning is not None:
            self.concentration_ = fit.tuning.concentration
            if len(fit.centers) > 1:
                self.gain_, self.gain_error_ = fit.tuning.gain, fit.tuning.gain_error
                self.clustering_pays_, self.advice_ = fit.tuning.pays, fit.tuning.sentence
        if self.concentration is not None:
            self.concentration_ = float(self.concentration)

    def _read(self, counts: Source) -> Counts:
        check_is_fitted(self, "centers_")
        return read_counts(counts, self.vocabulary_, self.centers_.shape[1]).counts

    def _model(self) -> Floats:
        """The centres assignments look at: smoothed, and on the reduced tokens if there is a reduction."""
        centers = self.centers_
        if self.reduction_ is not None:
            centers = _lump(self.reduction_, centers)
        return smooth(centers, self.smoothing)

    def _view(self, counts: Counts) -> Counts:
        return counts if self.reduction_ is None else self.reduction_.reduce(counts)

    def _divergences(self, counts: Counts) -> Floats:
        return kl_to_centers(normalise(self._view(counts))[0], self._model())

    def _nearest(self, counts: Counts) -> Ints:
        scores = self._view(counts) @ np.ascontiguousarray(safe_log(self._model()).T)
        labels: Ints = np.asarray(scores).argmax(axis=1)
        labels[np.diff(counts.indptr) == 0] = int(self.weights_.argmax())
        return labels

    def _check_fine_tuning(self) -> None:
        if self.lam is not None and not 0 <= self.lam <= 1:
            raise ConfigError(
                f"lam is the weight on the shared model, between 0 and 1; got {self.lam}. Use for example 0.5."
            )
        if self.concentration is not None and not self.concentration > 0:
            raise ConfigError(f"concentration must be positive; got {self.concentration}. Use None to estimate it.")
        if not self.smoothing >= 0:
            raise ConfigError(f"smoothing must not be negative; got {self.smoothing}. Use 0 or more.")

    def _estimate_concentration(self, sample: Counts, rng: np.random.Generator) -> float:
        """α as given, or by maximum likelihood on (a random part of) the sample."""
        if self.concentration is not None:
            return float(self.concentration)
        if sample.nnz > _ALPHA_ENTRIES:
            share = max(int(sample.shape[0] * _ALPHA_ENTRIES / sample.nnz), 1)
            sample = sample[np.sort(rng.choice(sample.shape[0], share, replace=False))]
        return concentration_mle(sample, self.centers_, self._nearest(sample))


def _lump(reduction: FittedReduction, centers: Floats) -> Floats:
    kept = centers[:, reduction.kept]
    rest = np.maximum(1 - kept.sum(axis=1, keepdims=True), 0.0)
    return np.hstack([kept, rest])
