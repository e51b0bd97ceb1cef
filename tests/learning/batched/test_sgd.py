"""Many clients at once give what one client at a time gives: every path against the plain `train_one`."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import coterie as ct
from coterie.base import randomness
from coterie.learning import models
from coterie.learning.batched import sgd as stacked
from coterie.learning.batched.gradients import Model
from coterie.learning.batched.sgd import Given, Plan, kept_names
from coterie.learning.batches import Walk
from coterie.learning.update_rules import Adam, Momentum

WALK, RULE = {"steps", "epochs", "batch_size"}, {"momentum", "nesterov", "weight_decay", "decoupled"}
SIZES = (9, 4, 1, 12, 7)


def plan(task: ct.Task, train: tuple[str, ...] | None = None, **changes: Any) -> Plan:
    names = tuple(task.init(0))
    trained = tuple(i for i, name in enumerate(names) if train is None or name in train)
    walk = {"steps": 5, "epochs": None, "batch_size": 4} | {k: changes.pop(k) for k in WALK & changes.keys()}
    rule = Adam() if changes.pop("adam", False) else Momentum()
    rule = dataclasses.replace(rule, **{k: changes.pop(k) for k in RULE & changes.keys()})
    return Plan(Model(task, names, trained), Walk(**walk), rule, **({"lr": 0.1} | changes))


def clients(shape: tuple[int, ...], classes: int | None, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    """Ragged clients, padded with wild values that must not matter."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(len(SIZES), max(SIZES), *shape, generator=g, dtype=dtype)
    mask = (torch.arange(max(SIZES)) < torch.tensor(SIZES).unsqueeze(-1)).to(dtype)
    x[mask == 0] = 1e3
    y = (
        torch.randn(mask.shape, generator=g, dtype=dtype)
        if classes is None
        else torch.randint(classes, mask.shape, generator=g)
    )
    return x, y, mask, randomness.fold(torch.arange(len(SIZES)), "test")


def tensors(p: Plan, x: Tensor) -> Given:
    """Models, and whatever else the plan needs, other for every client."""
    g = torch.Generator().manual_seed(1)
    start = p.model.task.init(0, x.dtype)

    def some(kind: str, names: tuple[str, ...], scale: float) -> Given:
        return {
            f"{kind}/{n}": start[n] + scale * torch.randn(len(x), *start[n].shape, generator=g, dtype=x.dtype)
            for n in names
        }

    given = some("weight", p.model.names, 0.1)
    given |= some("anchor", p.trained, 0.5) if p.pull else {}
    for slot in p.rule.slots:
        given |= {k: 0.1 * t**2 for k, t in some(slot, p.trained, 0.1).items()}
    return given | ({"count": torch.arange(len(x)).to(x.dtype)} if p.rule.counts else {})


def compare(p: Plan, data: tuple[Tensor, ...], tolerance: float = 1e-10, also: Given | None = None) -> None:
    """`train` on the padded chunk against `train_one` on each client without its padding."""
    x, y, mask, key = data
    given = tensors(p, x) | (also or {})
    before = {name: t.clone() for name, t in given.items()}
    together = stacked.train(p, x, y, mask, key, given)
    labels = [f"weight/{n}" for n in p.trained] + kept_names(p.rule, p.trained) + ["loss"]
    for c, n in enumerate(SIZES):
        alone = stacked.train_one(p, x[c, :n], y[c, :n], mask[c, :n], key[c], {k: t[c] for k, t in given.items()})
        for name, a, b in zip(labels, together, alone, strict=True):
            torch.testing.assert_close(
                a[c], b, rtol=tolerance, atol=tolerance, msg=lambda m, n=name, c=c: f"{n} of {c}: {m}"
            )
            if c == 0 and name != "loss" and "unused" not in name:
                assert not torch.equal(a[c], before[name][c]), f"{name} did not move"
    assert all(torch.equal(t, before[name]) for name, t in given.items())  # inputs are not touched


OPTIONS = {
    "plain": {},
    "full batch": {"batch_size": None},
    "many steps": {"steps": 11},
    "momentum": {"momentum": 0.9},
    "weight decay": {"weight_decay": 0.1},
    "pull": {"pull": 0.5},
    "all": {"momentum": 0.5, "weight_decay": 0.1, "pull": 0.3},
    "epochs": {"steps": None, "epochs": 2},
    "epochs, all": {"steps": None, "epochs": 2, "momentum": 0.5, "weight_decay": 0.1, "pull": 0.3},
    "epochs, full batch": {"steps": None, "epochs": 3, "batch_size": None, "momentum": 0.5},
    "large batch": {"batch_size": 50},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "clip": {"clip": 0.1},
    "schedule": {"factor": lambda step: 1 / (step + 1)},
    "adam": {"adam": True},
    "adamw, epochs": {"adam": True, "weight_decay": 0.1, "steps": None, "epochs": 2},
    "adam, all": {"adam": True, "weight_decay": 0.1, "decoupled": False, "pull": 0.3, "clip": 0.5},
}


class Gated(nn.Module):
    """Not a Sequential: runs under vmap."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.unused = nn.Linear(3, 4), nn.Linear(3, 4), nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) * torch.sigmoid(self.b(x))


def shared_relu() -> nn.Module:
    relu = nn.ReLU()
    return nn.Sequential(nn.Linear(3, 5), relu, nn.Linear(5, 5), relu, nn.Linear(5, 4))


def shared_linear() -> nn.Module:
    layer = nn.Linear(3, 3)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(3, 4))


PATHS: dict[str, tuple[Any, bool]] = {  # model, hand-written gradients
    "logistic": (lambda: nn.Linear(3, 4), True),
    "network": (models.mlp(3, (6, 5), 4), True),
    "nested": (lambda: nn.Sequential(nn.Sequential(nn.Linear(3, 5, bias=False), nn.Tanh()), nn.Linear(5, 4)), True),
    "sigmoid": (lambda: nn.Sequential(nn.Linear(3, 5), nn.Identity(), nn.Sigmoid(), nn.Linear(5, 4)), True),
    "last activation": (lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh()), True),
    "shared ReLU": (shared_relu, True),
    "shared Linear": (shared_linear, False),
    "norm": (lambda: nn.Sequential(nn.Linear(3, 5), nn.LayerNorm(5), nn.Linear(5, 4)), False),
    "own module": (Gated, False),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("option", OPTIONS)
def test_stacked_equals_one_at_a_time(path: str, option: str) -> None:
    model, fast = PATHS[path]
    p = plan(ct.Task(model), **OPTIONS[option])
    assert (p.model.network(torch.zeros(1, 1, 3)) is not None) == fast
    compare(p, clients((3,), 4))


@pytest.mark.parametrize("option", ["plain", "all", "epochs, all"])
@pytest.mark.parametrize("loss", ["mse", "bce"])
def test_other_losses(loss: str, option: str) -> None:
    task = ct.Task(models.mlp(3, 5, 1), loss=loss)
    compare(plan(task, **OPTIONS[option]), clients((3,), None if loss == "mse" else 2))


def huber(outputs: Tensor, y: Tensor) -> Tensor:
    return nn.functional.huber_loss(outputs.squeeze(-1), y, reduction="none")


def test_a_loss_of_your_own() -> None:
    p = plan(ct.Task(models.mlp(3, 5, 1), loss=huber, metric="mse"))
    assert p.model.network(torch.zeros(1, 1, 3)) is None
    compare(p, clients((3,), None))


@pytest.mark.parametrize("option", ["plain", "all", "epochs, all"])
def test_convolutions(option: str) -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 4))

    compare(plan(ct.Task(make), **OPTIONS[option]), clients((1, 6, 6), 4))


def test_images_into_a_fully_connected_network() -> None:
    compare(plan(ct.Task(models.mlp(36, 5, 4))), clients((1, 6, 6), 4))


def test_float32_within_its_rounding() -> None:
    compare(plan(ct.Task(models.mlp(3, (6, 5), 4)), steps=20), clients((3,), 4, torch.float32), 2e-5)


@settings(max_examples=25, deadline=None)
@given(
    widths=st.lists(st.integers(1, 7), min_size=0, max_size=3),
    activations=st.lists(st.sampled_from([nn.ReLU, nn.Tanh, nn.Sigmoid, nn.Identity]), min_size=3, max_size=3),
    bias=st.lists(st.booleans(), min_size=4, max_size=4),
    batch=st.one_of(st.none(), st.integers(1, 13)),
    momentum=st.sampled_from([0.0, 0.7]),
    count=st.tuples(st.sampled_from(["steps", "epochs"]), st.integers(1, 3)),
)
def test_any_fully_connected_network(
    widths: list[int],
    activations: list[Any],
    bias: list[bool],
    batch: int | None,
    momentum: float,
    count: tuple[str, int],
) -> None:
    def make() -> nn.Module:
        layers: list[nn.Module] = []
        sizes = [3, *widths, 4]
        for i in range(len(sizes) - 1):
            layers += [nn.Linear(sizes[i], sizes[i + 1], bias=bias[i])]
            if i < len(sizes) - 2:
                layers += [activations[i]()]
        return nn.Sequential(*layers)

    changes = {"steps": None, "epochs": None, count[0]: count[1], "batch_size": batch, "momentum": momentum}
    p = plan(ct.Task(make), **changes)
    x, y, mask, key = clients((3,), 4)
    compare(p, (x, y, mask, key))


def test_batches_walk_through_every_sample_once_an_epoch() -> None:
    p = plan(ct.Task(lambda: nn.Linear(3, 4)), steps=None, epochs=2)
    mask = clients((3,), 4)[2]
    chosen, weight = p.walk.rows(mask, randomness.fold(torch.arange(len(SIZES)), "x"))
    assert chosen is not None
    for c, n in enumerate(SIZES):
        used = chosen[c][weight[c] > 0].reshape(2, n)
        assert used[0].sort().values.tolist() == used[1].sort().values.tolist() == list(range(n))
        sums = weight[c].sum(-1)
        taken = 2 * -(-n // 4)
        torch.testing.assert_close(sums[sums > 0], torch.ones(taken, dtype=torch.float64))
