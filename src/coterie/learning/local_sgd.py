"""LocalSGD and LocalAdam: the settings of a client's local steps."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.base.annotations import guarded
from coterie.base.arguments import BelowOne, NotNegative, Positive, Steps
from coterie.errors import ConfigError
from coterie.learning.local_steps import LocalSteps, Schedule
from coterie.learning.update_rules import Adam, Momentum, Rule


@guarded
@dataclass(frozen=True)
class LocalSGD(LocalSteps):
    """`steps` mini-batch steps (or `epochs` passes); `batch_size=None` uses all of the client's samples in every step.

    The learning rate in round t is `lr * decay ** t`, times the `schedule`'s factor for the round and step
    (`ct.schedules`). Batches walk through a fresh permutation of the client's samples each epoch, drawn from the client's
    own random stream. `clip` bounds the norm of every client's gradient in every step. With `keep` the momentum stays on the
    client between rounds; otherwise every round starts without momentum.
    """

    steps: Steps | None = None
    lr: NotNegative = 0.1
    batch_size: Steps | None = 32
    epochs: Steps | None = None
    momentum: BelowOne = 0.0
    weight_decay: NotNegative = 0.0
    decay: Positive = 1.0
    nesterov: bool = False
    clip: Positive | None = None
    schedule: Schedule | None = None
    keep: bool = False

    def __post_init__(self) -> None:
        _count(self)
        if self.nesterov and not self.momentum:
            raise ConfigError("LocalSGD needs momentum above 0 for nesterov=True; got momentum 0.0.")

    @property
    def rule(self) -> Rule:
        return Momentum(self.momentum, self.nesterov, self.weight_decay)


@guarded
@dataclass(frozen=True)
class LocalAdam(LocalSteps):
    """Adam with the same steps, batches and `fit` as `LocalSGD`; weight decay is AdamW's unless `decoupled=False`.

    Every round starts with new means, unless the client keeps them: `keep=True`, or in your own algorithm
    `fit(…, memory=ctx.state["adam"])`."""

    steps: Steps | None = None
    lr: NotNegative = 0.001
    batch_size: Steps | None = 32
    epochs: Steps | None = None
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.999
    eps: Positive = 1e-8
    weight_decay: NotNegative = 0.0
    decoupled: bool = True
    decay: Positive = 1.0
    clip: Positive | None = None
    schedule: Schedule | None = None
    keep: bool = False

    def __post_init__(self) -> None:
        _count(self)

    @property
    def rule(self) -> Rule:
        return Adam(self.beta1, self.beta2, self.eps, self.weight_decay, self.decoupled)


def _count(settings: LocalSteps) -> None:
    """Ten steps where neither steps nor epochs are given; whole floats such as 2.0 become whole numbers."""
    if settings.steps is None and settings.epochs is None:
        object.__setattr__(settings, "steps", 10)
    if settings.steps is not None and settings.epochs is not None:
        raise ConfigError(
            f"{type(settings).__name__} takes steps or epochs, not both; got {settings.steps} and {settings.epochs}. "
            "Drop one."
        )
    for name in ("steps", "epochs", "batch_size"):
        if getattr(settings, name) is not None:
            object.__setattr__(settings, name, int(getattr(settings, name)))


LOCAL_STEPS: dict[str, type[LocalSteps]] = {"LocalSGD": LocalSGD, "LocalAdam": LocalAdam}
