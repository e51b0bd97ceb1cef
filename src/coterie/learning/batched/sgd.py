"""Many clients' local steps at once: models stacked as (clients, …), one batched matrix product a layer.

Three ways, same numbers up to rounding:
- an `nn.Sequential` of small convolutions and fully connected layers with a known loss runs on hand-written gradients;
  where a step is plain SGD they are accumulated straight into the weights (`networks`);
- any other network with convolutions (batching them gains nothing on a CPU), and networks that need it (BatchNorm, recurrent
  layers), run client by client with the library's own kernels;
- anything else runs under `vmap` with ordinary autograd.
`train_one` is the plain version for one client, and the reference against which the others are tested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coterie.learning.batched import network_traits
from coterie.learning.batched.forward_and_back import in_cache
from coterie.learning.batched.gradients import Model, chunk_gradients
from coterie.learning.batched.networks import Network
from coterie.learning.batched.protected import RowNoise, train_protected
from coterie.learning.batches import Walk, flat_rows, pick, step_keys
from coterie.learning.update_rules import Optimiser, Rate, Rule

Given = dict[str, Tensor]
"""The tensors of one call of `fit`, by what they are: "weight/…" of every parameter; "anchor/…", "pull/…", "correct/…" and
one "slot/…" per memory of the rule, of every trained one; "lr" and "count"."""


@dataclass(frozen=True)
class Plan:
    """The settings of one call of `fit`; the tensors are passed separately."""

    model: Model
    walk: Walk
    rule: Rule
    lr: float  # of this round; a tensor "lr" replaces it
    clip: float | None = None
    pull: float = 0.0  # tensors "pull/…" replace it
    factor: Callable[[int], float] | None = None  # a schedule's factor of the learning rate in a step
    rows: RowNoise | None = None  # protects every row

    @property
    def trained(self) -> tuple[str, ...]:
        return tuple(self.model.names[i] for i in self.model.trained)

    @property
    def statistics(self) -> tuple[str, ...]:
        """Running statistics, which move with every step."""
        return tuple(name for name in self.model.names if name in self.model.task.statistics)

    def keys(self, key: Tensor, steps: int) -> Tensor:
        """A random key for every step, (…, steps); the same one again where the network draws nothing."""
        if self.model.task.traits.watched:
            return step_keys(key, steps)
        return key.unsqueeze(-1).expand(*key.shape, steps)

    def rate(self, given: Given, step: int) -> Rate:
        factor = 1.0 if self.factor is None else self.factor(step)
        return given["lr"] * factor if "lr" in given else self.lr * factor

    def optimiser(self, given: Given) -> Optimiser:
        def part(kind: str) -> list[Tensor] | None:
            names = [f"{kind}/{name}" for name in self.trained]
            return [given[name] for name in names] if names[0] in given else None

        kept = [[given[f"{slot}/{name}"] for slot in self.rule.slots] for name in self.trained]
        return Optimiser(
            self.rule,
            self.clip,
            part("anchor"),
            self.pull,
            part("pull"),
            part("correct"),
            kept if self.rule.slots else [],
            given.get("count"),
        )


def kept_names(rule: Rule, trained: tuple[str, ...]) -> list[str]:
    """A rule's state between calls, by the names of `Given`."""
    names = [f"{slot}/{name}" for name in trained for slot in rule.slots]
    return [*names, "count"] if rule.counts else names


def _kept(optimiser: Optimiser) -> list[Tensor]:
    kept = [t for slots in optimiser.slots for t in slots]
    return kept if optimiser.count is None else [*kept, optimiser.count]


@torch.no_grad()
def train_one(plan: Plan, x: Tensor, y: Tensor, mask: Tensor, key: Tensor, given: Given) -> tuple[Tensor, ...]:
    """One client, one model, plain autograd. Returns the trained parameters, the running statistics, the memory and the
    mean loss."""
    if plan.rows is not None:
        one = {name: t[None] for name, t in given.items()}
        return tuple(t[0] for t in train_protected(plan, x[None], y[None], mask[None], key[None], one))
    chosen, weight = plan.walk.rows(mask, key)
    if chosen is None and not bool((real := mask > 0).all()):
        x, y, weight = x[real], y[real], weight[..., real]
    optimiser = plan.optimiser(given)
    total = mask.new_zeros(())
    sizes = (weight > 0).sum(-1).tolist()  # real samples come first; a client with few takes fewer steps
    steps = [(s, size) for s, size in enumerate(sizes) if size]
    keys, task = plan.keys(key, len(sizes)), plan.model.task
    with _holding(plan, given) as (module, params):
        for s, size in steps:
            rows = None if chosen is None else chosen[s, :size]
            xs, ys = (x[:size], y[:size]) if rows is None else (x.index_select(0, rows), y.index_select(0, rows))
            if plan.statistics:
                network_traits.settle(module, size)
            with torch.enable_grad():
                with task.watching(keys[s]):
                    outputs = module(xs)
                loss = (task.sample_losses(outputs, ys) * weight[s, :size]).sum()
                grads = torch.autograd.grad(loss, params, materialize_grads=True)
            _advance(optimiser, params, list(grads), plan.rate(given, s), None, 0)
            total += loss.detach()
        trained = [p.detach().contiguous() for p in params]
        buffers = dict(module.named_buffers())
        trained += [buffers[name].clone() for name in plan.statistics]
    return (*trained, *_kept(optimiser), total / max(len(steps), 1))


def _advance(
    optimiser: Optimiser, params: list[Tensor], grads: list[Tensor], lr: Rate, on: Tensor | None, batch_dims: int
) -> None:
    """One step in place."""
    if optimiser.simple and on is None and not isinstance(lr, Tensor):
        torch._foreach_add_(params, grads, alpha=-lr)
        return
    torch._foreach_copy_(params, optimiser.step(params, grads, lr, on, batch_dims))


@contextmanager
def _holding(plan: Plan, given: Given) -> Iterator[tuple[nn.Module, list[Tensor]]]:
    """A module of this thread with copies of the weights as its parameters, and the list of the trained ones: swapped in
    once, not in every step.

    Kernels of convolutions lie channels-last, and with them all that is computed from them: pooling is vectorised then."""
    module = plan.model.task.trainee(given[f"weight/{plan.model.names[0]}"])
    own, kept = dict(module.named_parameters()), dict(module.named_buffers())
    before = {name: p.data for name, p in own.items()}
    try:
        for name in plan.statistics:
            kept[name].copy_(given[f"weight/{name}"])
        for name in (n for n in plan.model.names if n in own):
            w = given[f"weight/{name}"]
            layout = torch.channels_last if w.dim() == 4 else torch.contiguous_format
            own[name].requires_grad_().data = w.clone(memory_format=layout)
        yield module, [own[name] for name in plan.trained]
    finally:
        for name, p in own.items():
            p.data = before[name]


def train(plan: Plan, x: Tensor, y: Tensor, mask: Tensor, key: Tensor, given: Given) -> tuple[Tensor, ...]:
    """A chunk of clients: every tensor has a leading client dimension. Returns what `train_one` does, stacked."""
    if plan.rows is not None:
        return train_protected(plan, x, y, mask, key, given)
    network = plan.model.network(x, y)
    if network is None and plan.model.task.one_by_one:
        each = [
            train_one(plan, x[c], y[c], mask[c], key[c], {name: t[c] for name, t in given.items()})
            for c in range(len(x))
        ]
        return tuple(torch.stack(column) for column in zip(*each, strict=True))
    some = [slice(None)] if network is None else in_cache(network, x[:, : plan.walk.batch_size])
    parts = [
        _train_together(plan, network, x[i], y[i], mask[i], key[i], {name: t[i] for name, t in given.items()})
        for i in some
    ]
    return parts[0] if len(parts) == 1 else tuple(torch.cat(column) for column in zip(*parts, strict=True))


def _train_together(
    plan: Plan, network: Network | None, x: Tensor, y: Tensor, mask: Tensor, key: Tensor, given: Given
) -> tuple[Tensor, ...]:
    chosen, weight = plan.walk.rows(mask, key)
    rows = None if chosen is None else flat_rows(x, chosen)
    places = plan.model.trained
    params = [given[f"weight/{name}"] for name in plan.model.names]
    for i in places:
        params[i] = params[i].clone(memory_format=torch.contiguous_format)
    moving = [params[i] for i in places]
    optimiser = plan.optimiser(given)
    on = (weight > 0).any(-1).to(weight.dtype)  # (clients, steps)
    ragged = not optimiser.simple and bool((on == 0).any())
    total = weight.new_zeros(len(x))
    keys = plan.keys(key, weight.shape[-2])
    for s in range(weight.shape[-2]):
        xs, ys = (x, y) if rows is None else pick(x, y, rows[:, s])
        lr = plan.rate(given, s)
        if network is not None and not ragged and not isinstance(lr, Tensor) and optimiser.fused(lr):
            also = (optimiser.correct, optimiser.pull, optimiser.anchors or ())
            total += network.descend(params, xs, ys, weight[:, s], lr, places, *also)
            continue
        loss, grads = chunk_gradients(plan.model, network, params, xs, ys, weight[:, s], keys[:, s])
        total += loss
        _advance(optimiser, moving, grads, lr, on[:, s] if ragged else None, 1)
    return (*moving, *_kept(optimiser), total / on.sum(-1).clamp(min=1))
