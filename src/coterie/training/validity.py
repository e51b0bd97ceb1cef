"""What voids a private run's receipt before the run starts, and what its user declares public.

A receipt is valid because every part of the run is known to hold no client's data. This holds for the package's own
algorithms, networks, channels and samplers with plain settings. Anything else may have seen clients' rows: a network with
weights, an array among the settings, a class of the user's, a callback. It voids the receipt, unless the user states with
`coterie.privacy.public(…)` that it does not depend on anybody's data; the receipt lists these declarations. A declaration is
about one object: another callback of the same name, or another channel of the same class, needs its own.

One thing cannot be seen: a function that makes a network of plain layers may mix a little of clients' data into its weights.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from coterie.algorithms import ALGORITHMS
from coterie.base.tree import leaves
from coterie.data.federation import Federation
from coterie.exchange.channels import CHANNELS
from coterie.learning.standardised import Rescaled
from coterie.learning.task import Task
from coterie.privacy.settings import Privacy
from coterie.privacy.taint import Booking, Released, patched
from coterie.training.tensorboard import TensorBoard

_LOOKED: dict[Any, str] = {}
_MODELS = ("coterie.learning.models", "coterie.learning.big_models")
_FEW = 16  # so many plain numbers in a list are settings; more may be rows
_SEEDS = range(11, 19)
_APART = 0.5  # relative to their length: independent draws of weights are 1.4 lengths apart
_USUAL = (0.0, 0.25, 1.0)  # what layers start with where they draw nothing; 0.25 is that of nn.PReLU
_HOOKS = re.compile("_(for|back)ward(_pre)?_hooks")
_UNKNOWN = "unaccounted: {} may hold clients' data; wrap {} in privacy.public(…) if it does not"


@dataclass(frozen=True)
class Declared:
    """The parts of a run that the user declared public, by name, and what still voids its receipt."""

    parts: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    objects: tuple[Any, ...] = ()  # the wrapped items of lists
    bookings: tuple[Booking, ...] = ()  # of the releases that wrapped parts come from

    def has(self, item: Any) -> bool:
        """Whether this very item of a list was declared public."""
        return any(item is one for one in self.objects)


def opened(**given: Any) -> tuple[dict[str, Any], Declared]:
    """The parts of a run without their history; lists are opened item by item."""
    plain: dict[str, Any] = {}
    parts: list[str] = []
    wrapped: list[Released[Any]] = []
    objects: list[Any] = []
    for name, value in given.items():
        if isinstance(value, Released):
            parts.append(f"the {name}")
            wrapped.append(value)
            value = value.value
            objects += value if isinstance(value, list | tuple) else ()
        elif isinstance(value, list | tuple):
            items = [v for v in value if isinstance(v, Released)]
            parts += [f"the {name.removesuffix('s')} {_name(v.value)}" for v in items]
            wrapped += items
            objects += [v.value for v in items]
            value = [v.value if isinstance(v, Released) else v for v in value]
        plain[name] = value
    doubts = [reason for v in wrapped for reason in v.taint]
    bookings = [booking for v in wrapped for booking in v.bookings]
    return plain, Declared(tuple(dict.fromkeys(parts)), tuple(doubts), tuple(objects), tuple(bookings))


def looked_at(federation: Federation, how: str) -> None:
    """Remember that settings may have been chosen on these clear rows; they stay the same under other names and splits."""
    for trace in _traces(federation):
        _LOOKED[trace] = how


def _traces(federation: Federation) -> tuple[Any, Any]:
    """Keys that identify the same rows, in any federation made from this one and in one that was built again."""
    parts = torch.split(federation.x.flatten(1).contiguous().view(torch.uint8), 1 << 16)
    sums = tuple(torch.stack([part.sum(0, dtype=torch.int64) for part in parts]).sum(0).tolist())  # in whatever order
    return federation.origin, (federation.n_samples.tobytes(), federation.keys.tobytes(), sums)


def doubts(run: Any) -> Iterator[str]:
    """Why a run cannot earn a receipt, for every part that its user has not declared public."""
    declared = run.declared
    yield from declared.doubts
    yield from _of_classes(run)
    if "the algorithm" not in declared.parts:
        yield from _of_algorithm(run.algorithm)
        if _LOOKED and (how := next((_LOOKED[t] for t in _traces(run.federation) if t in _LOOKED), None)):
            yield (
                f"unaccounted: {how} was called on these clients' clear rows before, and settings may come from it; wrap "
                "the algorithm in privacy.public(…) if they do not"
            )
    if "the task" not in declared.parts:
        yield from _of_task(run.task)
    for channel in run.channels:
        if not _registered(channel, CHANNELS) and not declared.has(channel):
            yield _UNKNOWN.format(f"the channel {_name(channel)}", "it")
    if not _ours(type(run.engine)) or patched(run.engine):
        yield f"unaccounted: the engine {_name(run.engine)} is not one of this package's"
    yield from _of_callbacks(run.callbacks, declared)


def _of_classes(run: Any) -> Iterator[str]:
    """A subclass of what holds the rows, the budget or the task may do anything in their place."""
    fed, task = run.federation, run.task
    parts = [
        ("federation", fed, Federation),
        ("privacy", run.privacy, Privacy),
        ("cohort", run.sampler, type(run.sampler)),
    ]
    parts += [] if "the task" in run.declared.parts else [("task", task, Task)]
    parts += [
        (f"federation's {name}", t, Tensor) for name in ("x", "y", "weights") if (t := getattr(fed, name)) is not None
    ]
    for name, part, kind in parts:
        if type(part) is not kind or patched(part):
            yield f"unaccounted: the {name} must be a {kind.__name__} itself; got {_name(part)} with methods of the user's"


def _of_callbacks(callbacks: Sequence[Any], declared: Declared) -> Iterator[str]:
    """A callback sees clear values, and may end the run or write into it."""
    for one in callbacks:
        if type(one) is not TensorBoard and not declared.has(one):
            yield (
                f"unaccounted: the callback {_name(one)} sees clear values and may end the run by them; wrap it in "
                "privacy.public(…) if it decides nothing"
            )


def copied(state: Any) -> tuple[Any, list[torch.Tensor]]:
    """A server's state and copies of its tensors, to check that only the algorithm changes it."""
    return state, [t.clone() for t in leaves(vars(state)) if isinstance(t, torch.Tensor)]


def unchanged(state: Any, before: tuple[Any, list[torch.Tensor]]) -> bool:
    """Whether the state is the one that was copied, bit for bit."""
    now = [t for t in leaves(vars(state)) if isinstance(t, torch.Tensor)]
    return state is before[0] and all(map(torch.equal, now, before[1]))


def _of_algorithm(algorithm: Any) -> Iterator[str]:
    if not _registered(algorithm, ALGORITHMS):
        yield _UNKNOWN.format(f"the algorithm {_name(algorithm)}, which is not one of this package's,", "it")
        return
    for path, what in _foreign(algorithm, type(algorithm).__name__):
        yield _UNKNOWN.format(f"the setting {path} ({what})", "the algorithm")


def _foreign(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Settings that are neither plain values nor this package's own objects."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return
    if isinstance(value, torch.Tensor | np.ndarray):
        yield path, "an array"
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield from _foreign(part, f"{path}.{name}")
    elif isinstance(value, tuple | list | set | frozenset):
        yield from _foreign_items(value, path)
    elif not _ours(value) or patched(value):
        yield path, _name(value)
    elif is_dataclass(value) and not isinstance(value, type):
        for f in fields(value):
            yield from _foreign(getattr(value, f.name), f"{path}.{f.name}")


def _foreign_items(values: Sequence[Any] | Set[Any], path: str) -> Iterator[tuple[str, str]]:
    if len(values) > _FEW and all(isinstance(part, int | float) for part in values):
        yield path, f"{len(values)} numbers"
        return
    for i, part in enumerate(values):
        yield from _foreign(part, f"{path}[{i}]")


def public_ranges(task: Task) -> list[str]:
    """The receipt's line about a target that was scaled by a range from the user."""
    model = task.model
    if not isinstance(model, Rescaled) or model.public_range is None:
        return []
    low, high = model.public_range
    return [f"declared public by the user: the range of the target, {low:g} to {high:g}"]


def _of_task(task: Task) -> Iterator[str]:
    if not isinstance(task.loss, str) and not _ours(task.loss):
        yield _UNKNOWN.format(f"the loss {_name(task.loss)}, a function of the user's,", "the task")
    model = task.model
    while isinstance(model, Rescaled):
        if model.public_range is None:
            yield "unaccounted: the target was standardised by statistics of all clients' rows; name a public range"
        model = model.model
    if _our_model(model):
        return
    for part in task.module(0).modules():
        if not _plain_layer(part):
            yield _UNKNOWN.format(f"{_name(part)}, a network of the user's,", "the task")
            return
    for name in _weights_of_its_own(task):
        yield _UNKNOWN.format(f"the network's {name!r}, which does not follow from the run's seed,", "the task")
        return


def _our_model(model: Any) -> bool:
    """Whether a network comes from this package's own factories, made with nothing but sizes and names."""
    made = model
    while isinstance(made, partial):
        made = made.func
    return _ours(model) and getattr(made, "__module__", None) in _MODELS


def _plain_layer(part: nn.Module) -> bool:
    """Whether a layer does what its class in torch or coterie does: a hook, a function or a tensor that was put into it, and
    a class that was made on the way (of a traced or parametrised network) may hold anything."""
    kind = type(part)
    home = sys.modules.get(kind.__module__)
    if kind.__module__.split(".", 1)[0] not in ("torch", "coterie") or getattr(home, kind.__name__, None) is not kind:
        return False
    held = vars(part)
    if "forward" in held or any(v for name, v in held.items() if _HOOKS.fullmatch(name)):
        return False
    return all(not isinstance(v, Tensor) and (not isinstance(v, FunctionType) or _of_torch(v)) for v in held.values())


def _of_torch(function: FunctionType) -> bool:
    return function.__module__.split(".", 1)[0] == "torch" and function.__closure__ is None


def _is_size(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_size, value.values()))
    if isinstance(value, tuple | list):
        return all(map(_is_size, value))
    layer = isinstance(value, type) and issubclass(value, nn.Module) and value.__module__.startswith("torch.")
    return layer or value is None or isinstance(value, bool | int | float | str)


def _weights_of_its_own(task: Task) -> Iterator[str]:
    """Tensors of a network that are nearly equal for all seeds, and that do not just repeat one of the usual numbers."""
    first = _held(task, _SEEDS[0])
    alike = [n for n, t in first.items() if t.numel() and not any(bool((t == usual).all()) for usual in _USUAL)]
    for seed in _SEEDS[1:]:  # one number may be drawn nearly alike by chance, not eight times
        if not alike:
            return
        other = _held(task, seed)
        alike = [n for n in alike if _near(first[n].double(), other[n].double())]
    yield from alike


def _held(task: Task, seed: int) -> dict[str, Tensor]:
    module = task.module(seed)
    return module.state_dict() | dict(module.named_buffers())  # also those that are not saved


def _near(a: Tensor, b: Tensor) -> bool:
    return float((a - b).norm()) <= _APART * max(float(a.norm()), float(b.norm()))


def _registered(made: Any, registry: Mapping[str, type]) -> bool:
    """Whether the object's class is on this package's own list."""
    return type(made) in registry.values() and _ours(type(made)) and not patched(made)


def _ours(value: Any) -> bool:
    while isinstance(value, partial):
        if not all(map(_is_size, (value.args, value.keywords))):
            return False
        value = value.func
    module = getattr(value, "__module__", None) if isinstance(value, type) or callable(value) else None
    module = module or type(value).__module__
    return str(module).split(".", 1)[0] == "coterie"


def _name(value: Any) -> str:
    while isinstance(value, partial):
        value = value.func
    return str(getattr(value, "__name__", type(value).__name__))
