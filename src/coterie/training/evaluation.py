"""Evaluation of a run in memory: every client's model and scores, computed on its own data."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor, nn

from coterie.base.tree import Params, Tree, concat, n_bytes, row
from coterie.data.federation import Federation
from coterie.engines.base import Env, first_contact
from coterie.engines.devices import Holding
from coterie.exchange.messages import Algorithm, Context, Ints
from coterie.learning.predictors import Mixture
from coterie.learning.task import Task
from coterie.training.progress import counted

_BLOCK_BYTES = 1 << 28  # bytes of start states that are made for an evaluation and then freed


@dataclass(frozen=True)
class Evaluation:
    """A run still in memory, and what can be computed from it: any client's model, predictions, scores and losses.

    Nothing here trains a model further. A client that was never sampled has its starting state while it is evaluated.
    Clients are evaluated in blocks, so memory does not grow with the number of clients that were never sampled."""

    algorithm: Algorithm
    federation: Federation
    task: Task
    state: Any
    env: Env
    engine: Any
    met: npt.NDArray[np.bool_] | None = None  # which clients took part; None: all, or nobody may know
    most: int = 1 << 14  # clients evaluated together

    def everyone(self) -> Ints:
        """The places of all clients in the federation."""
        return np.arange(len(self.federation))

    def ready(self, clients: Ints) -> Ints:
        """Give clients that were never asked their starting state; returns these clients."""
        first_contact(self.algorithm, clients, self.env, self.engine)
        self.env.states.commit()
        return clients

    @contextmanager
    def visiting(self, clients: Ints) -> Iterator[None]:
        """Inside, clients that were never asked have their starting state; afterwards it is removed."""
        try:
            first_contact(self.algorithm, clients, self.env, self.engine)
            yield
        finally:
            self.env.states.rollback()

    def blocks(self, clients: Ints) -> list[Ints]:
        """The clients in blocks that fit into memory."""
        step = int(np.clip(_BLOCK_BYTES // max(n_bytes(self.env.initial), 1), 1, 1 << 30))
        step = min(step, self.most)
        return [clients[i : i + step] for i in range(0, len(clients), step)]

    def each(
        self,
        function: Callable[..., Tree],
        clients: Ints | None = None,
        *,
        test: bool = False,
        post: Callable[[Tree], Tree] | None = None,
    ) -> Tree:
        """`function(ctx, state)` (with `test`: `(ctx, test_ctx, state)`) of every client (or of some), stacked; `post` acts
        on a chunk of them."""
        parts = []
        held = Holding(function, self.state)
        for block in counted(self.blocks(self.everyone() if clients is None else clients), "evaluating"):
            with self.visiting(block):
                parts.append(self.engine.map(held, block, self.env, test=test, post=post))
        whole: Tree = parts[0] if len(parts) == 1 else concat(parts)
        return whole

    def personal(self, clients: Ints) -> Params:
        """The models of some clients, stacked."""
        algorithm = self.algorithm  # other processes get only what they need

        def personal(ctx: Context, state: Any) -> Tree:
            return algorithm.personal(ctx, state)

        models: Params = self.each(personal, clients)
        return models

    def module(self, index: int) -> nn.Module:
        """The network of the client at a place, ready to use."""
        params, special = row(self.personal(np.array([index])), 0), self.algorithm.predictor()
        if special is None:
            return self.task.module(params=params).eval()
        samples = self.federation.train(self.federation.clients[index])
        return special.module(special.fill(self.task.module(), params), *samples).eval()

    def clusters(self) -> Ints:
        """The group of every client."""
        algorithm = self.algorithm

        def cluster(ctx: Context, state: Any) -> Tree:
            return {"cluster": algorithm.cluster(ctx, state)}

        labels: Tensor = self.each(cluster)["cluster"]
        return labels.numpy().astype(np.int64)

    def scores(self, clients: Ints | None = None) -> pd.DataFrame:
        """Every client's (or some clients') own predictor on its own test data: a row per client, a column per metric."""
        scorers = self.task.scorers

        def score(out: Tree) -> Tree:
            return {s.name: s(out["outputs"], out["y"], out["mask"]) for s in scorers}

        table = self.on_test_rows(score, clients)
        names = self.federation.clients if clients is None else self.federation.clients[clients]
        return pd.DataFrame({m: table[m].double().numpy() for m in self.task.metrics}, index=names)

    def on_test_rows(self, post: Callable[[Tree], Tree], clients: Ints | None = None) -> Tree:
        """Every client's (or some clients') predictions on its own test rows, given to `post` a chunk of clients at a time.

        `post` gets `outputs` (clients, rows, values), `y`, `mask` (0 where a row is padding) and `index`, the clients'
        places; what it returns is put together for all clients."""
        algorithm = self.algorithm

        def predict(ctx: Context, test: Context, state: Any) -> Tree:
            outputs = algorithm.predict(ctx, state, test.x)
            return {"outputs": outputs, "y": test.y, "mask": test.mask, "index": ctx.index}

        def shaped(out: Tree) -> Tree:
            outputs = out["outputs"]
            return post({**out, "outputs": outputs if outputs.dim() > 2 else outputs.unsqueeze(-1)})

        return self.each(predict, clients, test=True, post=shaped)

    def test_losses(self) -> npt.NDArray[np.float64]:
        """The task's loss of every client's predictor on its own test rows (NaN without any)."""
        algorithm, task = self.algorithm, self.task

        def loss(ctx: Context, test: Context, state: Any) -> Tree:
            outputs = algorithm.predict(ctx, state, test.x)
            return {"loss": (task.sample_losses(outputs, test.y) * test.mask).sum() / test.mask.sum()}

        losses: Tensor = self.each(loss, test=True)["loss"]
        return losses.double().numpy()

    def train_losses(self) -> npt.NDArray[np.float64]:
        """The task's loss of every client's model on its own training rows."""
        algorithm, task = self.algorithm, self.task
        mixed = isinstance(algorithm.predictor(), Mixture)  # several networks predict; no single one has the loss

        def loss(ctx: Context, state: Any) -> Tree:
            if not mixed:
                return {"loss": ctx.loss(algorithm.personal(ctx, state))}
            losses = task.sample_losses(algorithm.predict(ctx, state, ctx.x), ctx.y)
            return {"loss": (losses * ctx.mask).sum() / ctx.mask.sum().clamp(min=1)}

        losses: Tensor = self.each(loss)["loss"]
        return losses.double().numpy()

    def sample(self, size: int) -> Ints:
        """The places of `size` clients drawn at random, the same in every round."""
        order = np.random.default_rng(self.env.seed).permutation(len(self.federation))
        return np.sort(order[: min(size, len(order))])

    def test_means(self, size: int | None = None) -> dict[str, float]:
        """Mean scores over clients, for the history; of `size` clients drawn at random also the means' standard errors."""
        part = None if size is None else self.sample(size)
        scores = self.scores(part)
        means = {f"test_{name}": float(value) for name, value in scores.mean().items()}
        if part is None:
            return means
        left = np.sqrt(1 - len(part) / len(self.federation))  # with all clients drawn there is no sampling error
        return means | {f"test_{name}_error": float(left * value) for name, value in scores.sem().items()}

    def distinct_models(self) -> tuple[Params, Tensor]:
        """Every client's model, equal ones kept once, and which client has which."""
        seen: dict[bytes, int] = {}
        kept: list[Params] = []
        which: list[np.ndarray[Any, Any]] = []
        for block in counted(self.blocks(self.everyone()), "collecting models"):
            models = self.personal(block)
            flat = np.concatenate([_bytes(t) for t in models.values()], axis=1)
            rows = np.ascontiguousarray(flat).view(np.dtype((np.void, flat.shape[1]))).reshape(-1)
            found, first, back = np.unique(rows, return_index=True, return_inverse=True)
            own = np.empty(len(found), np.int64)
            for j in np.argsort(first):  # in the order of the clients
                digest = hashlib.sha256(found[j].tobytes()).digest()
                if digest not in seen:
                    seen[digest] = len(kept)
                    kept.append({k: t.clone() for k, t in row(models, int(first[j])).items()})
                own[j] = seen[digest]
            which.append(own[back])
        return {k: torch.stack([m[k] for m in kept]) for k in kept[0]}, torch.from_numpy(np.concatenate(which))


def _bytes(stacked: Tensor) -> npt.NDArray[np.uint8]:
    """A row of bytes for each of the stacked tensors."""
    return stacked.reshape(len(stacked), -1).contiguous().view(torch.uint8).numpy()
