"""What voids a private run's receipt before the run starts, and what its user declares public.

A receipt is valid because every part of the run is known to hold nobody's data. The package's own algorithms, networks,
channels and samplers with plain settings are. Anything else may have seen clients' rows: a network with weights, an array
among the settings, a class of the user's, a callback. It voids the receipt, unless the user states with
`coterie.privacy.public(…)` that it does not depend on anybody's data; the receipt lists what was declared so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from coterie.algorithms import ALGORITHMS
from coterie.data.federation import Federation
from coterie.engines import ENGINES
from coterie.exchange.channels import CHANNELS
from coterie.learning.standardised import Rescaled
from coterie.learning.task import Task
from coterie.privacy.taint import Released
from coterie.training.tensorboard import TensorBoard
from coterie.tree import leaves

_LOOKED: WeakKeyDictionary[Federation, str] = WeakKeyDictionary()
_UNKNOWN = "unaccounted: {} may hold clients' data; wrap {} in privacy.public(…) if it does not"


@dataclass(frozen=True)
class Declared:
    """Which parts of a run the user declared public, by name, and what voids its receipt all the same."""

    parts: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()


def opened(**given: Any) -> tuple[dict[str, Any], Declared]:
    """The parts of a run without their history; lists are opened item by item."""
    plain: dict[str, Any] = {}
    parts: list[str] = []
    doubts: list[str] = []
    for name, value in given.items():
        if isinstance(value, Released):
            parts.append(f"the {name}")
            doubts += value.taint
            value = value.value
        elif isinstance(value, list | tuple):
            wrapped = [v for v in value if isinstance(v, Released)]
            parts += [f"the {name.removesuffix('s')} {_name(v.value)}" for v in wrapped]
            doubts += [reason for v in wrapped for reason in v.taint]
            value = [v.value if isinstance(v, Released) else v for v in value]
        plain[name] = value
    return plain, Declared(tuple(dict.fromkeys(parts)), tuple(doubts))


def looked_at(federation: Federation, how: str) -> None:
    """Remember that settings may have been chosen on these clear rows."""
    _LOOKED[federation] = how


def doubts(run: Any) -> Iterator[str]:
    """Why a run cannot earn a receipt, for every part that its user has not declared public."""
    declared = run.declared
    yield from declared.doubts
    if "the algorithm" not in declared.parts:
        yield from _of_algorithm(run.algorithm)
        if run.federation in _LOOKED:
            yield (
                f"unaccounted: {_LOOKED[run.federation]} was called on these clients' clear rows before, and settings may "
                "come from it; wrap the algorithm in privacy.public(…) if they do not"
            )
    if "the task" not in declared.parts:
        yield from _of_task(run.task)
    for channel in run.channels:
        if type(channel) not in CHANNELS.values() and f"the channel {_name(channel)}" not in declared.parts:
            yield _UNKNOWN.format(f"the channel {_name(channel)}", "it")
    if type(run.engine) not in ENGINES.values() and not type(run.engine).__module__.startswith("coterie."):
        yield f"unaccounted: the engine {_name(run.engine)} is not one of this package's"


def of_callbacks(callbacks: Sequence[Any], declared: Declared) -> Iterator[str]:
    """A callback sees clear values, and may end the run or write into it."""
    for one in callbacks:
        known = type(one) is TensorBoard or {"the callbacks", f"the callback {_name(one)}"} & set(declared.parts)
        if not known:
            yield (
                f"unaccounted: the callback {_name(one)} sees clear values and may end the run by them; wrap it in "
                "privacy.public(…) if it decides nothing"
            )


def copied(state: Any) -> tuple[Any, list[torch.Tensor]]:
    """A server's state and copies of its tensors, to see whether somebody else than the algorithm changes it."""
    return state, [t.clone() for t in leaves(vars(state)) if isinstance(t, torch.Tensor)]


def unchanged(state: Any, before: tuple[Any, list[torch.Tensor]]) -> bool:
    """Whether the state is the one that was copied, bit for bit."""
    now = [t for t in leaves(vars(state)) if isinstance(t, torch.Tensor)]
    return state is before[0] and all(map(torch.equal, now, before[1]))


def _of_algorithm(algorithm: Any) -> Iterator[str]:
    if type(algorithm) not in ALGORITHMS.values():
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
    elif not _ours(value):
        yield path, _name(value)
    elif is_dataclass(value) and not isinstance(value, type):
        for f in fields(value):
            yield from _foreign(getattr(value, f.name), f"{path}.{f.name}")


def _foreign_items(values: Iterable[Any], path: str) -> Iterator[tuple[str, str]]:
    for i, part in enumerate(values):
        yield from _foreign(part, f"{path}[{i}]")


def public_ranges(task: Task) -> list[str]:
    """What a receipt says of a target that was scaled by a range which the user named."""
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
    if not _ours(model):
        for name in _weights_of_its_own(task):
            yield _UNKNOWN.format(f"the network's {name!r}, which does not follow from the run's seed,", "the task")
            return


def _weights_of_its_own(task: Task) -> Iterator[str]:
    """Tensors of a network that two seeds give alike, and that are not one number again and again."""
    one, two = (task.module(seed).state_dict() for seed in (11, 12))
    for name, t in one.items():
        if t.numel() and torch.equal(t, two[name]) and not bool((t == t.flatten()[0]).all()):
            yield name


def _ours(value: Any) -> bool:
    while isinstance(value, partial):
        value = value.func
    module = getattr(value, "__module__", None) if isinstance(value, type) or callable(value) else None
    module = module or type(value).__module__
    return str(module).split(".", 1)[0] == "coterie"


def _name(value: Any) -> str:
    while isinstance(value, partial):
        value = value.func
    return str(getattr(value, "__name__", type(value).__name__))
