"""Mini-batches for loops of one's own: LocalSGD's, fresh at every call, and equal on both engines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import coterie as ct
from coterie.base import randomness
from coterie.base.tree import Params, Tree
from coterie.engines.base import ClientStates, Env
from coterie.exchange.messages import Context
from coterie.learning.batches import Walk

WALKS: list[dict[str, Any]] = [
    {"steps": 7, "batch_size": 5},
    {"epochs": 2, "batch_size": 5},
    {"steps": 3, "batch_size": None},
    {"epochs": 1, "batch_size": 100},
]


@pytest.fixture(params=["Linear layers", "own module"])
def task(request: pytest.FixtureRequest) -> ct.Task:
    middle = nn.Tanh if request.param == "Linear layers" else lambda: nn.LayerNorm(6)
    return ct.Task(lambda: nn.Sequential(nn.Linear(4, 6), middle(), nn.Linear(6, 3)))


def everywhere(phase: Callable[[Context], Tree], task: ct.Task, fed: ct.Federation, tolerance: float = 1e-12) -> Tree:
    env = Env(task, fed, task.init(0, torch.float64), 0, states=ClientStates(len(fed), nothing=True))
    engines = (ct.engines.LocalEngine(workers=1, chunk=5), ct.engines.LoopEngine())
    fast, plain = (engine.map(phase, np.arange(len(fed)), env, test=False) for engine in engines)
    torch.testing.assert_close(fast, plain, rtol=tolerance, atol=tolerance)
    return fast


@pytest.mark.parametrize("walk", WALKS)
def test_a_loop_by_hand_takes_the_steps_of_local_sgd(walk: dict[str, Any], task: ct.Task, fed64: ct.Federation) -> None:
    local = ct.LocalSGD(lr=0.2, **walk)

    def by_hand(ctx: Context) -> Params:
        model = ctx.initial
        for batch in ctx.batches(**walk):
            g = batch.grad(model)
            model = {name: p - 0.2 * g[name] for name, p in model.items()}
        return model

    def stepped(ctx: Context) -> Params:
        model = ctx.initial
        for batch in ctx.batches(**walk):
            model = batch.descend(model, 0.2)
        return model

    fitted = everywhere(lambda ctx: local.fit(ctx, ctx.initial)[0], task, fed64)
    for loop in (by_hand, stepped):
        torch.testing.assert_close(everywhere(loop, task, fed64), fitted, rtol=1e-12, atol=1e-12)


def test_a_step_may_have_a_rate_of_each_clients_own(task: ct.Task, fed64: ct.Federation) -> None:
    def phase(ctx: Context) -> Tree:
        (batch,) = ctx.batches(steps=1, batch_size=5)
        g, rate = batch.grad(ctx.initial), 1 / ctx.n
        expected = {name: p - rate * g[name] for name, p in ctx.initial.items()}
        return {"moved": batch.descend(ctx.initial, rate), "expected": expected}

    got = everywhere(phase, task, fed64)
    torch.testing.assert_close(got["moved"], got["expected"], rtol=1e-12, atol=1e-12)


def test_an_epoch_meets_every_sample_once(task: ct.Task, fed64: ct.Federation) -> None:
    def phase(ctx: Context) -> Tree:
        parts = list(ctx.batches(epochs=1, batch_size=5))
        met = sum((b.x * b.mask.unsqueeze(-1)).sum(0) for b in parts)
        counted = sum(b.n for b in parts)
        return {"met": met - (ctx.x * ctx.mask.unsqueeze(-1)).sum(0), "n": counted - ctx.n}

    got = everywhere(phase, task, fed64)
    assert float(got["met"].abs().max()) < 1e-12
    assert not got["n"].any()


def test_later_draws_of_a_phase_are_others_and_reproducible(task: ct.Task, fed64: ct.Federation) -> None:
    local = ct.LocalSGD(steps=2, lr=0.2, batch_size=3)

    def phase(ctx: Context) -> Tree:
        one, two, other = ctx.minibatch(3), ctx.minibatch(3), ctx.minibatch(3, "other")
        fits = [local.fit(ctx, ctx.initial)[0]["0.weight"] for _ in range(2)]
        fits += [local.fit(ctx.rewound(), ctx.initial)[0]["0.weight"]]
        keys = [b.key for b in ctx.batches(steps=5, batch_size=3)]
        return {"x": torch.stack([one.x, two.x, other.x]), "fit": torch.stack(fits), "keys": torch.stack(keys)}

    got, again = (everywhere(phase, task, fed64) for _ in range(2))
    assert all(torch.equal(got[k], again[k]) for k in got)
    for a, b in ((0, 1), (0, 2), (1, 2)):
        differ = (got["x"][:, a] != got["x"][:, b]).flatten(1).any(1)
        assert differ.double().mean() > 0.8  # three of four samples may well be the same ones
    assert (got["fit"][:, 0] != got["fit"][:, 1]).flatten(1).any(1).all()
    assert torch.equal(got["fit"][:, 0], got["fit"][:, 2])
    assert got["keys"].unique().numel() == got["keys"].numel()


def test_a_replaced_key_counts_its_own_draws(task: ct.Task, fed64: ct.Federation) -> None:
    def phase(ctx: Context) -> Tree:
        first, other = ctx.fresh("x"), replace(ctx, key=ctx.key + 1).fresh("x")
        masked = replace(ctx, mask=ctx.mask * 0).fresh("x")
        return {"first": first - ctx.key, "other": other - ctx.key, "masked": (masked != ctx.key).long()}

    got = everywhere(phase, task, fed64)
    assert not got["first"].any()
    assert (got["other"] == 1).all()
    assert got["masked"].all()


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # PyTorch's own, when jvp is first used
def test_derivatives_go_through_a_gradient(task: ct.Task, fed64: ct.Federation) -> None:
    """Per-FedAvg's Hessian-vector product: d/dh ∇f(w + h·v) at 0, by reverse and forward mode and by differences."""

    def phase(ctx: Context) -> Tree:
        way = {name: torch.cos(p) for name, p in ctx.initial.items()}

        def slope(params: Params) -> torch.Tensor:
            g = ctx.grad(params)
            return torch.stack([(g[n] * way[n]).sum() for n in g]).sum()

        reverse = torch.func.grad(slope)(ctx.initial)
        _, forward = torch.func.jvp(ctx.grad, (ctx.initial,), (way,))
        h = 1e-5
        up, down = (ctx.grad({n: p + s * h * way[n] for n, p in ctx.initial.items()}) for s in (1, -1))
        return {"reverse": reverse, "forward": forward, "h": {n: (up[n] - down[n]) / (2 * h) for n in up}}

    got = everywhere(phase, task, fed64, 1e-8)
    torch.testing.assert_close(got["reverse"], got["forward"], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(got["reverse"], got["h"], rtol=1e-6, atol=1e-7)


def test_models_can_be_mapped_inside_a_client_function(task: ct.Task, fed64: ct.Federation) -> None:
    def phase(ctx: Context) -> Tree:
        models = {n: torch.stack([p, p + 1]) for n, p in ctx.initial.items()}
        both = torch.func.vmap(ctx.grad)(models)
        one = ctx.grad({n: p + 1 for n, p in ctx.initial.items()})
        return {n: both[n][1] - one[n] for n in one}

    assert all(float(t.abs().max()) < 1e-12 for t in everywhere(phase, task, fed64).values())


def test_convolutions(fed64: ct.Federation) -> None:
    def net() -> nn.Module:
        return nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(6, 3))

    task, local = ct.Task(net), ct.LocalSGD(steps=3, lr=0.2, batch_size=5)

    def phase(ctx: Context) -> Tree:
        model = ctx.initial
        for batch in ctx.batches(steps=3, batch_size=5):
            model = batch.descend(model, 0.2)
        fitted, _ = local.fit(ctx.rewound(), ctx.initial)
        return {n: model[n] - fitted[n] for n in model}

    assert all(float(t.abs().max()) < 1e-12 for t in everywhere(phase, task, fed64).values())


@pytest.mark.parametrize("wrong", [{}, {"steps": 1, "epochs": 1}, {"steps": 0}, {"steps": 1, "batch_size": 0}])
def test_bad_walks_are_refused(wrong: dict[str, Any], task: ct.Task, fed64: ct.Federation) -> None:
    with pytest.raises(ct.errors.ConfigError, match="Mini-batches"):
        everywhere(lambda ctx: next(b.loss(ctx.initial) for b in ctx.batches(**wrong)), task, fed64)


def test_every_epoch_has_a_permutation_of_its_own() -> None:
    mask = torch.ones(2, 12)
    rows, _ = Walk(epochs=3, batch_size=4).rows(mask, randomness.fold(torch.tensor([5, 6]), "test"))
    assert rows is not None
    epochs = rows.reshape(2, 3, 12)
    assert torch.equal(epochs.sort(-1).values, torch.arange(12).expand(2, 3, 12))
    for client in epochs:
        assert len({tuple(order.tolist()) for order in client}) == 3
