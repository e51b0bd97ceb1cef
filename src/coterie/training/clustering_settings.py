"""σ, Δ, δ and A² of a federation at one model, and a Federated-Clustering that is set by them."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from coterie.aggregation.gradient_constants import Constants, constants
from coterie.algorithms.federated_clustering import FederatedClustering
from coterie.algorithms.local import Local
from coterie.base.annotations import guarded
from coterie.base.arguments import Count, Positive
from coterie.base.tree import Tree, flat_vector
from coterie.data.federation import Federation
from coterie.errors import CoterieWarning
from coterie.exchange.messages import Context
from coterie.learning.task import Task
from coterie.training.run import fit


@guarded
def gradient_constants(
    federation: Federation,
    task: Task,
    *,
    batch_size: Count = 8,
    batches: Count = 64,
    clusters: Count | None = None,
    warm: int = 0,
    seed: int = 0,
) -> Constants:
    """The constants at the common start of all clients, or after `warm` rounds of training alone (each at its own model)."""
    run = fit(Local(), federation, task, rounds=warm, alone=False, seed=seed, progress=False)
    live = run.evaluation

    def sampled(ctx: Context, _: Tensor) -> Tree:
        model = live.algorithm.personal(ctx, live.state)
        drawn = ctx.batches(steps=batches, batch_size=batch_size)
        return {"gradients": torch.stack([flat_vector(batch.grad(model), 0) for batch in drawn])}

    return constants(live.each(sampled)["gradients"], batch_size, clusters)


@guarded
def clustering_for(
    federation: Federation,
    task: Task,
    *,
    lr: Positive = 0.1,
    batch_size: Count | None = None,
    clusters: Count | None = None,
    seed: int = 0,
) -> FederatedClustering:
    """`FederatedClustering` with the radius, the inner rounds and (unless given) the batch of Theorem 3, by constants
    measured at the start; full batches where clients have too few rows. A warning names every condition that fails."""
    found, rows = gradient_constants(federation, task, clusters=clusters, seed=seed), int(federation.n_train.min())
    for sentence in found.warnings(max(rows, 1)):
        warnings.warn(sentence, CoterieWarning, stacklevel=3)
    if batch_size is None and found.least_batch < rows:
        batch_size = max(found.least_batch, min(8, rows))
    batch = max(rows, 1) if batch_size is None else batch_size
    return FederatedClustering(
        lr=float(lr), radius=found.radius(batch), inner=found.inner(batch), batch_size=batch_size
    )
