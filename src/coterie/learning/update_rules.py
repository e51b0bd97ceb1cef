"""One step of an optimiser: the new parameters from the old ones and their gradients.

The same code serves one client and a chunk of clients: a number per client has the shape () for one and (clients,) for a
chunk, and is stretched over the parameters' own dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

Rate = float | Tensor
"""A number for all clients, or a tensor with one per client."""


@dataclass(frozen=True)
class Momentum:
    """SGD: v ← μv + g; the step is along v, or along g + μv with Nesterov's. PyTorch's convention: no dampening."""

    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    decoupled = False
    counts = False

    @property
    def slots(self) -> tuple[str, ...]:
        """The names of the rule's state for each parameter."""
        return ("velocity",) if self.momentum else ()

    def direction(self, g: Tensor, old: Sequence[Tensor], count: Tensor | None) -> tuple[Tensor, list[Tensor]]:
        if not self.momentum:
            return g, []
        moved = self.momentum * old[0] + g
        return (g + self.momentum * moved if self.nesterov else moved), [moved]


@dataclass(frozen=True)
class Adam:
    """Kingma & Ba, "Adam: a method for stochastic optimization", Algorithm 1, https://arxiv.org/abs/1412.6980;
    `decoupled` weight decay is that of Loshchilov & Hutter (AdamW), https://arxiv.org/abs/1711.05101, Algorithm 2."""

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = True
    slots = ("mean", "square")
    counts = True

    def direction(self, g: Tensor, old: Sequence[Tensor], count: Tensor | None) -> tuple[Tensor, list[Tensor]]:
        assert count is not None
        mean = torch.lerp(old[0], g, 1 - self.beta1)
        square = torch.addcmul(self.beta2 * old[1], g, g, value=1 - self.beta2)
        one, two = (wide(_one_minus_power(beta, count), g) for beta in (self.beta1, self.beta2))
        return mean / one / (square.sqrt() / two.sqrt() + self.eps), [mean, square]


def _one_minus_power(beta: float, count: Tensor) -> Tensor:
    """1 − βᵗ; the plain difference loses four digits in float32 while βᵗ is near 1."""
    return -torch.expm1(count * math.log(beta)) if beta else torch.ones_like(count)


Rule = Momentum | Adam


@dataclass
class Optimiser:
    """A rule with what it remembers, and what is added to every gradient. Lists are in the order of the parameters."""

    rule: Rule
    clip: float | None = None
    anchors: Sequence[Tensor] | None = None
    pull: float = 0.0
    pulls: Sequence[Tensor] | None = None  # instead of `pull`: a tensor for every parameter
    correct: Sequence[Tensor] | None = None
    slots: list[list[Tensor]] = field(default_factory=list)  # per parameter, the rule's slots
    count: Tensor | None = None  # steps taken, where the rule counts them

    @property
    def simple(self) -> bool:
        """Whether a step is p − lr·g and nothing else."""
        return self.clip is None and self.rule == Momentum() and self.correct is None and self.anchors is None

    def fused(self, lr: float) -> bool:
        """Whether a step is p − lr·(g + correct + pull·(p − anchor)) with the same pull for all."""
        return self.clip is None and self.rule == Momentum() and self.pulls is None and not lr * self.pull > 1

    def step(
        self, params: Sequence[Tensor], grads: Sequence[Tensor], lr: Rate, on: Tensor | None, batch_dims: int
    ) -> list[Tensor]:
        """The parameters after one step. `on` is 0 for clients that skip this step (None: no client does).

        The gradient with its correction is clipped; weight decay and the pull come after."""
        if self.correct is not None:
            grads = [g + c for g, c in zip(grads, self.correct, strict=True)]
        if self.clip is not None:
            grads = clipped(grads, self.clip, batch_dims)
        before = self.count
        if self.rule.counts and before is not None:
            self.count = before + 1
        stepped = [self._one(i, p, g, lr, on) for i, (p, g) in enumerate(zip(params, grads, strict=True))]
        if on is not None and before is not None and self.count is not None:
            self.count = torch.where(on > 0, self.count, before)
        return stepped

    def _one(self, i: int, p: Tensor, g: Tensor, lr: Rate, on: Tensor | None) -> Tensor:
        """The pull towards the anchor is an explicit step while lr·pull ≤ 1 and an implicit one (p ← anchor + (p −
        anchor)/(1 + lr·pull)) beyond, where the explicit step would overshoot: any pull, however strong, is stable.
        Adam scales its steps itself, so there the pull is always part of the gradient."""
        decay, start = self.rule.weight_decay, p
        if isinstance(lr, Tensor):
            lr = wide(lr, p)
        if decay and not self.rule.decoupled:
            g = g + decay * p
        pull = self.pull if self.pulls is None else wide(self.pulls[i], p)
        implicit: bool | Tensor = lr * pull > 1 if isinstance(self.rule, Momentum) else False
        if self.anchors is not None and implicit is not True:
            g = g + (torch.where(implicit, 0.0, pull) if isinstance(implicit, Tensor) else pull) * (p - self.anchors[i])
        along, kept = self.rule.direction(g, self.slots[i] if self.slots else [], self.count)
        if decay and self.rule.decoupled:
            p = p * (1 - lr * decay)
        p = p - lr * along if isinstance(lr, Tensor) else torch.sub(p, along, alpha=lr)
        if self.anchors is not None and implicit is not False:
            pulled = self.anchors[i] + (p - self.anchors[i]) / (1 + lr * pull)
            p = torch.where(implicit, pulled, p) if isinstance(implicit, Tensor) else pulled
        if on is not None:
            taken = wide(on, p) > 0
            p = torch.where(taken, p, start)
            kept = [torch.where(taken, new, old) for new, old in zip(kept, self.slots[i] if kept else [], strict=True)]
        if kept:
            self.slots[i] = kept
        return p


class Descent:
    """An optimiser of one client's model for your own loops: `params = descent(params, gradient, lr)`."""

    def __init__(self, rule: Rule, clip: float | None = None) -> None:
        self._optimiser = Optimiser(rule, clip)
        self._begun = False

    def __call__(self, params: dict[str, Tensor], gradient: dict[str, Tensor], lr: Rate) -> dict[str, Tensor]:
        optimiser = self._optimiser
        if not self._begun:
            optimiser.slots = [[torch.zeros_like(p) for _ in optimiser.rule.slots] for p in params.values()]
            optimiser.count = next(iter(params.values())).new_zeros(()) if optimiser.rule.counts else None
            self._begun = True
        moved = optimiser.step(list(params.values()), [gradient[name] for name in params], lr, None, 0)
        return dict(zip(params, moved, strict=True))


def clipped(grads: Sequence[Tensor], most: float, batch_dims: int) -> list[Tensor]:
    """Scaled to a joint norm of at most `most`, for each client by itself; `torch.nn.utils.clip_grad_norm_`'s rule."""
    squares = torch.stack([g.square().reshape(*g.shape[:batch_dims], -1).sum(-1) for g in grads]).sum(0)
    scale = (most / (squares.sqrt() + 1e-6)).clamp(max=1.0)
    return [g * wide(scale, g) for g in grads]


def wide(number: Tensor, like: Tensor) -> Tensor:
    """A number per client, stretched over the other dimensions of a parameter."""
    return number.reshape(number.shape + (1,) * (like.dim() - number.dim()))
