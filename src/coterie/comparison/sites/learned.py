"""Learning algorithms in a study: the tuning, the training and the evidence of `learned.py`, from what clients tell.

Every client deals its own splits; of what it does not train on it tells sums of losses. The rows may be here, or at sites
(`flower/trials.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.base.text import listed
from coterie.comparison.learned import Note, Progress, Schedule, train_all, trained_comparison
from coterie.comparison.methods import Algorithms, parse
from coterie.comparison.result import Comparison
from coterie.comparison.trained_scores import OfSums, judged_by, overall_average, told_here, ways_of
from coterie.data.federation import Federation
from coterie.errors import ConfigError
from coterie.evidence.participation import Settings, participation
from coterie.training.result import Result

if TYPE_CHECKING:
    from coterie.flower.trials import Trials

TEST = 0.25  # of every client's rows, for each seed


FEWEST_TRAINED = 27  # a quarter of three quarters of so many rows are five


def with_learned(
    exact: Comparison, fed: Federation, algorithms: Algorithms, rounds: int | None, seeds: Sequence[int], engine: Any,
    trials: Trials | None = None, note: Note | None = None, progress: Progress | None = None,
) -> Comparison:  # fmt: skip
    """The comparison with these algorithms as further rows, trained on the clients that it is about."""
    some = fed.subset([c for c in fed.clients if str(c) in set(exact.table.columns)])
    few = [str(c) for c, n in zip(some.clients, some.n_samples, strict=True) if n < FEWEST_TRAINED]
    if few:
        raise ConfigError(
            f"Algorithms are trained at clients with {FEWEST_TRAINED} rows or more, so that no part that is held out has "
            f"fewer than 5; {listed(few[:3])} {'has' if len(few) == 1 else 'have'} fewer. "
            "Leave algorithms out, or these clients."
        )
    split: Any = cache(lambda seed: some.holdout(TEST, seed))

    def keep(name: str, result: Result) -> None:
        assert trials is not None
        result.scores()  # asked for now, while the sites have the run at hand
        trials.keep(name, result, judged_by(result.task, some.kind), overall_average(result))

    how = Schedule(rounds, seeds, engine, note, progress, None if trials is None else keep)
    runs = train_all(split, None, parse(algorithms), exact.metric, how)
    first = runs.results["local"][0]
    metrics = judged_by(first.task, some.kind)
    told = (
        told_here(runs.results) if trials is None else trials.told(split(seeds[0]), list(runs.results), seeds, metrics)
    )
    share = float(np.mean([r.federation.n_test / r.federation.n_samples for r in runs.results["local"]]))
    evidence = OfSums(told, ways_of(runs.results), share)
    made = trained_comparison(runs, seeds, redrawn=True, given=evidence)
    about = {k: v for k, v in made.about.items() if k != "labels"}
    overview = exact.overview.assign(test=first.federation.n_test)
    both = exact.joined(replace(made, overview=overview, about=about))
    return replace(both, audited=_audit(both, evidence))


def _audit(made: Comparison, evidence: OfSums) -> Any:
    """Who would stay with the best trained method, from the same sums."""
    if made.best is None:
        return None
    best, base = made.results[made.best], made.results["local"]
    metric, sign = made.metric, base[0].task.sign
    score, alone = (np.stack([r.scores()[metric].to_numpy() for r in runs]) for runs in (best, base))
    gains = evidence.gains(made.best, sign * (score - alone), np.stack([r.federation.n_test for r in base]), metric)
    return participation(
        score, alone, gains, made.table.columns, sign < 0, Settings(),
        metric=metric, method=type(best[0].evaluation.algorithm).__name__, results=(), alone=(), search=_refuse,
    )  # fmt: skip


def _refuse(*_: Any, **__: Any) -> Any:
    raise ConfigError(
        "Groups that would hold are found by training again on all rows, which a study does not. Pool rows."
    )
