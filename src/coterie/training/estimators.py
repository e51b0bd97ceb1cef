"""Estimators of rows that stay where they are: clients tell sums, and the estimators' formulas do the rest.

means, rates, linear models     one question
logistic models                 moments, a quadratic form per round of the prior, posteriors"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.base.tree import Tree
from coterie.data.federation import Federation
from coterie.engines.base import Env, rows_env
from coterie.errors import ConfigError, DataError
from coterie.estimation.client_sums import ClientMeans, ClientSums, client_sums
from coterie.estimation.conventions import labels
from coterie.estimation.histograms.mixture import HistogramMixture
from coterie.estimation.rates import BernoulliRates
from coterie.estimation.regression.grouped import Grouped, group_rows, of_roots, root_of
from coterie.estimation.regression.linear import LinearModels
from coterie.estimation.regression.logistic import LogisticModels
from coterie.estimation.regression.sites import Told, forms_of
from coterie.exchange.messages import Ask, Context, Ints, Up
from coterie.training.histograms import histograms


@dataclass(frozen=True)
class Sums:
    """What a client tells of its training rows."""

    estimator: Any = None

    def client(self, ctx: Context) -> Tree:
        return {}

    def means(self, ctx: Context) -> Up:
        """Number, mean and scatter of the rows' columns."""
        told = client_sums([ctx.x.double().numpy()])
        return _up(counts=told.counts[0], means=told.means[0], scatter=told.scatter[0])

    def rates(self, ctx: Context) -> Up:
        """The number of rows of the second class, and of all rows."""
        return _up(successes=float(ctx.y.sum()), trials=float(len(ctx.y)))

    def moments(self, ctx: Context) -> Up:
        """The number of rows, and the root of the sums of squares and products of columns, constant and target."""
        x, y = ctx.x.double().numpy(), ctx.y.double().numpy()
        return _up(counts=float(len(y)), root=root_of(x, y, self.estimator.fit_intercept))

    def forms(self, ctx: Context, size: Tensor, mean: Tensor, root: Tensor) -> Up:
        """The quadratic form that stands for a client's labels under a population, with columns in units of `size`."""
        rows = _one(ctx, self.estimator.fit_intercept)
        A, c = forms_of(replace(rows, X=rows.X / size.numpy()), mean.numpy(), root.numpy())
        return _up(A=A[0], c=c[0])

    def posteriors(self, ctx: Context, mean: Tensor, covariance: Tensor, error: Tensor) -> Up:
        """A client's mode, posterior mean and variances under a population, and the share of the prior that is left."""
        x, y = ctx.x.double().numpy(), ctx.y.double().numpy()
        told = self.estimator.told_posteriors(x, y, mean.numpy(), covariance.numpy(), error.numpy())
        return _up(**dict(zip(("mode", "mean", "variance", "left"), told, strict=True)))


def _one(ctx: Context, intercept: bool) -> Grouped:
    y = ctx.y.double().numpy()
    return group_rows(ctx.x.double().numpy(), y, np.zeros(len(y)), intercept, None, False)


def _up(**send: Any) -> Up:
    return Up({name: torch.as_tensor(value, dtype=torch.float64) for name, value in send.items()})


class _Lost(Exception):
    """Clients that answered before do not answer any more."""


@dataclass
class Asking:
    """Questions to the clients that have answered all before; one that does not answer is left out from then on."""

    engine: Any
    env: Env
    clients: Ints
    questions: Sums

    def ask(self, phase: Any, **down: Any) -> dict[str, Any]:
        there = {name: torch.from_numpy(np.asarray(value, np.float64)) for name, value in down.items()}
        reply = self.engine.run(Ask(phase, self.clients, there, optional=True), self.env)
        self.env = replace(self.env, ask=self.env.ask + 1)
        order = np.argsort(reply.clients)
        lost, self.clients = len(reply.clients) < len(self.clients), reply.clients[order]
        if not len(self.clients):
            raise DataError("No client answered; there is nothing to fit. Ask again when clients are there.")
        if lost and down:
            raise _Lost
        return {name: t.numpy()[order] for name, t in reply.values.items()}


def estimated(estimator: Any, federation: Federation, engine: Any, seed: int, questions: Sums | None = None) -> Any:
    """The estimator, fitted to what the clients told; `left_out_` names those that did not. `questions` are those that
    clients elsewhere know."""
    if isinstance(estimator, HistogramMixture):
        return histograms(estimator, federation, engine, seed)
    how = _how(estimator, federation)
    asking = Asking(engine, rows_env(federation, seed), np.arange(len(federation)), questions or Sums(estimator))
    made = how(estimator, asking, federation)
    made.left_out_ = [str(c) for c in federation.clients if c not in set(federation.clients[asking.clients])]
    return made


def _how(estimator: Any, federation: Federation) -> Callable[[Any, Asking, Federation], Any]:
    """How an estimator is fitted; clients of another kind are refused."""
    kinds: list[tuple[Any, Any, str | None]] = [
        (BernoulliRates, _rates, "classification"), (ClientMeans, _means, None), (LinearModels, _linear, "regression"),
        (LogisticModels, _logistic, "classification"),
    ]  # fmt: skip
    found = next(((how, kind) for of, how, kind in kinds if isinstance(estimator, of)), None)
    name = type(estimator).__name__
    if found is None:
        raise ConfigError(
            f"Of estimators, fit takes those of means, BernoulliRates, LinearModels, LogisticModels and "
            f"HistogramMixture; got {name}. Call its own fit."
        )
    how: Callable[[Any, Asking, Federation], Any] = found[0]
    kind = found[1]
    if kind is not None and (federation.kind != kind or federation.n_outputs > 2 or federation.y.dim() > 1):
        what = "two classes" if kind == "classification" else "a number"
        raise DataError(
            f"{name} is for a target of {what}; the target of these clients is {federation.kind}. Pass others."
        )
    if how is not _rates and federation.x.dim() != 2:
        raise DataError(
            f"{name} is of tables; these clients' rows have {federation.x.dim() - 1} dimensions. Pass others."
        )
    return how


def _rates(estimator: Any, asking: Asking, federation: Federation) -> Any:
    told = asking.ask(asking.questions.rates)
    fitted = estimator.fit(told["successes"], told["trials"])
    fitted.clients_ = federation.clients[asking.clients].to_numpy()
    return fitted


def _means(estimator: Any, asking: Asking, federation: Federation) -> Any:
    told = asking.ask(asking.questions.means)
    names = federation.clients[asking.clients].to_numpy()
    return estimator.fit_told(ClientSums(told["counts"], told["means"], told["scatter"], False), names)


def _linear(estimator: Any, asking: Asking, federation: Federation) -> Any:
    told = asking.ask(asking.questions.moments)
    names, order = _by_name(asking, federation)
    rows = of_roots(told["root"][order], told["counts"][order].astype(np.int64), names)
    return estimator.fit_told(rows, federation.n_features)


def _by_name(asking: Asking, federation: Federation) -> tuple[Any, Ints]:
    """The clients' names, sorted as estimators keep them, and the order that sorts the answers."""
    names = labels(federation.clients[asking.clients])
    order = np.argsort(names, kind="stable")
    return names[order], order


def _logistic(estimator: Any, asking: Asking, federation: Federation) -> Any:
    """Each round asks for forms under the population so far. When a client is lost, the rounds start again without it."""
    phases = asking.questions
    told, first = asking.ask(phases.moments), asking.clients
    estimator.classes_ = np.array([0, 1] if federation.classes is None else list(federation.classes))
    while True:
        keep = np.isin(first, asking.clients)
        names, order = _by_name(asking, federation)
        counts = told["counts"][keep][order].astype(np.int64)
        square = np.square(told["root"][keep][:, :, :-1]).sum((0, 1)) / counts.sum()
        size = np.where(square > 0, np.sqrt(square), 1.0)

        def ask(phase: Any, *of: str, order: Ints = order, **down: Any) -> tuple[Any, ...]:
            found = asking.ask(phase, **down)
            return tuple(found[name][order] for name in of)

        def forms(mean: Any, root: Any, ask: Any = ask, size: Any = size) -> tuple[Any, ...]:
            return tuple(ask(phases.forms, "A", "c", size=size, mean=mean, root=root))

        def posteriors(mean: Any, covariance: Any, error: Any, ask: Any = ask) -> tuple[Any, ...]:
            names = ("mode", "mean", "variance", "left")
            return tuple(ask(phases.posteriors, *names, mean=mean, covariance=covariance, error=error))

        rows = Told(names, counts, size, forms, posteriors)
        try:
            return estimator.fit_told(rows, federation.n_features)
        except _Lost:
            continue
