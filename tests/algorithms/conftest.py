"""Worlds small enough to compute by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import coterie as ct
from coterie.exchange.channels import Channel
from coterie.exchange.messages import Ask, Ints


def quadratics(centres: Any, clusters: Any = None) -> ct.Federation:
    """Client i minimises ‖w − c_i‖² / d: a linear model without bias on the d unit vectors. ∇F_i(w) = (2/d)(w − c_i)."""
    c = np.asarray(centres, np.float64)
    n, d = c.shape
    return ct.Federation.from_flat(
        np.tile(np.eye(d), (n, 1)),
        c.ravel(),
        sizes=np.full(n, d),
        clients=range(n),
        n_test=np.zeros(n, np.int64),
        clusters=clusters,
        kind="regression",
        dtype="float64",
    )


def linear(d: int, hidden: int | None = None) -> ct.Task:
    """⟨w, x⟩, or a network with one linear hidden layer."""
    if hidden is None:
        return ct.Task(lambda: nn.Linear(d, 1, bias=False), loss="mse")
    return ct.Task(lambda: nn.Sequential(nn.Linear(d, hidden), nn.Linear(hidden, 1)), loss="mse")


def planted(
    clusters: int, clients: int, *, samples: int = 30, d: int = 4, noise: float = 0.1, gap: float = 2.0, seed: int = 0
):
    """Linear regression in groups `gap`·√d apart or more; a quarter of the rows are test rows."""
    rng = np.random.default_rng(seed)
    theta = gap * np.linalg.qr(rng.normal(size=(d, d)))[0][:clusters] * np.sqrt(d / 2)
    own = rng.permutation(np.arange(clients) % clusters)
    x = rng.normal(size=(clients, samples, d))
    y = np.einsum("isd,id->is", x, theta[own]) + noise * rng.normal(size=(clients, samples))
    data = {i: (x[i], y[i]) for i in range(clients)}
    fed = ct.Federation.from_arrays(data, clusters=dict(enumerate(own.tolist())), dtype="float64")
    return fed, theta


def personal(result: ct.Result) -> Any:
    """Every client's model as one row of numbers."""
    live = result.evaluation
    models = live.personal(live.everyone())
    return torch.cat([t.flatten(1) for t in models.values()], 1).numpy()


class These:
    """The same cohort in every round."""

    def __init__(self, *clients: int) -> None:
        self.clients = clients

    def sample(self, federation: ct.Federation, seed: int, round: int) -> Ints:
        return np.array(self.clients)


class InTurns:
    """One client a round, one after the other."""

    def sample(self, federation: ct.Federation, seed: int, round: int) -> Ints:
        return np.array([round % len(federation)])


class Count(Channel):
    """Counts asks and the clients asked."""

    def __init__(self) -> None:
        self.asks: list[int] = []

    def ask(self, ask: Ask, where: Any) -> Ask:
        self.asks.append(len(ask.clients))
        return ask


class Silent(Channel):
    """One client never answers."""

    def __init__(self, client: int) -> None:
        self.client = client

    def ask(self, ask: Ask, where: Any) -> Ask:
        return ask.only(ask.clients != self.client)


@pytest.fixture(scope="session")
def world() -> SimpleNamespace:
    return SimpleNamespace(
        quadratics=quadratics,
        linear=linear,
        planted=planted,
        personal=personal,
        These=These,
        InTurns=InTurns,
        Count=Count,
        Silent=Silent,
    )
