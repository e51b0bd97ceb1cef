"""Which run a checkpoint belongs to, by its data, its start, its settings, and what its model and loss compute.

Code itself has no fingerprint: two loss functions may have one name, and a constant may change inside `forward`. So the
fingerprint has the values of the model and the loss on fixed rows. These are compared with a tolerance, since the number of
threads may move their last digits; everything else must be equal bit by bit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.base.disk import digest, said
from coterie.base.tree import Params, flatten
from coterie.data.federation import Federation
from coterie.errors import ConfigError, TaskError
from coterie.learning.task import Task
from coterie.training.contract import parts

_ROWS = 32  # rows on which the model and the loss are computed
_SHIFT = 0.05  # how far parameters are moved for it: at a start of zeros many models agree
_TOLERANCE = 1e-5
_HEAD = "probe/"
_LOOKED = (0, 1, 2, 3, 4, 5, 7, 10, 20, 50, 100, 200, 500, 1000)  # rounds and steps at which schedules are compared


@dataclass(frozen=True)
class Fingerprint:
    """`parts` are the checksums of the run's parts, by name; `probe` are the values of model and loss on fixed rows."""

    parts: dict[str, str]
    probe: dict[str, Tensor]
    start_loss: float
    """The mean loss of the start model on the fixed rows."""

    @property
    def text(self) -> str:
        """A short name of the run."""
        return digest(self.parts.values())[:16]

    @property
    def public(self) -> str:
        """A name of the run's settings and start. It does not depend on the data, so it cannot confirm a guess of them."""
        return digest(value for name, value in self.parts.items() if name != "data")[:16]

    def about(self) -> dict[str, Any]:
        """The plain values that a checkpoint keeps, in addition to `tensors`."""
        return {"fingerprint": self.text, "parts": self.parts}

    def tensors(self) -> dict[str, Tensor]:
        return {f"{_HEAD}{name}": t for name, t in self.probe.items()}

    def require(self, about: Mapping[str, Any], tensors: Mapping[str, Tensor], where: Any) -> None:
        """Refuse the checkpoint of another run."""
        parts = about.get("parts")
        kept = parts if isinstance(parts, dict) else {}
        other = [name for name, value in self.parts.items() if kept.get(name) != value]
        other += [f"{n} of the model" for n, t in self.probe.items() if not _close(t, tensors.get(f"{_HEAD}{n}"))]
        if other or about.get("fingerprint") != self.text:
            raise ConfigError(
                f"The run in {where} was made with other settings or data ({', '.join(other) or 'all'} differ); resuming "
                "would mix two runs. Call fit with the same algorithm, data, task, start, seed, cohort and channels, or "
                "choose another folder."
            )


def fingerprint(
    task: Task, federation: Federation, initial: Params, settings: tuple[Any, ...], state: Any = None
) -> Fingerprint:
    """settings: any object whose `repr` shows its value. state: a server state to start from, if one was given."""
    loss = task.loss if isinstance(task.loss, str) else getattr(task.loss, "__qualname__", "loss")
    shapes = {k: tuple(t.shape) for k, t in initial.items()}
    told = repr((settings, _rates(settings), task.metrics, loss, task.skeleton, shapes))
    fed = federation
    data = (
        fed.x,
        fed.y,
        fed.offsets,
        fed.n_train,
        fed.keys,
        *(t for t in (fed.clusters, fed.weights, fed.order) if t is not None),
    )
    data = (*data, fed.n_valid) if fed.n_valid.any() else data
    sums = {
        "settings": digest([re.sub(r" at 0x[0-9a-f]+", "", told)]),  # where an object lies in memory
        "data": digest(_bytes(dict(enumerate(data)))),
        "start": digest([*_bytes(initial), *_bytes({} if state is None else dict(parts(state)))]),
    }
    return Fingerprint(sums, *_probe(task, federation, initial))


def _rates(settings: Any) -> list[float]:
    """What the learning-rate schedules in the settings give; functions of one name may differ."""
    if isinstance(settings, tuple | list):
        return [rate for part in settings for rate in _rates(part)]
    if not is_dataclass(settings) or isinstance(settings, type):
        return []
    schedule = getattr(settings, "schedule", None)
    here = [_rate(schedule, r, s) for r in _LOOKED for s in _LOOKED] if callable(schedule) else []
    return here + [rate for f in fields(settings) for rate in _rates(getattr(settings, f.name))]


def _rate(schedule: Callable[[int, int], float], round: int, step: int) -> float:
    try:
        return float(schedule(round, step))
    except Exception:  # a list of rates ends somewhere
        return float("nan")


def _probe(task: Task, federation: Federation, initial: Params) -> tuple[dict[str, Tensor], float]:
    x, y, _ = federation.some_rows(_ROWS)
    moved = {
        name: t + _SHIFT * torch.cos(torch.arange(1, t.numel() + 1, dtype=t.dtype)).reshape(t.shape)
        for name, t in initial.items()
    }
    try:
        with torch.no_grad():
            start = task.sample_losses(task.outputs(initial, x), y)
            outputs = task.outputs(moved, x)
            losses = task.sample_losses(outputs, y)
    except (RuntimeError, ValueError, LookupError) as error:  # a private run's check has seen no values
        raise TaskError(
            f"The model cannot take the values of these clients: {said(error)}. Correct one of them."
        ) from None
    return {"outputs": outputs.contiguous(), "losses": losses.contiguous()}, float(start.mean())


def _close(mine: Tensor, kept: Tensor | None) -> bool:
    if kept is None or kept.shape != mine.shape or kept.dtype != mine.dtype:
        return False
    size = float(torch.nan_to_num(mine).abs().max()) if mine.numel() else 0.0
    return torch.allclose(mine, kept, rtol=_TOLERANCE, atol=_TOLERANCE * size, equal_nan=True)


def _bytes(tree: Mapping[Any, Any]) -> Iterator[Any]:
    """Names, types, shapes and contents, for `digest`."""
    for name, value in flatten(tree).items():
        if isinstance(value, Tensor):
            yield f"{name} {value.dtype} {tuple(value.shape)}"
            value = value.detach()
            if 0 in value.stride():  # numbers that are repeated and in memory once
                once = value[tuple(slice(1 if step == 0 else None) for step in value.stride())]
                value = once.clone(memory_format=torch.contiguous_format)
            yield value.contiguous().reshape(-1).view(torch.uint8).numpy()
        elif hasattr(value, "tobytes"):
            yield f"{name} {value.dtype} {value.shape}"
            yield value.tobytes()
        else:
            yield f"{name} {value!r}"
