"""Learning-rate schedules: frozen settings that give the factor of the learning rate in (round, step).

`round` counts the rounds of the run and `step` the steps of one call of `fit`, both from 0. Any function of the two will
do as well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from coterie.base.annotations import guarded
from coterie.base.arguments import Positive, Share

Over = Literal["rounds", "steps"]


def _at(over: Over, round: int, step: int) -> int:
    return round if over == "rounds" else step


@guarded
@dataclass(frozen=True)
class Cosine:
    """Half a cosine from 1 down to `floor` over `length` rounds (or steps), and `floor` from there on."""

    length: int
    floor: Share = 0.0
    over: Over = "rounds"

    def __call__(self, round: int, step: int) -> float:
        share = min(_at(self.over, round, step) / self.length, 1.0)
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * share)) / 2


@guarded
@dataclass(frozen=True)
class StepDecay:
    """Times `factor` after every `every` rounds (or steps)."""

    every: int
    factor: Positive = 0.1
    over: Over = "rounds"

    def __call__(self, round: int, step: int) -> float:
        return float(self.factor ** (_at(self.over, round, step) // self.every))


@guarded
@dataclass(frozen=True)
class Warmup:
    """1/length, 2/length, …, 1 over the first `length` rounds (or steps), times what `then` says (None: 1)."""

    length: int
    over: Over = "rounds"
    then: Cosine | StepDecay | None = None

    def __call__(self, round: int, step: int) -> float:
        later = 1.0 if self.then is None else self.then(round, step)
        return min((_at(self.over, round, step) + 1) / self.length, 1.0) * later
