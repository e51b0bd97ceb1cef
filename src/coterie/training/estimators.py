"""Estimators of rows that stay where they are: each client tells its sums once, and the estimator's formulas do the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from coterie.base.tree import Tree
from coterie.data.federation import Federation
from coterie.engines.base import rows_env
from coterie.errors import ConfigError, DataError
from coterie.estimation.client_sums import ClientMeans, ClientSums, client_sums
from coterie.estimation.histograms.mixture import HistogramMixture
from coterie.estimation.rates import BernoulliRates
from coterie.exchange.messages import Ask, Context, Up
from coterie.training.histograms import histograms


@dataclass(frozen=True)
class Sums:
    """What a client tells of its training rows."""

    def client(self, ctx: Context) -> Tree:
        return {}

    def means(self, ctx: Context) -> Up:
        """Number, mean and scatter of the rows' columns."""
        told = client_sums([ctx.x.double().numpy()])
        return _up(counts=told.counts[0], means=told.means[0], scatter=told.scatter[0])

    def rates(self, ctx: Context) -> Up:
        """The number of rows of the second class, and of all rows."""
        return _up(successes=float(ctx.y.sum()), trials=float(len(ctx.y)))


def _up(**send: Any) -> Up:
    return Up({name: torch.as_tensor(value, dtype=torch.float64) for name, value in send.items()})


def estimated(estimator: Any, federation: Federation, engine: Any, seed: int) -> Any:
    """The estimator, fitted to what the clients told."""
    if isinstance(estimator, HistogramMixture):
        return histograms(estimator, federation, engine, seed)
    rates = isinstance(estimator, BernoulliRates)
    if not rates and not isinstance(estimator, ClientMeans):
        raise ConfigError(
            f"Of estimators, fit takes those of means, BernoulliRates and HistogramMixture; got {type(estimator).__name__}. "
            "Call its own fit."
        )
    if rates and (federation.kind != "classification" or federation.n_outputs != 2):
        raise DataError(f"Rates are of two classes; the target of these clients is {federation.kind}. Pass others.")
    if not rates and federation.x.dim() != 2:
        raise DataError(
            f"Means are of tables; these clients' rows have {federation.x.dim() - 1} dimensions. Pass others."
        )
    questions, env = Sums(), rows_env(federation, seed)
    reply = engine.run(Ask(questions.rates if rates else questions.means, np.arange(len(federation))), env)
    order = np.argsort(reply.clients)
    told = {name: t.numpy()[order] for name, t in reply.values.items()}
    names = federation.clients[reply.clients[order]]
    if rates:
        fitted = estimator.fit(told["successes"], told["trials"])
        fitted.clients_ = names.to_numpy()
        return fitted
    return estimator.fit_told(ClientSums(told["counts"], told["means"], told["scatter"], False), names.to_numpy())
