"""The steps a client takes on its own data: what `LocalSGD` and `LocalAdam` have in common.

Written for one client. `_Steps` is a primitive with a batching rule: when a client function runs under `torch.func.vmap`,
the rule receives the models and data of a whole chunk of clients and trains them together (`batched.sgd.train`), all
steps of the chunk before the next chunk, with gradients and updates fused where the network allows it.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Protocol, Self, overload

import torch
from torch import Tensor

from coterie.base.tree import Params, Tree, flatten, named_like, names, unflatten
from coterie.errors import ConfigError
from coterie.learning.batched import sgd
from coterie.learning.batched.chunks import apply, in_chunk
from coterie.learning.batched.gradients import Model
from coterie.learning.batched.protected import RowNoise
from coterie.learning.batched.sgd import Given, Plan
from coterie.learning.batches import Walk
from coterie.learning.schedules import Cosine, StepDecay, Warmup
from coterie.learning.task import Task
from coterie.learning.update_rules import Descent, Rate, Rule

Schedule = Cosine | StepDecay | Warmup | Callable[[int, int], float]


MEMORY = "optimiser"
"""The entry of a client's state that holds its optimiser's state between rounds."""


class Samples(Protocol):
    """What local steps need to know of a client; a `Context` has it."""

    @property
    def task(self) -> Task: ...
    @property
    def x(self) -> Tensor: ...
    @property
    def y(self) -> Tensor: ...
    @property
    def mask(self) -> Tensor: ...
    @property
    def n(self) -> Tensor: ...
    @property
    def round(self) -> int: ...

    def fresh(self, purpose: str) -> Tensor: ...

    def batches(
        self, *, steps: int | None = None, epochs: int | None = None, batch_size: int | None = None
    ) -> Iterator[Any]: ...


class LocalSteps(ABC):
    """`fit` for any settings that have these fields and name a `rule`."""

    steps: int | None
    lr: float
    batch_size: int | None
    epochs: int | None
    decay: float
    clip: float | None
    schedule: Schedule | None
    keep: bool

    @property
    @abstractmethod
    def rule(self) -> Rule:
        """How a gradient becomes a step."""

    @property
    def protected(self) -> RowNoise | None:
        """The noise that protects every row; None without such a budget."""
        return None

    @overload
    def fit(
        self,
        ctx: Samples,
        params: Params,
        *,
        train: str | Iterable[str] | None = None,
        anchor: Params | None = None,
        pull: Rate | Params = 0.0,
        correct: Params | None = None,
        extra: Callable[[Params, Any], Tensor] | None = None,
        lr: Rate | None = None,
        memory: None = None,
    ) -> tuple[Params, Tensor]: ...

    @overload
    def fit(
        self,
        ctx: Samples,
        params: Params,
        *,
        train: str | Iterable[str] | None = None,
        anchor: Params | None = None,
        pull: Rate | Params = 0.0,
        correct: Params | None = None,
        extra: Callable[[Params, Any], Tensor] | None = None,
        lr: Rate | None = None,
        memory: Tree,
    ) -> tuple[Params, Tensor, Tree]: ...

    def fit(
        self,
        ctx: Samples,
        params: Params,
        *,
        train: str | Iterable[str] | None = None,
        anchor: Params | None = None,
        pull: Rate | Params = 0.0,
        correct: Params | None = None,
        extra: Callable[[Params, Any], Tensor] | None = None,
        lr: Rate | None = None,
        memory: Tree | None = None,
    ) -> Any:
        """The trained model and the mean of the task's loss during the steps; with `memory` also the new memory.

        - `train`: names or dotted parts of the network that learn; the others stay as they are.
        - `pull`·‖v − anchor‖²/2 is added to the loss; a number, a tensor per client, or one per parameter name.
        - `correct` is added to every gradient (SCAFFOLD's c − c_i).
        - `extra(params, batch)` is a further term of the loss; `batch` is the step's `Context`.
        - `lr` replaces the setting's learning rate; it may be a tensor, one number per client.
        - `memory` is what the optimiser remembers (momentum, Adam's means): pass `start_memory(params)` at first and
          keep the returned memory in the client's state. Without it every call starts with a new optimiser.

        The first call in a phase walks through the batches of the client's own random key; each later call draws
        others. `clip` bounds the gradient with `extra` and `correct`; pull and weight decay come after.
        """
        ctx.task.require(params)
        moving = {name: t for name, t in params.items() if name not in ctx.task.statistics}
        trained = _trained(moving, train, ctx.task.statistics)
        plan = self._plan(ctx, params, trained, pull, lr)
        given = {f"weight/{name}": t for name, t in params.items()}
        given |= _pulls(anchor, pull, params, trained)
        given |= {} if correct is None else _part("correct", correct, params, trained)
        given |= {"lr": lr * self.decay**ctx.round} if isinstance(lr, Tensor) else {}
        given |= self._remembered(params, trained, memory)
        if extra is not None and plan.rows is not None:
            raise ConfigError("Steps that protect rows know the gradient of the task's loss only; leave extra out.")
        if extra is None:
            data = (ctx.x, ctx.y, ctx.mask, ctx.fresh("batches"))
            flat = apply(_Steps, plan, tuple(given), *data, *given.values())
        else:
            flat = _with_extra(plan, ctx, given, extra)
        moved = (*trained, *plan.statistics)
        weights, kept, loss = flat[: len(moved)], flat[len(moved) : -1], flat[-1]
        model = params | dict(zip(moved, weights, strict=True))
        if memory is None:
            return model, loss
        return model, loss, unflatten(dict(zip(sgd.kept_names(plan.rule, trained), kept, strict=True)))

    def each(self, ctx: Samples) -> Iterator[tuple[Any, Rate]]:
        """The mini-batches of these steps with the learning rate of each, for your own loops. The rate is 0 for the
        empty batches that a small client meets at the end of its epochs."""
        rate = self.lr * self.decay**ctx.round
        for s, batch in enumerate(ctx.batches(steps=self.steps, epochs=self.epochs, batch_size=self.batch_size)):
            lr = rate if self.schedule is None else rate * self.schedule(ctx.round, s)
            yield batch, lr if self.epochs is None else lr * (batch.n > 0).to(batch.n.dtype)

    def but(self, **changes: Any) -> Self:
        """The same settings with some changed."""
        changed: Self = dataclasses.replace(self, **changes)  # type: ignore[type-var]
        return changed

    def descent(self) -> Descent:
        """These settings' optimiser for your own loop, with a new state."""
        return Descent(self.rule, self.clip)

    def _plan(
        self, ctx: Samples, params: Params, trained: tuple[str, ...], pull: Rate | Params, lr: Rate | None
    ) -> Plan:
        rate = self.lr if lr is None or isinstance(lr, Tensor) else lr
        return Plan(
            model=Model(ctx.task, tuple(params), tuple(i for i, name in enumerate(params) if name in trained)),
            walk=Walk(self.steps, self.epochs, self.batch_size),
            rule=self.rule,
            lr=rate * self.decay**ctx.round,
            clip=self.clip,
            pull=float(pull) if isinstance(pull, float | int) else 0.0,
            factor=None if self.schedule is None else partial(self.schedule, ctx.round),
            rows=self.protected,
        )

    def first_memory(self, ctx: Samples, params: Params) -> Tree:
        """The optimiser's state for a client's first state, if it is kept between rounds."""
        moving = {name: t for name, t in params.items() if name not in ctx.task.statistics}
        return {MEMORY: self.start_memory(moving)} if self.keep else {}

    def fit_on(self, ctx: Any, params: Params, **options: Any) -> tuple[Params, Tensor, Tree]:
        """`fit` with the memory in the client's state; the last of the three results is the new entry of that state."""
        if not self.keep:
            return *self.fit(ctx, params, **options), {}
        model, loss, memory = self.fit(ctx, params, memory=ctx.state[MEMORY], **options)
        return model, loss, {MEMORY: memory}

    def start_memory(self, params: Params, train: str | Iterable[str] | None = None) -> Tree:
        """What the optimiser remembers before its first step: zeros."""
        trained = _trained(params, train)
        return unflatten(self._remembered(params, trained, None))

    def _remembered(self, params: Params, trained: tuple[str, ...], memory: Tree | None) -> Given:
        """The memory by the names of `Given`: the one passed in, or zeros."""
        wanted = sgd.kept_names(self.rule, trained)
        if memory is None:
            zero = next(iter(params.values())).new_zeros(())
            return {n: zero if n == "count" else torch.zeros_like(params[n.split("/", 1)[1]]) for n in wanted}
        flat = flatten(memory)
        if set(flat) != set(wanted):
            raise ConfigError(
                f"The memory does not fit {type(self).__name__} and the trained parameters; it has {sorted(flat)}. "
                "Start with start_memory(params, train)."
            )
        return {name: flat[name] for name in wanted}


def _trained(
    params: Params, train: str | Iterable[str] | None, statistics: frozenset[str] = frozenset()
) -> tuple[str, ...]:
    """Statistics may be named too: every step updates them, whichever parts are trained."""
    if train is None:
        return tuple(params)
    parts = tuple(part for part in names(train, "fit", "train") if part not in statistics)
    for part in parts:
        if not named_like(params, (part,)):
            raise ConfigError(
                f"train names parts of the network; got {part!r}, which is not one of {', '.join(params)}."
            )
    if not parts:
        raise ConfigError("train needs at least one part of the network; got none. Leave it out to train everything.")
    return tuple(named_like(params, parts))


def _pulls(anchor: Params | None, pull: Rate | Params, params: Params, trained: tuple[str, ...]) -> Given:
    """The anchor and, if the pull is not a plain number, the pull of every trained parameter."""
    if isinstance(pull, float | int) and pull == 0:
        return {}
    if anchor is None:
        raise ConfigError("A pull needs the model it pulls towards; got pull without anchor. Pass anchor=….")
    given = _part("anchor", anchor, params, trained)
    if isinstance(pull, Tensor):
        return given | {f"pull/{name}": pull for name in trained}
    return given | _part("pull", pull, params, trained) if isinstance(pull, dict) else given


def _part(kind: str, tree: Params, params: Params, trained: tuple[str, ...]) -> Given:
    """The trained parameters' entries of a tree that has all names or exactly the trained ones."""
    if tree.keys() != params.keys() and set(tree) != set(trained):
        missing, unknown = sorted(set(trained) - set(tree)), sorted(set(tree) - set(params))
        raise ConfigError(
            f"{kind} needs an entry for every trained parameter; missing: {missing or 'none'}, unknown: "
            f"{unknown or 'none'}. Give exactly {list(trained)}."
        )
    return {f"{kind}/{name}": tree[name] for name in trained}


def _with_extra(plan: Plan, ctx: Samples, given: Given, extra: Callable[[Params, Any], Tensor]) -> tuple[Tensor, ...]:
    """The steps as a loop in the client function itself: `extra` may use anything the client function has."""
    fixed = {name: given[f"weight/{name}"] for name in plan.model.names}
    trained = [fixed[name] for name in plan.trained]
    optimiser = plan.optimiser(given)
    total, taken = torch.zeros_like(ctx.n), torch.zeros_like(ctx.n)

    def objective(part: Params, batch: Any) -> tuple[Tensor, tuple[Tensor, Params]]:
        whole = fixed | part
        outputs, moved = ctx.task.training_pass(whole, batch.x, batch.fresh("network"))
        losses = ctx.task.sample_losses(outputs, batch.y)
        loss = (losses * batch.mask).sum() / batch.mask.sum().clamp(min=1)
        return loss + extra(whole, batch), (loss, moved)

    gradient = _by_autograd(objective) if ctx.task.alone else torch.func.grad(objective, has_aux=True)
    walk = plan.walk
    for s, batch in enumerate(ctx.batches(steps=walk.steps, epochs=walk.epochs, batch_size=walk.batch_size)):
        grads, (loss, moved) = gradient(dict(zip(plan.trained, trained, strict=True)), batch)
        fixed |= moved
        on = (batch.n > 0).to(total.dtype)
        trained = optimiser.step(trained, list(grads.values()), plan.rate(given, s), on, 0)
        total, taken = total + on * loss, taken + on
    kept = [t for slots in optimiser.slots for t in slots]
    count = [] if optimiser.count is None else [optimiser.count]
    statistics = [fixed[name] for name in plan.statistics]
    return (*trained, *statistics, *kept, *count, total / taken.clamp(min=1))


def _by_autograd(objective: Callable[[Params, Any], tuple[Tensor, Any]]) -> Callable[[Params, Any], tuple[Params, Any]]:
    """`torch.func.grad` with ordinary autograd, for networks that run one client at a time."""

    def gradient(part: Params, batch: Any) -> tuple[Params, Any]:
        with torch.enable_grad():
            own = {name: p.detach().requires_grad_() for name, p in part.items()}
            value, aux = objective(own, batch)
            grads = torch.autograd.grad(value, list(own.values()), materialize_grads=True)
        loss, moved = aux
        return dict(zip(own, grads, strict=True)), (loss.detach(), moved)

    return gradient


class _Steps(torch.autograd.Function):
    """τ local steps; not differentiable itself."""

    @staticmethod
    def forward(plan: Plan, kinds: Any, x: Tensor, y: Tensor, mask: Tensor, key: Tensor, *given: Tensor) -> Any:
        return sgd.train_one(plan, x, y, mask, key, dict(zip(kinds, given, strict=True)))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise RuntimeError("LocalSGD.fit cannot be differentiated; write the steps with ctx.grad instead.")

    @staticmethod
    def rule(plan: Plan, kinds: Any, x: Tensor, y: Tensor, mask: Tensor, key: Tensor, *given: Tensor) -> Any:
        return sgd.train(plan, x, y, mask, key, dict(zip(kinds, given, strict=True)))

    @staticmethod
    def vmap(info: Any, in_dims: Any, *given: Any) -> Any:
        trained = _Steps.rule(*in_chunk(info, in_dims, given))
        return trained, (0,) * len(trained)
