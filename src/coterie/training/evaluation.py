"""Evaluation: what every client gets from a run that is in memory, computed on its own data."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from coterie.data.federation import Federation
from coterie.engines.base import Env, first_contact
from coterie.engines.devices import Holding
from coterie.exchange.messages import Algorithm, Context, Ints
from coterie.learning.predictors import Mixture
from coterie.learning.task import Task
from coterie.tree import Params, Tree, row


@dataclass(frozen=True)
class Evaluation:
    """A run still in memory, and what can be computed from it: any client's model, predictions, scores and losses.

    Nothing here trains a model further; a client that was never sampled is only given its starting state."""

    algorithm: Algorithm
    federation: Federation
    task: Task
    state: Any
    env: Env
    engine: Any

    def everyone(self) -> Ints:
        """The places of all clients in the federation."""
        return np.arange(len(self.federation))

    def ready(self, clients: Ints) -> Ints:
        """Give those of the clients that were never reached their starting state; returns the clients."""
        first_contact(self.algorithm, clients, self.env, self.engine)
        self.env.states.commit()
        return clients

    def personal(self, clients: Ints) -> Params:
        """The models of some clients, stacked."""
        self.ready(clients)
        algorithm, state = (
            self.algorithm,
            self.state,
        )  # a function that is sent to other processes holds only what it needs

        def personal(ctx: Context) -> Tree:
            return algorithm.personal(ctx, state)

        models: Params = self.engine.map(personal, clients, self.env, test=False)
        return models

    def clusters(self) -> Ints:
        """The group of every client."""
        clients = self.ready(self.everyone())
        algorithm = self.algorithm

        def cluster(ctx: Context, state: Any) -> Tree:
            return {"cluster": algorithm.cluster(ctx, state)}

        labels: Tensor = self.engine.map(Holding(cluster, self.state), clients, self.env, test=False)["cluster"]
        return labels.numpy().astype(np.int64)

    def scores(self) -> pd.DataFrame:
        """Every client's own predictor on its own test data: one row per client, one column per metric."""

        scorers = self.task.scorers

        def score(out: Tree) -> Tree:
            return {s.name: s(out["outputs"], out["y"], out["mask"]) for s in scorers}

        table = self.on_test_rows(score)
        return pd.DataFrame({m: table[m].double().numpy() for m in self.task.metrics}, index=self.federation.clients)

    def on_test_rows(self, post: Callable[[Tree], Tree]) -> Tree:
        """Every client's predictions on its own test rows, given to `post` a chunk of clients at a time.

        `post` gets `outputs` (clients, rows, values), `y`, `mask` (0 where a row is padding) and `index`, the clients'
        places; what it returns is put together for all clients."""
        clients = self.ready(self.everyone())
        algorithm = self.algorithm

        def predict(ctx: Context, test: Context, state: Any) -> Tree:
            outputs = algorithm.predict(ctx, state, test.x)
            return {"outputs": outputs, "y": test.y, "mask": test.mask, "index": ctx.index}

        def shaped(out: Tree) -> Tree:
            outputs = out["outputs"]
            return post({**out, "outputs": outputs if outputs.dim() > 2 else outputs.unsqueeze(-1)})

        table: Tree = self.engine.map(Holding(predict, self.state), clients, self.env, test=True, post=shaped)
        return table

    def test_losses(self) -> npt.NDArray[np.float64]:
        """The task's loss of every client's predictor on its own test rows (NaN without any)."""
        clients = self.ready(self.everyone())
        algorithm = self.algorithm

        def loss(ctx: Context, test: Context, state: Any) -> Tree:
            outputs = algorithm.predict(ctx, state, test.x)
            return {"loss": (ctx.task.sample_losses(outputs, test.y) * test.mask).sum() / test.mask.sum()}

        losses: Tensor = self.engine.map(Holding(loss, self.state), clients, self.env, test=True)["loss"]
        return losses.double().numpy()

    def train_losses(self) -> npt.NDArray[np.float64]:
        """The task's loss of every client's model on its own training rows."""
        clients = self.ready(self.everyone())
        algorithm = self.algorithm
        mixed = isinstance(algorithm.predictor(), Mixture)  # several networks: no one of them has the loss

        def loss(ctx: Context, state: Any) -> Tree:
            if not mixed:
                return {"loss": ctx.loss(algorithm.personal(ctx, state))}
            losses = ctx.task.sample_losses(algorithm.predict(ctx, state, ctx.x), ctx.y)
            return {"loss": (losses * ctx.mask).sum() / ctx.mask.sum().clamp(min=1)}

        losses: Tensor = self.engine.map(Holding(loss, self.state), clients, self.env, test=False)["loss"]
        return losses.double().numpy()

    def test_means(self) -> dict[str, float]:
        """Mean scores over clients, for the history."""
        return {f"test_{name}": float(value) for name, value in self.scores().mean().items()}

    def distinct_models(self, chunk: int = 256) -> tuple[Params, Tensor]:
        """Every client's model, equal ones kept once, and which client has which."""
        seen: dict[bytes, int] = {}
        kept: list[Params] = []
        which: list[int] = []
        for start in range(0, len(self.federation), chunk):
            models = self.personal(self.everyone()[start : start + chunk])
            for i in range(len(next(iter(models.values())))):
                one = row(models, i)
                digest = hashlib.sha256(b"".join(t.contiguous().numpy().tobytes() for t in one.values())).digest()
                if digest not in seen:
                    seen[digest] = len(kept)
                    kept.append({k: t.clone() for k, t in one.items()})
                which.append(seen[digest])
        return {k: torch.stack([m[k] for m in kept]) for k in kept[0]}, torch.tensor(which)
