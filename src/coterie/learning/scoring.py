"""Your own metrics: a function, or an object with torchmetrics' methods `reset`, `update` and `compute`.

A function of (outputs, y) scores one client's rows at a time and returns a number. A function of three arguments scores many
clients at once, as those in `metrics` do. torchmetrics itself is not needed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from coterie.base.annotations import guarded
from coterie.base.text import suggest
from coterie.errors import TaskError
from coterie.learning.metrics import FOR_NUMBERS, LOWER_IS_BETTER, METRICS, Metric

_ONE_AT_A_TIME = Lock()  # an object holds one client's rows, and clients are scored in several threads


@guarded
@dataclass(frozen=True)
class Scorer:
    """A metric with a name; `lower_is_better` turns the sign of gains. Make one to name a function or say that less is
    better: `Task(…, metric=Scorer(median_error, lower_is_better=True))`."""

    given: Any
    name: str = ""
    lower_is_better: bool | None = None

    def __post_init__(self) -> None:
        kind = type(self.given).__name__
        if isinstance(self.given, str):
            if self.given not in METRICS:
                raise TaskError(f"There is no metric {self.given!r}. {suggest(self.given, sorted(METRICS))}")
        elif not _stateful(self.given) and not callable(self.given):
            raise TaskError(f"A metric is a name, a function, or an object with update and compute; got a {kind}.")
        name = self.given if isinstance(self.given, str) else getattr(self.given, "__name__", kind)
        object.__setattr__(self, "name", self.name or name)
        if self.lower_is_better is None:
            told = getattr(self.given, "lower_is_better", None)
            more = getattr(self.given, "higher_is_better", None)  # torchmetrics' word
            lower = self.given in LOWER_IS_BETTER if isinstance(self.given, str) else told or more is False
            object.__setattr__(self, "lower_is_better", bool(lower))

    @property
    def for_numbers(self) -> bool | None:
        """Whether it scores numbers or classes; None where only its author knows."""
        return self.given in FOR_NUMBERS if isinstance(self.given, str) else None

    def __call__(self, results: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """(clients,) scores."""
        return self._function(results, targets, weights)

    @property
    def _function(self) -> Metric:
        if isinstance(self.given, str):
            return METRICS[self.given]
        if _stateful(self.given):
            return _client_by_client(self._updated, self.name)
        return self.given if _arguments(self.given) >= 3 else _client_by_client(self.given, self.name)

    def _updated(self, results: Tensor, targets: Tensor) -> Any:
        with _ONE_AT_A_TIME:
            self.given.reset()
            self.given.update(results.squeeze(-1) if results.shape[-1] == 1 else results, targets)
            return self.given.compute()


def _stateful(given: Any) -> bool:
    return all(callable(getattr(given, name, None)) for name in ("reset", "update", "compute"))


def _arguments(function: Callable[..., Any]) -> int:
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    given = inspect.signature(function).parameters.values()
    return sum(p.kind in positional and p.default is inspect.Parameter.empty for p in given)


def _client_by_client(function: Callable[[Tensor, Tensor], Any], name: str) -> Metric:
    def scored(results: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        values = []
        for out, y, mask in zip(results, targets, weights, strict=True):
            real = mask > 0
            values.append(_number(function(out[real], y[real]), name) if bool(real.any()) else float("nan"))
        return torch.tensor(values, dtype=torch.float64)

    return scored


def _number(value: Any, name: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise TaskError(
            f"The metric {name} must give one number per client; got {str(value)[:60]}. Take a mean, or several metrics."
        ) from None
