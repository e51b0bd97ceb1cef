"""A client's message is a function of that client's data and public values alone, to the last bit.

One client is changed, grown, shrunk or removed, and the messages of all others must stay bit-equal: for every algorithm that
can be private, on every engine, in both precisions, with training so unstable that one differing bit becomes a large
difference. Privacy rests on it: whatever a client does to the messages of others is not covered by the sensitivity.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from conformance_settings import EXCHANGE_AS, INDIVIDUAL, NAMES, configured
from neighbour_settings import CHANGES, SIZES, clients, unstable, unstable_task
from torch import nn

import coterie as ct
from coterie.base.tree import flatten
from coterie.exchange.channels.base import Channel, Where
from coterie.exchange.messages import Ints

ENGINES = {
    "vectorised": lambda: ct.engines.LocalEngine(workers=1),
    "two workers": lambda: ct.engines.LocalEngine(workers=2),
    "chunks of one": lambda: ct.engines.LocalEngine(chunk=1, workers=1),
    "loop": ct.engines.LoopEngine,
}
PRIVATE = tuple(name for name in NAMES if name not in INDIVIDUAL and name != "local")


class Noted(Channel):
    """Every client's messages in the order of its asks."""

    def __init__(self) -> None:
        self.sent: dict[Any, list[tuple[str, torch.Tensor]]] = {}

    def up(self, send: Any, clients: Ints, ask: ct.exchange.Ask, where: Where) -> Any:
        for path, t in flatten(send).items():
            for client, row in zip(clients, t, strict=True):
                self.sent.setdefault(where.federation.clients[client], []).append((f"{ask.name} {path}", row.clone()))
        return send


def messages(name: str, change: str | None, engine: Any, dtype: str, **options: Any) -> dict[Any, Any]:
    """Everything that every client sends in two rounds of a private run."""
    noted = Noted()
    fed = clients(change, dtype, options.pop("weighted", False))
    privacy = ct.Privacy(3.0, 1e-5, clip=1.0)
    how = {"rounds": 2, "engine": engine, "channels": [noted], "alone": False, "progress": False, "privacy": privacy}
    ct.fit(unstable(name), fed, options.pop("task", unstable_task()), **how | options)
    return noted.sent


@pytest.fixture
def nothing_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server learns zeros, so that later rounds ask the same question whatever the first client sent."""
    monkeypatch.setattr(ct.privacy.ExactNoise, "gaussian", lambda self, total, sigma: np.zeros_like(total))


def require_equal(one: dict[Any, Any], two: dict[Any, Any]) -> None:
    others = [f"client {i}" for i in range(1, len(SIZES))]
    for client in others:
        assert [n for n, _ in one[client]] == [n for n, _ in two[client]]
        for (path, a), (_, b) in zip(one[client], two[client], strict=True):
            assert torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)), (client, path, float((a - b).abs().max()))


@pytest.mark.usefixtures("nothing_released")
@pytest.mark.filterwarnings("ignore::coterie.errors.CoterieWarning")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in EXCHANGE_AS else name for name in PRIVATE]
)
def test_one_clients_data_leave_the_messages_of_all_others_as_they_are(name: str) -> None:
    before = messages(name, None, ct.engines.LocalEngine(workers=1), "float32", rounds=1)
    for change in ("grown", "removed"):
        require_equal(before, messages(name, change, ct.engines.LocalEngine(workers=1), "float32", rounds=1))


@pytest.mark.filterwarnings("ignore::coterie.errors.CoterieWarning")
@pytest.mark.parametrize(
    "name", [name if name in ("ditto", "ifca") else pytest.param(name, marks=pytest.mark.slow) for name in PRIVATE]
)
def test_only_sums_tell_neighbours_apart(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where noise hides the sums, the server's state and the receipt are equal, whatever one client has."""
    monkeypatch.setattr(ct.privacy.ExactNoise, "gaussian", lambda self, total, sigma: np.full_like(total, 1 << 20))
    given = []
    for change in (None, "grown", "shrunk"):
        fed = clients(change, "float32").declare_public("clusters", "classes", "kind")
        how: dict[str, Any] = {
            "rounds": 2,
            "alone": False,
            "progress": False,
            "privacy": ct.Privacy(3.0, 1e-5, clip=1.0),
        }
        made = ct.fit(configured(name), fed, unstable_task(), **how)
        told = {k: v for k, v in json.loads(made.receipt.to_json()).items() if k != "signature"}
        given.append((flatten(vars(made.state)), told))
        assert made.receipt.valid, made.receipt.reasons
    for state, receipt in given[1:]:
        assert receipt == given[0][1]
        for path, value in given[0][0].items():
            assert torch.equal(value, state[path]) if isinstance(value, torch.Tensor) else value == state[path], path


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_released")
@pytest.mark.filterwarnings("ignore::coterie.errors.CoterieWarning")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("engine", sorted(ENGINES))
@pytest.mark.parametrize("name", PRIVATE)
def test_every_change_on_every_engine_in_both_precisions(name: str, engine: str, dtype: str) -> None:
    before = messages(name, None, ENGINES[engine](), dtype)
    for change in CHANGES:
        require_equal(before, messages(name, change, ENGINES[engine](), dtype))


@pytest.mark.usefixtures("nothing_released")
@pytest.mark.filterwarnings("ignore::coterie.errors.CoterieWarning")
@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_fedavg_on_every_engine(engine: str) -> None:
    before = messages("fedavg", None, ENGINES[engine](), "float32", rounds=1)
    for change in CHANGES:
        require_equal(before, messages("fedavg", change, ENGINES[engine](), "float32", rounds=1))


@pytest.mark.usefixtures("nothing_released")
@pytest.mark.filterwarnings("ignore::coterie.errors.CoterieWarning")
@pytest.mark.parametrize("kind", ["class", "convolutions", "weights"])
def test_other_networks_and_weighted_samples(kind: str) -> None:
    """Networks that do not run on hand-written layers, and weights, of which the first client has the smallest."""
    options: dict[str, Any] = {"rounds": 1, "weighted": kind == "weights"}
    if kind == "class":
        options["task"] = ct.Task(Residual)
    elif kind == "convolutions":
        options["task"] = ct.Task(
            lambda: nn.Sequential(
                nn.Unflatten(1, (1, 7)), nn.Conv1d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(20, 3)
            )
        )
    before, after = (
        messages("fedavg", change, ct.engines.LocalEngine(workers=1), "float32", **options) for change in ("", "grown")
    )
    require_equal(before, after)


class Residual(nn.Module):
    """A network that only autograd knows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(7, 32), nn.Linear(32, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.sigmoid(self.first(x))
        return self.last(hidden + torch.nn.functional.silu(hidden))
