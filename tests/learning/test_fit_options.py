"""Every option of `fit` against a plain PyTorch loop, on both engines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import coterie as ct
from coterie.base.tree import Params, Tree
from coterie.engines.base import ClientStates, Env
from coterie.exchange.messages import Context

ENGINES = {"vectorised": ct.engines.LocalEngine(workers=1), "loop": ct.engines.LoopEngine()}
STEPS = 4
WHOLE: dict[str, Any] = {"steps": STEPS, "batch_size": None}


@pytest.fixture(params=["Linear layers", "own module"])
def task(request: pytest.FixtureRequest) -> ct.Task:
    """Hand-written gradients, and autograd under vmap."""
    if request.param == "Linear layers":
        return ct.Task(lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)))
    return ct.Task(lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 3)))


def everywhere(phase: Callable[[Context], Tree], task: ct.Task, fed: ct.Federation, tolerance: float = 1e-12) -> Tree:
    """What all clients answer, which must be the same on both engines."""
    env = Env(task, fed, task.init(0, torch.float64), 0, round=2, states=ClientStates(len(fed), nothing=True))
    fast, plain = (engine.map(phase, np.arange(len(fed)), env, test=False) for engine in ENGINES.values())
    torch.testing.assert_close(fast, plain, rtol=tolerance, atol=tolerance)
    return fast


def torch_loop(
    task: ct.Task,
    fed: ct.Federation,
    make: Callable[[list[Tensor]], torch.optim.Optimizer],
    change: Callable[[nn.Module, Tensor], Tensor] = lambda module, loss: loss,
    after: Callable[[nn.Module], None] = lambda module: None,
    lr_at: Callable[[int], float] | None = None,
) -> list[Params]:
    """Full-batch steps of every client with a torch optimiser."""
    models = []
    for client in fed.clients:
        x, y = fed.train(client)
        module = task.module(params=task.init(0, torch.float64))
        optimiser = make([p for p in module.parameters() if p.requires_grad])
        for step in range(STEPS):
            if lr_at is not None:
                optimiser.param_groups[0]["lr"] = lr_at(step)
            optimiser.zero_grad()
            change(module, nn.functional.cross_entropy(module(x), y)).backward()
            after(module)
            optimiser.step()
        models.append({name: p.detach() for name, p in module.named_parameters()})
    return models


def same(got: Params, expected: list[Params], tolerance: float = 1e-12) -> None:
    for name in got:
        torch.testing.assert_close(
            got[name], torch.stack([m[name] for m in expected]), rtol=tolerance, atol=tolerance, msg=lambda m, n=name: n + m
        )  # fmt: skip


def shifted(task: ct.Task, by: float) -> Params:
    return {name: t + by for name, t in task.init(0, torch.float64).items()}


def correction(task: ct.Task, by: float) -> Params:
    return {name: by * torch.cos(torch.arange(t.numel()).reshape(t.shape).double()) for name, t in task.init(0).items()}


def distance(module: nn.Module, anchor: Params) -> Tensor:
    return torch.stack([((p - anchor[n]) ** 2).sum() for n, p in module.named_parameters()]).sum()


OPTIMISERS: dict[str, tuple[Any, Callable[[list[Tensor]], torch.optim.Optimizer]]] = {
    "nesterov": (
        ct.LocalSGD(lr=0.2, momentum=0.9, nesterov=True, weight_decay=0.01, **WHOLE),
        lambda p: torch.optim.SGD(p, 0.2, momentum=0.9, nesterov=True, weight_decay=0.01),
    ),
    "adam": (ct.LocalAdam(lr=0.05, **WHOLE), lambda p: torch.optim.Adam(p, 0.05)),
    "adam with decay": (
        ct.LocalAdam(lr=0.05, weight_decay=0.1, decoupled=False, **WHOLE),
        lambda p: torch.optim.Adam(p, 0.05, weight_decay=0.1),
    ),
    "adamw": (
        ct.LocalAdam(lr=0.05, beta1=0.8, beta2=0.9, eps=1e-4, weight_decay=0.1, **WHOLE),
        lambda p: torch.optim.AdamW(p, 0.05, betas=(0.8, 0.9), eps=1e-4, weight_decay=0.1),
    ),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_optimisers(name: str, task: ct.Task, fed64: ct.Federation) -> None:
    local, make = OPTIMISERS[name]
    got = everywhere(lambda ctx: local.fit(ctx, ctx.initial)[0], task, fed64)
    same(got, torch_loop(task, fed64, make))


def test_adam_is_as_exact_in_single_precision(fed: ct.Federation) -> None:
    """A first step of Adam is lr·sign(gradient): what is lost in 1 − βᵗ shows at once."""
    start = {"weight": torch.zeros(3, 4), "bias": torch.zeros(3)}
    local = ct.LocalAdam(steps=1, lr=1.0, batch_size=None)
    result = ct.fit(
        ct.FedAvg(local), fed, ct.Task(lambda: nn.Linear(4, 3)), rounds=1, cohort=1, start=start, alone=False
    )
    for name, after in result.evaluation.state.model.items():
        torch.testing.assert_close(after.abs(), torch.ones_like(start[name]), rtol=0, atol=2e-6)


def sgd(params: list[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, 0.2)


def test_clipping_bounds_each_clients_own_norm(task: ct.Task, fed64: ct.Federation) -> None:
    got = everywhere(lambda ctx: ct.LocalSGD(lr=0.2, clip=0.3, **WHOLE).fit(ctx, ctx.initial)[0], task, fed64)

    def clip(module: nn.Module) -> None:
        nn.utils.clip_grad_norm_(module.parameters(), 0.3)

    same(got, torch_loop(task, fed64, sgd, after=clip))
    free = everywhere(lambda ctx: ct.LocalSGD(lr=0.2, **WHOLE).fit(ctx, ctx.initial)[0], task, fed64)
    assert not torch.equal(got["0.weight"], free["0.weight"])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_pull_correct_and_extra_are_terms_of_the_objective(
    momentum: float, task: ct.Task, fed64: ct.Federation
) -> None:
    """The pull is λ‖v − anchor‖²/2, the correction ⟨c, v⟩, and the extra term whatever it says."""
    local = ct.LocalSGD(lr=0.2, momentum=momentum, **WHOLE)
    anchor, fix, teacher = shifted(task, 0.5), correction(task, 0.1), shifted(task, -0.3)

    def extra(params: Params, batch: Context) -> Tensor:
        gap = (batch.outputs(params) - batch.outputs(teacher)) ** 2
        return (gap.mean(-1) * batch.mask).sum() / batch.mask.sum()

    def objective(module: nn.Module, loss: Tensor, distil: bool) -> Tensor:
        loss = loss + 0.7 / 2 * distance(module, anchor)
        loss = loss + torch.stack([(p * fix[n]).sum() for n, p in module.named_parameters()]).sum()
        return loss + ((module(inputs.x) - task.outputs(teacher, inputs.x)) ** 2).mean() if distil else loss

    class Inputs:
        x: Tensor

    inputs = Inputs()
    for distil in (False, True):
        got = everywhere(
            lambda ctx, d=distil: local.fit(
                ctx, ctx.initial, anchor=anchor, pull=0.7, correct=fix, extra=extra if d else None
            )[0],
            task,
            fed64,
        )
        expected = []
        for client in fed64.clients:
            inputs.x = fed64.train(client)[0]
            part = fed64.subset([client])
            make = lambda p: torch.optim.SGD(p, 0.2, momentum=momentum)  # noqa: E731
            expected += torch_loop(task, part, make, lambda m, loss, d=distil: objective(m, loss, d))
        same(got, expected)


def test_the_gradient_of_a_step_is_the_finite_difference_of_the_objective(task: ct.Task, fed64: ct.Federation) -> None:
    """One step of lr 1 moves by −∇(loss + extra + pull/2·‖v − anchor‖² + ⟨c, v⟩); pull and lr differ between clients."""
    anchor, fix, way = shifted(task, 0.5), correction(task, 0.1), correction(task, 1.0)
    one = ct.LocalSGD(steps=1, lr=1.0, batch_size=None)

    def extra(params: Params, batch: Context) -> Tensor:
        return (batch.outputs(params) ** 2).mean(-1).mul(batch.mask).sum() / batch.mask.sum()

    def phase(ctx: Context) -> Tree:
        pull = 0.1 + 0.01 * ctx.index.double()

        def objective(params: Params) -> Tensor:
            far = sum(((params[n] - anchor[n]) ** 2).sum() for n in params)
            return ctx.loss(params) + extra(params, ctx) + pull / 2 * far + sum((params[n] * fix[n]).sum() for n in fix)

        moved, _ = one.fit(ctx, ctx.initial, anchor=anchor, pull=pull, correct=fix, extra=extra)
        h = 1e-5
        up, down = ({n: t + s * h * way[n] for n, t in ctx.initial.items()} for s in (1, -1))
        slope = sum(((ctx.initial[n] - moved[n]) * way[n]).sum() for n in way)
        return {"slope": torch.as_tensor(slope), "difference": (objective(up) - objective(down)) / (2 * h)}

    got = everywhere(phase, task, fed64, 1e-6)
    torch.testing.assert_close(got["slope"], got["difference"], rtol=1e-6, atol=1e-8)


def test_numbers_of_each_client(task: ct.Task, fed64: ct.Federation) -> None:
    """`lr` and `pull` as one number per client, and a pull of each parameter's own."""
    anchor = shifted(task, 0.5)
    local = ct.LocalSGD(**WHOLE)

    def own(ctx: Context) -> Params:
        weight = 0.1 * (1 + ctx.index.double())
        return local.fit(ctx, ctx.initial, anchor=anchor, pull=weight, lr=weight / 2)[0]

    def each(ctx: Context) -> Params:
        weight = 0.1 * (1 + ctx.index.double())
        pulls = {name: weight.expand(t.shape) for name, t in ctx.initial.items()}
        return local.fit(ctx, ctx.initial, anchor=anchor, pull=pulls, lr=weight / 2)[0]

    expected = []
    for i, client in enumerate(fed64.clients):
        weight = 0.1 * (1 + i)
        make = lambda p, w=weight: torch.optim.SGD(p, w / 2)  # noqa: E731
        pull = lambda m, loss, w=weight: loss + w / 2 * distance(m, anchor)  # noqa: E731
        expected += torch_loop(task, fed64.subset([client]), make, pull)
    same(everywhere(own, task, fed64), expected)
    same(everywhere(each, task, fed64), expected)


@pytest.mark.parametrize("local", [ct.LocalSGD(lr=0.2, **WHOLE), ct.LocalAdam(lr=0.05, clip=0.2, **WHOLE)])
@pytest.mark.parametrize("part", ["2", "0.weight"])
def test_a_part_is_trained_and_the_rest_stays(part: str, local: Any, task: ct.Task, fed64: ct.Federation) -> None:
    got = everywhere(lambda ctx: local.fit(ctx, ctx.initial, train=part)[0], task, fed64)
    frozen = ct.Task(task.model, task.loss)

    def make(params: list[Tensor]) -> torch.optim.Optimizer:
        names = [n for n, _ in frozen.module().named_parameters()]
        kept = [p for n, p in zip(names, params, strict=True) if n == part or n.startswith(f"{part}.")]
        return torch.optim.SGD(kept, 0.2) if isinstance(local, ct.LocalSGD) else torch.optim.Adam(kept, 0.05)

    def clip(module: nn.Module) -> None:
        named = module.named_parameters()
        kept = [p for n, p in named if n == part or n.startswith(f"{part}.")]
        if local.clip is not None:
            nn.utils.clip_grad_norm_(kept, local.clip)

    same(got, torch_loop(frozen, fed64, make, after=clip))
    with pytest.raises(ct.errors.ConfigError, match="train names parts"):
        everywhere(lambda ctx: local.fit(ctx, ctx.initial, train=["nothing"])[0], task, fed64)


def test_the_schedule_sets_every_steps_rate(task: ct.Task, fed64: ct.Federation) -> None:
    """The run is in round 2: 0.5² of the decay and the schedule's factor there."""
    schedule = ct.schedules.Warmup(3, over="steps", then=ct.schedules.Cosine(10))
    local = ct.LocalSGD(lr=0.4, decay=0.5, schedule=schedule, **WHOLE)
    got = everywhere(lambda ctx: local.fit(ctx, ctx.initial)[0], task, fed64)
    cosine = (1 + np.cos(np.pi * 0.2)) / 2
    rates = [0.1 * cosine * f for f in (1 / 3, 2 / 3, 1.0, 1.0)]
    same(got, torch_loop(task, fed64, sgd, lr_at=lambda step: rates[step]))


@pytest.mark.parametrize("local", [OPTIMISERS["nesterov"][0], OPTIMISERS["adamw"][0]], ids=["sgd", "adam"])
def test_a_kept_memory_makes_two_calls_one(local: Any, task: ct.Task, fed64: ct.Federation) -> None:
    half = replace(local, steps=STEPS // 2)

    def twice(ctx: Context) -> Tree:
        model, _, memory = half.fit(ctx, ctx.initial, memory=half.start_memory(ctx.initial))
        model, _, memory = half.fit(ctx, model, memory=memory)
        return {"model": model, "memory": memory}

    def forgetful(ctx: Context) -> Params:
        return half.fit(ctx, half.fit(ctx, ctx.initial)[0])[0]

    whole = everywhere(lambda ctx: local.fit(ctx, ctx.initial)[0], task, fed64)
    kept = everywhere(twice, task, fed64)
    torch.testing.assert_close(kept["model"], whole, rtol=1e-12, atol=1e-12)
    assert (everywhere(forgetful, task, fed64)["0.weight"] - whole["0.weight"]).abs().max() > 1e-3
    with pytest.raises(ct.errors.ConfigError, match="memory does not fit"):
        everywhere(lambda ctx: half.fit(ctx, ctx.initial, memory={"x": ctx.n})[0], task, fed64)


@pytest.mark.parametrize(
    "local",
    [
        ct.LocalSGD(epochs=2, lr=0.2, batch_size=7, momentum=0.5, weight_decay=0.1, clip=0.5),
        ct.LocalAdam(epochs=2, lr=0.05, batch_size=7, weight_decay=0.1),
        ct.LocalSGD(steps=9, lr=0.2, batch_size=7),
    ],
)
def test_an_extra_term_of_zero_changes_nothing_on_ragged_clients(
    local: Any, task: ct.Task, fed64: ct.Federation
) -> None:
    """The loop with `extra` takes the batches and steps of the primitive, also where a client sits steps out."""

    anchor = shifted(task, 0.2)

    def phase(ctx: Context, **more: Any) -> Tree:
        model, loss = local.fit(ctx, ctx.initial, anchor=anchor, pull=0.3, **more)
        return {"model": model, "loss": loss}

    plain = everywhere(phase, task, fed64)
    zero = everywhere(lambda ctx: phase(ctx, extra=lambda params, batch: 0 * batch.n), task, fed64)
    torch.testing.assert_close(zero, plain, rtol=1e-12, atol=1e-12)


def test_wrong_names_are_refused_everywhere(fed64: ct.Federation) -> None:
    task = ct.Task(lambda: nn.Linear(4, 3))
    calls: list[Callable[[Context, Params], Any]] = [
        lambda ctx, p: ct.LocalSGD().fit(ctx, p)[0],
        lambda ctx, p: ctx.grad(p),
        lambda ctx, p: {"x": ctx.loss(p)},
        lambda ctx, p: {"x": ctx.outputs(p)},
        lambda ctx, p: ctx.descend(p, 0.1),
    ]
    for call in calls:
        with pytest.raises(ct.errors.TaskError, match="missing: bias; unknown: Bias"):
            everywhere(
                lambda ctx, c=call: c(ctx, {"weight": ctx.initial["weight"], "Bias": ctx.initial["bias"]}), task, fed64
            )
    for option in ({"anchor": {}, "pull": 1.0}, {"correct": {"weight": torch.zeros(3, 4)}}):
        with pytest.raises(ct.errors.ConfigError, match="every trained parameter; missing"):
            everywhere(lambda ctx, o=option: ct.LocalSGD().fit(ctx, ctx.initial, **o)[0], task, fed64)
    with pytest.raises(ct.errors.ConfigError, match="pull without anchor"):
        everywhere(lambda ctx: ct.LocalSGD().fit(ctx, ctx.initial, pull=1.0)[0], task, fed64)


def test_a_personal_model_with_wrong_names_is_refused(fed: ct.Federation) -> None:
    class Headless(ct.FedAvg):
        def personal(self, ctx: Context, state: Any) -> Params:
            return {"weight": super().personal(ctx, state)["weight"]}

    result = ct.fit(Headless(ct.LocalSGD(steps=1)), fed, ct.Task(lambda: nn.Linear(4, 3)), rounds=1, alone=False)
    with pytest.raises(ct.errors.TaskError, match="missing: bias; unknown: none"):
        result.evaluate()
    with pytest.raises(ct.errors.TaskError, match="missing: bias"):
        result.model(fed.clients[0])
