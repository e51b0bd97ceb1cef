"""The settings in which every algorithm of the registry is compared between engines, and the comparison itself.

Shared by the conformance suite, the tests of engines in other processes, and `tools/conformance.py`, which writes the table
of the documentation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import coterie as ct
from coterie.algorithms import ALGORITHMS
from coterie.training.small_case import COHORT as COHORT
from coterie.training.small_case import PAIR as PAIR
from coterie.training.small_case import ROUNDS as ROUNDS
from coterie.training.small_case import TOLERANCE as TOLERANCE
from coterie.training.small_case import close as close
from coterie.training.small_case import same_course as same_course
from coterie.training.small_case import small_task as small_task
from coterie.training.small_case import tensors as tensors
from coterie.training.small_case import with_few_steps

VARIANTS: dict[str, Callable[[], Any]] = {  # the same algorithms in a form that asks and starts otherwise
    "ifca, robust": lambda: ct.IFCA(clusters=2, aggregate=ct.robust.GeometricMedian()),
    "hypcluster, robust": lambda: ct.HypCluster(clusters=2, aggregate=ct.robust.Median()),
}
NAMES = (*sorted(ALGORITHMS), *VARIANTS)
INDIVIDUAL = {name for name, kind in ALGORITHMS.items() if kind.individual} | set(VARIANTS)  # no private form
PAIRS = frozenset(name for name, kind in ALGORITHMS.items() if kind.exactly == 2)  # they must refuse other numbers

# their messages are those of families.py, as these have them; what is costly is slow for them
EXCHANGE_AS = {
    "fedala": "fedavg",
    "fedbabu": "fedbn",
    "fedper": "fedbn",
    "lgfedavg": "fedbn",
    "moon": "fedavg",
}


def configured(name: str) -> Any:
    """The algorithm as its own example, but with few local steps."""
    return with_few_steps((VARIANTS.get(name) or ALGORITHMS[name].example)())


def some(fed: ct.Federation, count: int) -> int:
    """A cohort that the federation has."""
    return min(count, len(fed))


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
