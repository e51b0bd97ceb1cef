"""Runs that a result can ask for later: the clients trained alone, and the same run with other clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coterie.algorithms.local import Local
from coterie.data.federation import Federation
from coterie.engines.private import simulated
from coterie.learning.local_sgd import LocalSGD
from coterie.training import cohorts
from coterie.training.result import Result


def clients_alone(run: Any, alone: bool | Result) -> Callable[[], Result] | None:
    """How to get the result of training alone, when it is asked for."""
    if isinstance(alone, Result):
        return lambda: alone
    local = getattr(run.algorithm, "local", None)
    if not alone or not isinstance(local, LocalSGD):
        return None
    from coterie.training.run import fit

    options: dict[str, Any] = {"seed": run.seed, "engine": run.engine, "alone": False, "progress": False}
    rounds = run.done

    def train() -> Result:
        baseline = fit(Local(local), run.federation, run.task, rounds=rounds, **options)
        if not baseline.about["finished"]:  # a yardstick of fewer rounds would flatter every gain
            raise KeyboardInterrupt
        return baseline

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
