"""LocalSGD: settings are checked, a step is a step of SGD, and a client's batches are its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import coterie as ct
from coterie.base.randomness import base_key
from coterie.exchange.messages import Context


def context(task: ct.Task, round: int = 0, n: int = 10) -> Context:
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(n, 4, generator=g), torch.randint(3, (n,), generator=g)
    count = torch.tensor(float(n))
    return Context(task, x, y, torch.ones(n), count, base_key(round), torch.tensor(0), round, task.init(0))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"steps": 0}, "steps to be a whole number ≥ 1, or None; got 0"),
        ({"steps": 2.5}, "steps to be a whole number"),
        ({"epochs": -1}, "epochs"),
        ({"batch_size": 0}, "batch_size"),
        ({"steps": 1, "epochs": 1}, "steps or epochs, not both"),
        ({"lr": -0.1}, "lr to be a finite number of at least 0; got -0.1"),
        ({"lr": float("nan")}, "lr to be a finite number of at least 0; got nan"),
        ({"lr": "0.1"}, "lr to be a finite number"),
        ({"momentum": 1.0}, r"momentum to be a number of at least 0 and below 1"),
        ({"weight_decay": -1.0}, "weight_decay"),
        ({"decay": 0.0}, "decay to be a finite number above 0"),
    ],
)
def test_bad_settings_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ct.errors.ConfigError, match=message):
        ct.LocalSGD(**wrong)


def test_defaults() -> None:
    assert ct.LocalSGD().steps == 10
    assert ct.LocalSGD(epochs=2).steps is None
    assert ct.LocalSGD(steps=2.0) == ct.LocalSGD(steps=2)  # type: ignore[arg-type]
    assert isinstance(ct.LocalSGD(steps=2.0).steps, int)  # type: ignore[arg-type]


def test_full_batch_steps_are_torchs_sgd_with_momentum_and_weight_decay(task: ct.Task) -> None:
    ctx = context(task)
    module = task.module(params=ctx.initial)
    optimiser = torch.optim.SGD(module.parameters(), lr=0.2, momentum=0.9, weight_decay=0.01)
    losses = []
    for _ in range(4):
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(module(ctx.x), ctx.y)
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    sgd = ct.LocalSGD(steps=4, lr=0.2, batch_size=None, momentum=0.9, weight_decay=0.01)
    trained, loss = sgd.fit(ctx, ctx.initial)
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(trained[name], parameter.detach())
    assert float(loss) == pytest.approx(sum(losses) / 4, rel=1e-6)


def test_pull_adds_the_gradient_of_the_distance_to_the_anchor(task: ct.Task) -> None:
    ctx = context(task)
    anchor = {k: t + 1 for k, t in ctx.initial.items()}
    sgd = ct.LocalSGD(steps=1, lr=0.1, batch_size=None)
    free, pulled = sgd.fit(ctx, ctx.initial)[0], sgd.fit(ctx, ctx.initial, anchor=anchor, pull=2.0)[0]
    for name in free:  # −lr · pull · (v − anchor) = 0.1 · 2 · 1
        torch.testing.assert_close(pulled[name] - free[name], torch.full_like(free[name], 0.2))


def test_the_learning_rate_decays_with_the_rounds(task: ct.Task) -> None:
    sgd = ct.LocalSGD(steps=1, lr=0.1, batch_size=None, decay=0.5)
    start = context(task).initial
    moved = [sgd.fit(context(task, r), start)[0]["0.weight"] - start["0.weight"] for r in (0, 3)]
    torch.testing.assert_close(moved[1], moved[0] / 8, rtol=1e-4, atol=1e-7)


def test_batches_differ_between_rounds_and_repeat_with_the_key(task: ct.Task) -> None:
    sgd = ct.LocalSGD(steps=1, lr=0.1, batch_size=3)
    start = context(task).initial
    one, again, other = (sgd.fit(context(task, r), start)[0]["0.weight"] for r in (0, 0, 1))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_it_does_not_change_the_model_it_starts_from_and_cannot_be_differentiated(task: ct.Task) -> None:
    ctx = context(task)
    before = {k: t.clone() for k, t in ctx.initial.items()}
    ct.LocalSGD(steps=2).fit(ctx, ctx.initial)
    assert all(torch.equal(before[k], ctx.initial[k]) for k in before)


def test_a_minibatch_is_a_random_part_and_all_of_it_when_it_is_large(task: ct.Task) -> None:
    ctx = context(task)
    part = ctx.minibatch(4)
    assert part.x.shape == (4, 4)
    assert float(part.n) == 4
    rows = {tuple(r.tolist()) for r in ctx.x}
    assert len({tuple(r.tolist()) for r in part.x} & rows) == 4
    assert ctx.minibatch(None).x is ctx.x
    assert ctx.minibatch(10).x is ctx.x
    assert not torch.equal(part.x, ctx.minibatch(4, "other").x)
    assert torch.equal(
        ctx.losses({k: torch.stack([t, t + 1]) for k, t in ctx.initial.items()}, 2)[0], ctx.loss(ctx.initial)
    )
