"""What the training loop demands of an algorithm: a `round` that yields asks, and a state that is a dataclass."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.base.tree import leaves
from coterie.errors import ConfigError
from coterie.exchange.messages import Algorithm, Ask, Cohort, Reply
from coterie.learning.local_sgd import LocalSGD
from coterie.learning.local_steps import LocalSteps
from coterie.learning.task import Task


def conversation(algorithm: Algorithm, state: Any, cohort: Cohort) -> Generator[Ask, Reply, Any]:
    """The server's side of a round; a `round` that is not a generator is refused."""
    made = algorithm.round(state, cohort)
    if not isinstance(made, Generator):
        raise ConfigError(
            f"{type(algorithm).__name__}.round must be a generator; it returned a {type(made).__name__}. "
            "Ask clients with `reply = yield Ask(…)`."
        )
    return made


def require_ask(algorithm: Algorithm, ask: Any) -> Ask:
    if not isinstance(ask, Ask):
        raise ConfigError(
            f"{type(algorithm).__name__}.round must yield Ask(…); it yielded a {type(ask).__name__}. Wrap it in an Ask."
        )
    return ask


def require_steps(algorithm: Algorithm) -> None:
    """Refuse a `local` that is not local steps, in an algorithm or in the one it wraps."""
    if not is_dataclass(algorithm):
        return
    for f in fields(algorithm):
        local = getattr(algorithm, f.name)
        if f.name == "base":
            require_steps(local)
        elif f.name == "local" and f.default_factory is LocalSGD and not isinstance(local, LocalSteps):
            raise ConfigError(
                f"{type(algorithm).__name__} needs local to be steps, such as LocalSGD(steps=10, lr=0.1) or LocalAdam(); "
                f"got {local!r}."
            )


def require_state(algorithm: Algorithm, method: str, state: Any) -> None:
    if not is_dataclass(state) or isinstance(state, type):
        raise ConfigError(
            f"A server state must be a dataclass; {type(algorithm).__name__}.{method} gave a {type(state).__name__}. "
            "Decorate its class with @dataclass(frozen=True), and return one."
        )


def require_start(task: Task, start: Any) -> None:
    """Refuse start parameters that the network cannot hold."""
    task.require(start)
    for name, held in task.init(0).items():
        given = start[name]
        if not isinstance(given, Tensor) or not given.is_floating_point() or given.shape != held.shape:
            got = f"{given.dtype} of shape {tuple(given.shape)}" if isinstance(given, Tensor) else type(given).__name__
            raise ConfigError(
                f"start needs a floating-point tensor of shape {tuple(held.shape)} for {name!r}; got {got}. Convert it."
            )


def require_statistics(algorithm: Algorithm, task: Task) -> None:
    """Refuse BatchNorm where its running statistics would be lost or mixed up."""
    if task.statistics and not algorithm.carries_statistics:
        raise ConfigError(
            f"{type(algorithm).__name__} with these settings does not carry running statistics, and the model keeps "
            f"{min(task.statistics)!r}. Use nn.GroupNorm or nn.LayerNorm, or FedAvg, FedBN, IFCA, Ditto or Local."
        )


def require_optimiser(algorithm: Algorithm) -> None:
    """Refuse to keep the optimiser's state if the algorithm would lose it."""
    if getattr(getattr(algorithm, "local", None), "keep", False) and not algorithm.keeps_optimiser:
        raise ConfigError(
            f"{type(algorithm).__name__} starts a new optimiser in every round; got keep=True. Use keep=False, or "
            "FedAvg, FedProx, FedBN or Local."
        )


def finite(state: Any) -> bool:
    """Whether every number of a server state is finite."""
    tensors = leaves({f.name: getattr(state, f.name) for f in fields(state)})
    return all(bool(torch.isfinite(t).all()) for t in tensors if isinstance(t, torch.Tensor) and t.is_floating_point())


def parts(state: Any) -> Iterator[tuple[str, Any]]:
    """The fields of a state."""
    return ((f.name, getattr(state, f.name)) for f in fields(state))
