"""The three worlds of Figure 2.1 of Werner's dissertation, in which well-known ways to find groups fail.

Every client owns one loss function of a single number x. `examples/failures.py` tells their story and draws them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from coterie.algorithms import CFL
from coterie.data.federation import Federation
from coterie.engines import LocalEngine
from coterie.learning.local_sgd import LocalSGD
from coterie.learning.task import Task
from coterie.training.cohorts import Everyone
from coterie.training.run import Run, fit


class Number(nn.Module):
    """A model that is one number, whatever the sample."""

    def __init__(self, value: float = 0.0) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.tensor([value]))

    def forward(self, samples: Tensor) -> Tensor:
        return self.x.expand(len(samples))


def clients(*targets: tuple[float, ...]) -> Federation:
    """Client 1, 2, … with one sample a target; the features are not used."""
    data = {i: (np.zeros((len(t), 1)), np.array(t)) for i, t in enumerate(targets, 1)}
    return Federation.from_arrays(data, test_fraction=0.0, kind="regression", dtype="float64")


def start(value: float) -> dict[str, Tensor]:
    return {"x": torch.tensor([value], dtype=torch.float64)}


def positions(algorithm: Any, fed: Federation, task: Task, begin: Any, rounds: int, seed: int = 0) -> Tensor:
    """Every client's number before the first and after each round, shape (rounds + 1, clients)."""
    run = Run(algorithm, fed, task, seed, Everyone(), (), LocalEngine(workers=1), None, start=begin)
    run.begin(resume=False, overwrite=False)
    path = [run.evaluation().personal(np.arange(len(fed)))["x"]]
    for _ in range(rounds):
        run.one_round()
        path.append(run.evaluation().personal(np.arange(len(fed)))["x"])
    run.engine.close()
    return torch.stack(path).squeeze(-1)


# ---- 1: gradients that vanish say nothing ----------------------------------------------------------------------------

ETA = 0.05  # at most 1/12: with the figure's 0.5 client 2 would oscillate for ever


def vanishing_loss(x: Tensor, client: Tensor, eta: float = ETA) -> Tensor:
    """The three loss functions; the sample's target is the client's number."""
    u = x - 1
    flat = torch.where(u < 0, 4 * u**3 + 3 * u**4 + 1, u**2 / (2 * eta) + 1)
    return torch.where(client == 1, x**2 / (6 * eta), torch.where(client == 2, flat, (x - 2) ** 2 / (2 * eta)))


def vanishing(eta: float = ETA) -> tuple[Federation, Task]:
    loss = partial(vanishing_loss, eta=eta)
    return clients((1.0,), (2.0,), (3.0,)), Task(Number, loss=loss, metric="mse")


# ---- 2: a shared model that nobody leaves ----------------------------------------------------------------------------


def stuck() -> tuple[Federation, Task]:
    """f₁ = (x + ½)², f₂ = (x − ½)²."""
    return clients((-0.5,), (0.5,)), Task(Number, loss="mse")


def two_models(algorithm: Any, first: float, second: float) -> Any:
    """A start of IFCA or HypCluster with chosen models."""
    fed, task = stuck()
    state = fit(algorithm, fed, task, rounds=0, alone=False).state
    return replace(state, models={"x": torch.tensor([[first], [second]], dtype=torch.float64)}, started=True)


def own_models(algorithm: Any, *values: float) -> Any:
    """A start of Federated-Clustering with a model for each client."""
    fed, task = stuck()
    state = fit(algorithm, fed, task, rounds=0, alone=False).state
    return replace(state, models={"x": torch.tensor(values, dtype=torch.float64).unsqueeze(1)})


# ---- 3: a split at the wrong moment ----------------------------------------------------------------------------------


def half_square(x: Tensor, y: Tensor) -> Tensor:
    return (x - y) ** 2 / 2


def noisy() -> tuple[Federation, Task]:
    """Gradients x, x − ½, and either x or x − 1: client 3 draws one of its two samples."""
    return clients((0.0, 0.0), (0.5, 0.5), (0.0, 1.0)), Task(Number, loss=half_square, metric="mse")


def splitting(first: int = 0) -> CFL:
    """CFL that splits in round `first`, at the optimum 1/3 of all three together (the dissertation prints 1/4)."""
    return CFL(LocalSGD(steps=1, lr=0.1, batch_size=1), quiet=1.0, loud=1e-3, first=first)
