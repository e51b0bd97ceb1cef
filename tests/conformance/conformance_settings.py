"""The settings in which every algorithm of the registry is compared between engines, and the comparison itself.

Shared by the conformance suite, the tests of engines in other processes, and `tools/conformance.py`, which writes the table
of the documentation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import coterie as ct
from coterie.algorithms import ALGORITHMS
from coterie.base.tree import flatten

VARIANTS: dict[str, Callable[[], Any]] = {  # the same algorithms in a form that asks and starts otherwise
    "ifca, robust": lambda: ct.IFCA(clusters=2, aggregate=ct.robust.GeometricMedian()),
    "hypcluster, robust": lambda: ct.HypCluster(clusters=2, aggregate=ct.robust.Median()),
}
NAMES = (*sorted(ALGORITHMS), *VARIANTS)
INDIVIDUAL = {name for name, kind in ALGORITHMS.items() if kind.individual} | set(VARIANTS)  # no private form
PAIRS = frozenset(name for name, kind in ALGORITHMS.items() if kind.exactly == 2)  # they must refuse other numbers
PAIR = (40, 64)
ROUNDS = 3
TOLERANCE = 2e-5  # float32: engines add in another order
COHORT = 8


def configured(name: str) -> Any:
    """The algorithm as its own example, but with few local steps."""
    made = (VARIANTS.get(name) or ALGORITHMS[name].example)()
    few = ct.LocalSGD(steps=3, lr=0.1, batch_size=8)
    names = {f.name for f in dataclasses.fields(made)}
    if "local" in names and isinstance(made.local, ct.LocalSGD):
        return dataclasses.replace(made, local=few)
    return made


def small_task() -> ct.Task:
    return ct.Task(lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)), metric=("accuracy", "log_loss"))


def some(fed: ct.Federation, count: int) -> int:
    """A cohort that the federation has."""
    return min(count, len(fed))


def tensors(result: ct.Result) -> dict[str, torch.Tensor]:
    """Everything a run ends with: the server's state and every client's, in the clients' order."""
    live = result.evaluation
    row, values = live.env.states.packed()
    kept = {f"client/{k}": t[torch.from_numpy(row[row >= 0])] for k, t in flatten(values).items()}
    server = {k: t for k, t in flatten(vars(result.state)).items() if isinstance(t, torch.Tensor)}
    return server | kept | {"personal/" + k: t for k, t in live.personal(live.everyone()).items()}


def close(a: ct.Result, b: ct.Result, tolerance: float = TOLERANCE) -> None:
    one, two = tensors(a), tensors(b)
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(
            one[name], two[name], rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


def difference(a: ct.Result, b: ct.Result) -> float:
    """The largest difference between two runs' numbers, relative to the larger of 1 and the number."""
    one, two = tensors(a), tensors(b)
    assert one.keys() == two.keys()
    far = [
        ((t.double() - two[k].double()).abs() / t.double().abs().clamp(min=1)).max()
        for k, t in one.items()
        if t.numel()
    ]
    return float(torch.stack(far).nan_to_num(0.0).max())


def same_course(a: ct.Result, b: ct.Result) -> None:
    """The same clients asked, the same bytes, the same groups."""
    columns = ["clients", "lost", "bytes_down", "bytes_up"]
    assert a.history[columns].equals(b.history[columns])
    assert a.clusters.equals(b.clusters)
