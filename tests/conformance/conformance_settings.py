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
from coterie.algorithms import ALGORITHMS, DefectionFree, EarlyStop
from coterie.tree import flatten

FACTORIES: dict[str, Callable[[], Any]] = {
    "ifca": lambda: ct.IFCA(clusters=2, stop=EarlyStop(2)),
    "oneshot": lambda: ct.OneShot(clusters=2, solve=ct.LocalSGD(steps=20, lr=0.1, batch_size=None)),
    "hypcluster": lambda: ct.HypCluster(clusters=2),
    "cfl": lambda: ct.CFL(quiet=100.0, loud=1e-6, first=1),
    "momentum_clustering": lambda: ct.MomentumClustering(clusters=2),
    "myopic_clustering": lambda: ct.MyopicClustering(clusters=2),
    "fedbn": lambda: ct.FedBN(keep=("0", "bias")),
    "defection_free": lambda: DefectionFree(low_steps=3, pretrain=(0, 2)),
    "ifca, robust": lambda: ct.IFCA(clusters=2, aggregate=ct.robust.GeometricMedian()),
    "hypcluster, robust": lambda: ct.HypCluster(clusters=2, aggregate=ct.robust.Median()),
}
VARIANTS = ("ifca, robust", "hypcluster, robust")  # the same algorithms in a form that asks and starts otherwise
NAMES = (*sorted(ALGORITHMS), *VARIANTS)
INDIVIDUAL = {"oneshot", "cfl", "federated_clustering", "momentum_clustering", "myopic_clustering", "defection_free"}
INDIVIDUAL |= {"mixture_prior", "discrete_prior", *VARIANTS}  # no private form: the server needs single replies
PAIRS = frozenset({"defection_free"})  # for exactly two clients: it gets federations of two, and must refuse others
PAIR = (40, 64)
ROUNDS = 3
TOLERANCE = 2e-5  # float32: engines add in another order
COHORT = 8


def configured(name: str) -> Any:
    """The algorithm with its defaults, but few local steps."""
    made = (FACTORIES.get(name) or ALGORITHMS[name])()
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
