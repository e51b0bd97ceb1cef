"""LocalSGD and LocalAdam: the settings of a client's local steps."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.annotations import guarded
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

    steps: int | None = None
    lr: float = 0.1
    batch_size: int | None = 32
    epochs: int | None = None
    momentum: float = 0.0
    weight_decay: float = 0.0
    decay: float = 1.0
    nesterov: bool = False
    clip: float | None = None
    schedule: Schedule | None = None
    keep: bool = False

    def __post_init__(self) -> None:
        _check(self, (("lr", None), ("momentum", 1.0), ("weight_decay", None)))
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

    steps: int | None = None
    lr: float = 0.001
    batch_size: int | None = 32
    epochs: int | None = None
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = True
    decay: float = 1.0
    clip: float | None = None
    schedule: Schedule | None = None
    keep: bool = False

    def __post_init__(self) -> None:
        _check(self, (("lr", None), ("beta1", 1.0), ("beta2", 1.0), ("weight_decay", None)))
        if not self.eps > 0:
            raise ConfigError(f"LocalAdam needs eps above 0; got {self.eps}.")

    @property
    def rule(self) -> Rule:
        return Adam(self.beta1, self.beta2, self.eps, self.weight_decay, self.decoupled)


def _check(settings: LocalSteps, bounds: tuple[tuple[str, float | None], ...]) -> None:
    owner = type(settings).__name__
    if settings.steps is None and settings.epochs is None:
        object.__setattr__(settings, "steps", 10)
    if settings.steps is not None and settings.epochs is not None:
        raise ConfigError(
            f"{owner} takes steps or epochs, not both; got {settings.steps} and {settings.epochs}. Drop one."
        )
    for name in ("steps", "epochs", "batch_size"):
        value = getattr(settings, name)
        if value is not None and (value < 1 or int(value) != value):
            raise ConfigError(f"{owner} needs {name} to be a whole number of at least 1; got {value}.")
        if value is not None:
            object.__setattr__(settings, name, int(value))
    for name, high in bounds:
        value = getattr(settings, name)
        if value < 0 or (high is not None and value >= high):
            span = f"in [0.0, {high})" if high is not None else "at least 0.0"
            raise ConfigError(f"{owner} needs {name} {span}; got {value}.")
    if not settings.decay > 0:
        raise ConfigError(f"{owner} needs decay above 0 (1: no decay); got {settings.decay}.")
    if settings.clip is not None and not settings.clip > 0:
        raise ConfigError(f"{owner} needs clip above 0 (None: no clipping); got {settings.clip}.")


LOCAL_STEPS: dict[str, type[LocalSteps]] = {"LocalSGD": LocalSGD, "LocalAdam": LocalAdam}
