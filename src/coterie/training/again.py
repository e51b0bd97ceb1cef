"""Runs that a result can ask for later: the clients trained alone, and the same run with other clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coterie.data.federation import Federation
from coterie.engines.private import simulated
from coterie.learning.local_steps import LocalSteps
from coterie.training import cohorts
from coterie.training.result import Result
from coterie.training.yardstick import Alone, check


def clients_alone(run: Any, alone: bool | str | Result) -> Callable[..., Result] | None:
    """How to get the result of training alone, when it is asked for.

    Under cohorts a lone client takes as many rounds as a participant does on average."""
    if isinstance(alone, Result):
        return lambda *_: alone
    local = getattr(run.algorithm, "local", None)
    if not alone or not isinstance(local, LocalSteps):
        return None
    part = sum(row["clients"] for row in run.history) / max(len(run.federation), 1)
    rounds = min(run.done, max(round(part), 1)) if run.history else run.done
    how = Alone(local, run.federation, run.task, rounds, run.seed, run.engine)
    usual = check(alone) if isinstance(alone, str) else "tuned"

    def train(yardstick: str | None = None, sample: int | None = None) -> Result:
        return (how if sample is None else how.sampled(sample)).train(check(yardstick or usual))

    return train


def same_run(run: Any) -> Callable[[Federation], Result]:
    """How to run the same with other clients: same settings, seed and rounds, nobody trained alone."""
    start = run.start if isinstance(run.start, dict) else None  # a server state is of the clients it was made for
    from coterie.training.run import fit

    rounds = run.done

    def train(federation: Federation) -> Result:
        sampler = run.sampler
        if isinstance(sampler, cohorts.FixedSize):
            sampler = cohorts.FixedSize(min(sampler.size, len(federation)))
        options: dict[str, Any] = {"seed": run.seed, "channels": run.channels, "engine": run.engine}
        if run.privacy is not None:
            options["privacy"] = simulated(run.privacy)
        again = fit(
            run.algorithm, federation, run.task, rounds=rounds, cohort=sampler, alone=False, progress=False,
            start=start, **options,
        )  # fmt: skip
        if not again.about["finished"]:
            raise KeyboardInterrupt
        return again

    return train
