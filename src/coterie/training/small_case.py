"""What an algorithm is tried on by the conformance checks, and how two of its runs are compared."""

from __future__ import annotations

import dataclasses
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from coterie.base.settings import with_setting
from coterie.base.tree import flatten
from coterie.data.federation import Federation
from coterie.learning.local_sgd import LocalSGD
from coterie.learning.task import Task
from coterie.training.result import Result
from coterie.training.run import fit

SIZES = (5, 9, 12, 12, 17, 30, 33, 40, 55, 8, 21, 64)  # ragged: several padded sizes
PAIR = (40, 64)  # for algorithms that work with exactly two clients
ROUNDS = 3
COHORT = 8
TOLERANCE = 2e-5  # float32: engines add in another order
FEW = LocalSGD(steps=3, lr=0.1, batch_size=8)


class Failed(AssertionError):
    """A demand that an algorithm does not meet."""


def demand(holds: Any, sentence: str) -> None:
    if not holds:
        raise Failed(sentence)


# ---- what is run -----------------------------------------------------------------------------------------------------


def small_federation(
    sizes: tuple[int, ...] = SIZES, kind: str = "classification", dtype: Any = "float32", ids: Any = None, seed: int = 0
) -> Federation:
    """Two true clusters with labels of their own; client i is in cluster i mod 2."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=(2, 4, 3))
    data, clusters = {}, {}
    for i, n in enumerate(sizes):
        name = f"c{i}" if ids is None else ids[i]
        x = rng.normal(size=(n, 4))
        scores = x @ truth[i % 2] + 0.3 * rng.normal(size=(n, 3))
        y = scores.argmax(1) if kind == "classification" else scores[:, 0]
        if kind == "classification":
            y[:2] = (0, 1)  # never one class only
        data[name], clusters[name] = (x, y), i % 2
    return Federation.from_arrays(data, clusters=clusters, seed=3, dtype=dtype)


tried_on = cache(small_federation)


def _network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def small_task() -> Task:
    return Task(_network, metric=("accuracy", "log_loss"))


TASK = small_task()
NUMBERS = Task(lambda: nn.Linear(4, 1), loss="mse", metric=("mse", "r2"))


def with_few_steps(algorithm: Any) -> Any:
    """The same algorithm with three local steps, where they can be set."""
    if not isinstance(getattr(algorithm, "local", None), LocalSGD):
        return algorithm
    return with_setting(algorithm, "local", FEW) or algorithm


@dataclasses.dataclass(frozen=True)
class Case:
    """An algorithm and what it is tried on."""

    algorithm: Any

    @property
    def pair(self) -> bool:
        return bool(self.algorithm.exactly == 2)

    @property
    def sizes(self) -> tuple[int, ...]:
        return PAIR if self.pair else SIZES

    @cached_property
    def federation(self) -> Federation:
        return tried_on(self.sizes).declare_public("classes", "kind")

    def some(self, count: int) -> int:
        """A cohort that the federation has."""
        return min(count, len(self.sizes))

    def run(self, rounds: int = ROUNDS, federation: Federation | None = None, task: Task = TASK, **how: Any) -> Result:
        return fit(self.algorithm, federation or self.federation, task, rounds=rounds, **{"alone": False} | how)


# ---- comparisons -----------------------------------------------------------------------------------------------------


def tensors(result: Result) -> dict[str, Tensor]:
    """Everything a run ends with: the server's state and every client's, in the clients' order."""
    live = result.evaluation
    row, values = live.env.states.packed()
    kept = {f"client/{k}": t[torch.from_numpy(row[row >= 0])] for k, t in flatten(values).items()}
    return of_server(result) | kept | {"personal/" + k: t for k, t in live.personal(live.everyone()).items()}


def of_server(result: Result) -> dict[str, Tensor]:
    return {k: t for k, t in flatten(vars(result.state)).items() if isinstance(t, Tensor)}


def close(a: Result, b: Result, tolerance: float = TOLERANCE) -> None:
    one, two = tensors(a), tensors(b)
    demand(one.keys() == two.keys(), "Two runs end with different entries.")
    for name in one:
        try:
            torch.testing.assert_close(one[name], two[name], rtol=tolerance, atol=tolerance)
        except AssertionError as error:
            raise Failed(f"{name}: {error}") from None


def same_course(a: Result, b: Result) -> None:
    """The same clients asked, the same bytes, the same groups."""
    columns = ["clients", "lost", "bytes_down", "bytes_up"]
    demand(a.history[columns].equals(b.history[columns]), "Two runs asked others, or sent other amounts.")
    demand(a.clusters.equals(b.clusters), "Two runs end with different groups.")


def identical(a: Result, b: Result) -> None:
    """Bit for bit."""
    one, two = tensors(a), tensors(b)
    demand(one.keys() == two.keys(), "Two runs end with different entries.")
    for name in one:
        demand(torch.equal(one[name], two[name]), f"{name} is not the same to the last bit.")
    drop = [c for c in a.history.columns if c == "seconds"]
    demand(a.history.drop(columns=drop).equals(b.history.drop(columns=drop)), "The histories differ.")
    demand(a.clusters.equals(b.clusters), "The groups differ.")
