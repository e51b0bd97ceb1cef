"""Runs that a result can make later: the clients trained alone, and the same run with other clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from coterie.data.federation import Federation
from coterie.engines.private import simulated
from coterie.learning.local_steps import LocalSteps
from coterie.learning.task import Task
from coterie.training import cohorts
from coterie.training.result import Result
from coterie.training.yardstick import Alone, check


@dataclass(frozen=True)
class Given:
    """A result that exists already."""

    result: Result

    def __call__(self, *_: Any) -> Result:
        return self.result


def clients_alone(run: Any, alone: bool | str | Result) -> Callable[..., Result] | None:
    """How to get the result of training alone when it is needed.

    Under cohorts a lone client takes as many rounds as a participant does on average."""
    if isinstance(alone, Result):
        return Given(alone)
    local = getattr(run.algorithm, "local", None)
    if not alone or not isinstance(local, LocalSteps):
        return None
    part = sum(row["clients"] for row in run.history) / max(len(run.federation), 1)
    rounds = min(run.done, max(round(part), 1)) if run.history else run.done
    usual = check(alone) if isinstance(alone, str) else "tuned"
    return Alone(local, run.federation, run.task, rounds, run.seed, run.engine, usual)


@dataclass(frozen=True)
class SameRun:
    """Makes the same run with other clients when it is called: same settings, seed and rounds, and no training alone."""

    algorithm: Any
    task: Task
    sampler: Any
    rounds: int
    start: Any
    options: dict[str, Any]

    def __call__(self, federation: Federation) -> Result:
        from coterie.training.run import fit

        sampler = self.sampler
        if isinstance(sampler, cohorts.FixedSize):
            sampler = cohorts.FixedSize(min(sampler.size, len(federation)))
        again = fit(
            self.algorithm, federation, self.task, rounds=self.rounds, cohort=sampler, alone=False, progress=False,
            start=self.start, **self.options,
        )  # fmt: skip
        if not again.about["finished"]:
            raise KeyboardInterrupt
        return again


def same_run(run: Any) -> Callable[[Federation], Result]:
    start = run.start if isinstance(run.start, dict) else None  # a server state belongs to the clients it was made for
    options: dict[str, Any] = {"seed": run.seed, "channels": run.channels, "engine": run.engine}
    if run.privacy is not None:
        options["privacy"] = simulated(run.privacy)
    return SameRun(run.algorithm, run.task, run.sampler, run.done, start, options)
