"""Methods beside plain twins: loops over clients in ordinary PyTorch, written from the papers, on a tiny federation.

Clients take part in turns, one of them never, so that what a client keeps, what the server keeps and what a stranger gets are
all compared. A twin shares no code with the package except the network's first values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import coterie as ct

LR, STEPS = 0.3, 2
LOCAL = ct.LocalSGD(steps=STEPS, lr=LR, batch_size=None)
SIZES = (6, 9, 12, 7, 5)
TURNS = ((0, 1, 2), (1, 3), (0, 2, 3), (0, 1, 2, 3))  # client 4 never takes part
HEAD, BODY = ("2.weight", "2.bias"), ("0.weight", "0.bias")


class Turns:
    def sample(self, federation, seed, round):
        return np.array(TURNS[round])


@pytest.fixture(scope="module")
def fed():
    rng = np.random.default_rng(1)
    data = {}
    for i, n in enumerate(SIZES):
        x = rng.normal(size=(n, 4)) + 0.5 * i
        y = (x @ rng.normal(size=(4, 3))).argmax(1)
        y[:2] = (0, 1)  # not all clients have class 2
        data[i] = (x, y)
    return ct.Federation.from_arrays(data, dtype="float64", test_fraction=0.0, classes=[0, 1, 2])


@pytest.fixture(scope="module")
def task():
    return ct.Task(lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)))


@pytest.fixture
def twin(fed, task):
    return Twin(fed, task)


class Twin:
    """What all twins need: the clients' rows, the network, descent, means, and the comparison."""

    def __init__(self, fed, task):
        self.fed, self.task = fed, task
        self.start = task.init(0, torch.float64)
        self.rows = [fed.train(i) for i in fed.clients]
        self.n = [len(y) for _, y in self.rows]

    def fitted(self, algorithm, rounds=len(TURNS)):
        return ct.fit(algorithm, self.fed, self.task, rounds=rounds, cohort=Turns(), alone=False)

    def same(self, algorithm, expected, states: dict[str, Any] | None = None):
        """Every client's model, and fields of the server's state, within 1e-9 of the twin's."""
        result = self.fitted(algorithm)
        live = result.evaluation
        models = live.personal(live.everyone())
        for i, model in enumerate(expected):
            for name, t in model.items():
                torch.testing.assert_close(models[name][i], t.detach(), rtol=1e-9, atol=1e-9, msg=lambda m, n=name, i=i: f"client {i}, {n}: {m}")
        for name, t in (states or {}).items():
            torch.testing.assert_close(getattr(result.state, name), t, rtol=1e-9, atol=1e-9)
        return result

    def hidden(self, p, x):
        return torch.tanh(x @ p["0.weight"].T + p["0.bias"])

    def out(self, p, x):
        return self.hidden(p, x) @ p["2.weight"].T + p["2.bias"]

    def loss(self, p, i):
        x, y = self.rows[i]
        return F.cross_entropy(self.out(p, x), y)

    def descend(self, p, loss, names=(*BODY, *HEAD), steps=STEPS, lr=LR):
        for _ in range(steps):
            q = {k: t.detach().clone().requires_grad_(k in names) for k, t in p.items()}
            loss(q).backward()
            p = {k: (t - lr * t.grad if k in names else t).detach() for k, t in q.items()}
        return p

    def train(self, p, i, **how):
        return self.descend(p, lambda q: self.loss(q, i), **how)

    def mean(self, models, weights):
        total = sum(weights)
        return {k: sum(w * m[k] for w, m in zip(weights, models, strict=True)) / total for k in models[0]}


def part(model, names):
    return {k: model[k] for k in names}


@pytest.mark.parametrize(("method", "shared", "own"), [(ct.FedPer, BODY, HEAD), (ct.LGFedAvg, HEAD, BODY)])
def test_a_shared_part_and_an_own_part_trained_together(twin, method, shared, own):
    common, mine = part(twin.start, shared), {}
    for clients in TURNS:
        trained = {i: twin.train(common | mine.get(i, part(twin.start, own)), i) for i in clients}
        mine |= {i: part(m, own) for i, m in trained.items()}
        common = twin.mean([part(m, shared) for m in trained.values()], [twin.n[i] for i in clients])
    stranger = twin.train(common | part(twin.start, own), 4, names=own)
    twin.same(method(LOCAL), [*(common | mine[i] for i in range(4)), stranger], {"common": common})


@pytest.mark.parametrize(("tuned", "names"), [("all", (*BODY, *HEAD)), ("head", HEAD), ("body", BODY)])
def test_fedbabu_trains_bodies_under_the_first_head_and_tunes_at_the_end(twin, tuned, names):
    body = part(twin.start, BODY)
    for clients in TURNS:
        trained = [twin.train(twin.start | body, i, names=BODY) for i in clients]
        body = twin.mean([part(m, BODY) for m in trained], [twin.n[i] for i in clients])
    expected = [twin.train(twin.start | body, i, names=names, steps=3, lr=0.1) for i in range(5)]
    steps = ct.LocalSGD(steps=3, lr=0.1, batch_size=None)
    twin.same(ct.FedBABU(LOCAL, tune=steps, part=tuned), expected, {"common": body})
    with pytest.raises(ct.errors.ConfigError, match="two layers"):
        ct.fit(ct.FedBABU(LOCAL), twin.fed, ct.Task(lambda: nn.Linear(4, 3)), rounds=1)
