"""The same folds solved by scikit-learn (alone, together) and statsmodels (shrunk): the losses to match."""

import importlib
import warnings
from collections.abc import Callable

import numpy as np

from coterie.comparison.exact.candidates.rows import Floats, Ints
from coterie.comparison.exact.metrics import METRICS, Predictions
from coterie.data.coded_table import Table
from coterie.errors import DataError
from coterie.evidence.scores import METHODS, Scores

MOST_CLIENTS = 30  # a search per client and fold takes seconds; larger tables are compared on their first clients


def _ridge(X: Floats, y: Floats, X_new: Floats) -> Floats:
    from sklearn.linear_model import RidgeCV

    if len(y) < 3:
        return np.full((len(X_new), 1), y.mean())
    sd = X.std(0)
    use = sd > 1e-8 * np.abs(X).max(0, initial=1e-300)
    if not use.any():
        return np.full((len(X_new), 1), y.mean())
    scale = sd[use]
    fit = RidgeCV(np.logspace(-3, 3, 13)).fit(X[:, use] / scale, y)
    return np.asarray(fit.predict(X_new[:, use] / scale))[:, None]


def _logistic(n_classes: int) -> Callable[[Floats, Floats, Floats], Floats]:
    def fit(X: Floats, y: Floats, X_new: Floats) -> Floats:
        from sklearn.linear_model import LogisticRegressionCV

        count = np.bincount(y.astype(np.int64), minlength=n_classes)
        smooth = (count + 0.5) / (count + 0.5).sum()
        present = np.flatnonzero(count)
        if len(present) < 2 or count[present].min() < 3:
            return np.tile(smooth, (len(X_new), 1))
        sd = np.where(X.std(0) > 1e-8, X.std(0), 1.0)
        model = LogisticRegressionCV(
            Cs=[1e-3, 1e-2, 0.1, 1.0, 10.0], cv=3, scoring="neg_log_loss", max_iter=2000, use_legacy_attributes=False
        ).fit(X / sd, y)
        chance = np.full((len(X_new), n_classes), 1e-6)
        chance[:, present] = model.predict_proba(X_new / sd)
        return np.asarray(chance / chance.sum(1, keepdims=True))

    return fit


def _mixed(table: Table, train: np.ndarray, test: np.ndarray) -> Floats:
    """REML with a random intercept and uncorrelated random slopes."""
    try:
        mixed = importlib.import_module("statsmodels.regression.mixed_linear_model")
    except ImportError:
        raise DataError(
            "The comparison with mixed models needs the package statsmodels; install it with pip."
        ) from None
    mean, sd = table.X[train].mean(0), table.X[train].std(0)
    use = sd > 0
    Z = np.column_stack([np.ones(len(table.X)), ((table.X - mean) / np.where(use, sd, 1))[:, use]])
    p, y_mean, y_sd = Z.shape[1], table.y[train].mean(), table.y[train].std()
    free = mixed.MixedLMParams.from_components(fe_params=np.ones(p), cov_re=np.eye(p))
    model = mixed.MixedLM((table.y[train] - y_mean) / y_sd, Z[train], groups=table.owner[train], exog_re=Z[train])
    found = model.fit(free=free, method="lbfgs")
    own = np.zeros((table.n_clients, p))
    for client, effects in found.random_effects.items():
        own[int(client)] = np.asarray(effects)
    made = (Z[test] * (found.fe_params + own[table.owner[test]])).sum(1)
    return np.asarray(made * y_sd + y_mean)[:, None]


def reference_losses(table: Table, fold: Ints, metric: str) -> dict[str, Floats]:
    """Row losses of "alone", "together" and, for regressions with few columns, "shrunk"; NaN where not compared."""
    classification = table.classes is not None
    fit = _logistic(table.n_classes) if classification else _ridge
    chosen = table.owner < MOST_CLIENTS
    ways = ["alone", "together"] + ([] if classification or table.X.shape[1] > 6 or len(table.y) > 2500 else ["shrunk"])
    made = {way: np.full((len(table.y), max(table.n_classes, 1)), np.nan) for way in ways}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for f in np.unique(fold):
            train, test = fold != f, fold == f
            made["together"][test] = fit(table.X[train], table.y[train], table.X[test])
            for i in np.unique(table.owner[test & chosen]):
                own, new = train & (table.owner == i), test & (table.owner == i)
                if own.any():
                    made["alone"][new] = fit(table.X[own], table.y[own], table.X[new])
            if "shrunk" in ways:
                try:
                    made["shrunk"][test] = _mixed(table, train, test)
                except (np.linalg.LinAlgError, ValueError):
                    made["shrunk"][:] = np.nan
                    ways.remove("shrunk")
    loss = METRICS["classification" if classification else "regression"][metric]
    return {way: loss(table, Predictions(made[way])) for way in ways}


def compare(table: Table, scores: Scores, metric: str) -> dict[str, dict[str, float]]:
    """Ours and theirs, and the difference in standard errors over clients (positive: ours is worse)."""
    found = {}
    for way, theirs in reference_losses(table, scores.fold[0], metric).items():
        ours = scores.rows[0, METHODS.index(way)]
        known = np.isfinite(theirs) & np.isfinite(ours)
        total = np.bincount(table.owner, weights=known, minlength=table.n_clients)
        clients = np.flatnonzero(total >= 4)
        if len(clients) < 2:
            continue
        each = [
            np.bincount(table.owner[known], weights=v[known], minlength=table.n_clients)[clients]
            for v in (ours, theirs)
        ]
        mine, other = (e / total[clients] for e in each)
        error = float((mine - other).std(ddof=1) / np.sqrt(len(clients)))
        spread = float(other.std(ddof=1) / np.sqrt(len(clients)))
        found[way] = {
            "ours": round(float(mine.mean()), 5),
            "theirs": round(float(other.mean()), 5),
            "se_difference": round(error, 6),
            "se_loss": round(spread, 6),
        }
    return found
