"""The methods that all histogram estimators with centres share: nearest centres, distances, personalised histograms."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import logsumexp, xlogy
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from coterie.base.annotations import check_settings, guarded
from coterie.base.arguments import whole_number
from coterie.errors import DataError
from coterie.estimation.histograms.count_store import open_store
from coterie.estimation.histograms.counts import (
    Counts,
    CountTable,
    Floats,
    Ints,
    Source,
    is_wide,
    read_counts,
    refuse_other_width,
)
from coterie.estimation.histograms.dirichlet import concentration_mle
from coterie.estimation.histograms.kl import kl_to_centers, normalise, safe_log, smooth
from coterie.estimation.histograms.model import Cells
from coterie.estimation.histograms.private.designs import PrivateFit
from coterie.estimation.histograms.reduction import FittedReduction
from coterie.estimation.histograms.user_rows import row_slice

_ALPHA_ENTRIES = 100_000  # α is estimated from so many non-zero counts; its error is then about one percent.


class CountModel(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """An estimator of users' histograms: counts in, checked against the columns of fit."""

    centers_: Floats
    concentration_: float | Floats
    weights_: Floats
    labels_: Ints
    objective_: float
    history_: Floats
    n_iter_: int
    vocabulary_: NDArray[Any] | None
    users_: NDArray[Any] | None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = tags.input_tags.positive_only = True
        return tags

    def _table(self, counts: Source) -> CountTable:
        """The checked counts of a fit."""
        check_settings(self)
        table = read_counts(counts)
        self._columns(counts, table.counts.shape[1])
        return table

    def _columns(self, counts: Source, width: int) -> None:
        """n_features_in_, and feature_names_in_ of a frame with a column per token."""
        self.n_features_in_ = width
        self.__dict__.pop("feature_names_in_", None)
        if is_wide(counts):
            self.feature_names_in_ = np.asarray(counts.columns, dtype=object)  # type: ignore[union-attr]

    def _read(self, counts: Source) -> Counts:
        check_is_fitted(self, "centers_")
        refuse_other_width(self, counts)
        return read_counts(counts, self.vocabulary_, self.centers_.shape[1]).counts

    def _parameters(self) -> Floats:
        """α_k P_k, all above 0: a token that a centre has never seen is rare there, not impossible."""
        alpha = np.broadcast_to(self.concentration_, (len(self.centers_),))[:, None]
        return np.asarray(alpha * smooth(self.centers_, max(getattr(self, "smoothing", 0.0), 1e-12)))

    def score(self, counts: Source, y: object = None) -> float:
        """Mean log-likelihood per token in nats of users under Σ_k w_k DirichletMultinomial(m_u, α_k P_k); higher is better.

        It is meant for users not seen in fit; users without tokens do not count."""
        table = self._read(counts)
        tokens = float(table.sum())
        if tokens == 0:
            raise DataError("score needs at least one token; all users are empty. Pass users that have tokens.")
        joint = Cells(table).log_likelihood(self._parameters()) + safe_log(self.weights_)
        return float(logsumexp(joint, axis=1).sum()) / tokens


class CenterModel(CountModel):
    """Users near shared centres. Fitted: `centers_`, `weights_` (the clusters' shares), `concentration_`, `reduction_`.

    `lam` is the weight λ on the shared model: a number for all users, or None for λ_u = α/(α + m_u).
    """

    lam: float | None
    concentration: float | None
    smoothing: float
    concentration_: float
    reduction_: FittedReduction | None

    def predict(self, counts: Source) -> Ints:
        """Nearest centre in KL for each user, known or new; the largest cluster for a user without tokens."""
        return self._nearest(self._read(counts))

    def transform(self, counts: Source) -> Floats:
        """users × clusters matrix of KL(Q̂_u‖sm_s(P_k)), in nats."""
        return kl_to_centers(normalise(self._view(self._read(counts)))[0], self._model())

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

    @guarded
    def personalise_blocks(self, counts: Source, users: int = 4096) -> Iterator[tuple[int, Floats]]:
        """`personalise` of so many users at a time, as (number of the first, their histograms): for more than fit in memory.

        `counts` may also be a folder written by `save_counts`, which is read a block at a time."""
        check_is_fitted(self, "centers_")
        whole_number("users", users)
        if isinstance(counts, (str, Path)) and Path(counts).is_dir():
            with open_store(Path(counts)) as store:
                for start in range(0, store.shape[0], users):
                    yield start, self.personalise(store.load(start, min(start + users, store.shape[0])))
            return
        table = self._read(counts)
        for start in range(0, table.shape[0], users):
            yield start, self.personalise(row_slice(table, start, min(start + users, table.shape[0])))

    @guarded
    def top_tokens(self, n: int = 10) -> pd.DataFrame:
        """The n tokens that distinguish each cluster most, by P log(P/mean): cluster, share, token, probability, lift."""
        check_is_fitted(self, "centers_")
        whole_number("n", n)
        mean = self.weights_ @ self.centers_
        lift = np.divide(self.centers_, mean, out=np.ones_like(self.centers_), where=mean > 0)
        rows = []
        for k, centre in enumerate(self.centers_):
            telling = np.argsort(-xlogy(centre, lift[k]), kind="stable")[:n] if len(self.centers_) > 1 else None
            for x in np.argsort(-centre, kind="stable")[:n] if telling is None else telling:
                name = int(x) if self.vocabulary_ is None else self.vocabulary_[x]
                rows.append((k, float(self.weights_[k]), name, float(centre[x]), float(lift[k, x])))
        return pd.DataFrame(rows, columns=["cluster", "share", "token", "probability", "lift"])

    def shared_weight(self, tokens: Floats) -> Floats:
        """λ_u of users with these numbers of tokens: the weight of the shared model."""
        tokens = np.asarray(tokens, dtype=np.float64)
        if self.lam is not None:
            return np.where(tokens > 0, self.lam, 1.0)
        check_is_fitted(self, "concentration_")
        return np.asarray(self.concentration_ / (self.concentration_ + tokens), dtype=np.float64)

    def _take(self, fit: PrivateFit, vocabulary: NDArray[Any] | None) -> None:
        """Set the results of a private run, and delete what an earlier fit stored about single users."""
        for name in ("labels_", "objective_", "history_", "n_empty_users_", "note_", "scores_"):
            self.__dict__.pop(name, None)
        self.clusters_ = len(fit.centers)
        self.reduction_, self.users_, self.vocabulary_ = None, None, vocabulary
        self.centers_, self.weights_, self.mean_, self.receipt_ = fit.centers, fit.weights, fit.mean, fit.receipt
        if fit.tuning is not None:
            self.concentration_ = fit.tuning.concentration
            if len(fit.centers) > 1:
                self.gain_, self.gain_error_ = fit.tuning.gain, fit.tuning.gain_error
                self.clustering_pays_, self.advice_ = fit.tuning.pays, fit.tuning.sentence
        if self.concentration is not None:
            self.concentration_ = float(self.concentration)

    def _model(self) -> Floats:
        """The centres that assignments use: smoothed, and on the reduced tokens if there is a reduction."""
        centers = self.centers_
        if self.reduction_ is not None:
            centers = _lump(self.reduction_, centers)
        return smooth(centers, self.smoothing)

    def _view(self, counts: Counts) -> Counts:
        return counts if self.reduction_ is None else self.reduction_.reduce(counts)

    def _nearest(self, counts: Counts) -> Ints:
        scores = self._view(counts) @ np.ascontiguousarray(safe_log(self._model()).T)
        labels: Ints = np.asarray(scores).argmax(axis=1)
        labels[np.diff(counts.indptr) == 0] = int(self.weights_.argmax())
        return labels

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
