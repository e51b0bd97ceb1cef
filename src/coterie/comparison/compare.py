"""compare: alone, together, shrunk or in groups; who gains, who loses, and what to do.

For a table the candidates are exact (`decision`): solved to convergence, cross-validated inside every client, in seconds.
Learning algorithms join by name or object: tuned on validation rows (never on test rows), trained on every split and
compared with their own tuned `local`. They never change the recommendation for a table. For networks and images they make
it, by the rule of `judgement`. Only `compare` and `Comparison.coalition` train.
`private.py` adds a private candidate to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from numbers import Integral
from typing import TYPE_CHECKING, Any

import pandas as pd

from coterie.arguments import ANYTHING, CALLABLE, NONE, check_arguments, whole
from coterie.comparison.exact import exact_comparison
from coterie.comparison.methods import DEFAULT, NAMES, Algorithms, parse
from coterie.comparison.result import Comparison
from coterie.data.federation import Federation
from coterie.decision.metrics import METRICS
from coterie.errors import ConfigError, DataError
from coterie.privacy.ledger import BudgetSpent
from coterie.text import suggest

if TYPE_CHECKING:
    from coterie.comparison.private import Private
    from coterie.learning.task import Task
    from coterie.privacy.settings import Privacy

Split = Callable[[int], Federation]
Note = Callable[[str, int], None]
Progress = Callable[[str, int, float], None]
_EXACT_SHARE = 0.3  # of the progress bar, when learning algorithms follow

__all__ = ["DEFAULT", "NAMES", "Comparison", "compare"]


def compare(
    federation: Federation | Split,
    task: Task | None = None,
    algorithms: Algorithms | None = None,
    rounds: int | None = None,
    seeds: int | Sequence[int] = 3,
    *,
    metric: str | None = None,
    engine: str | Any = "local",
    note: Note | None = None,
    progress: Progress | None = None,
    privacy: Privacy | None = None,
    private: Any = "finetuned",
    private_data: Federation | Split | None = None,
    target_range: tuple[float, float] | None = None,
) -> Comparison:
    """Compare ways to learn on the same clients and tell each what it gains over being alone.

    federation: the data, or a function `seed → Federation` that draws a new split for every seed (the exact candidates of a
    table deal their own folds, on the rows of the first). task: a network; without one a table is judged by exact models.
    algorithms: names (tuned on validation rows) or objects (used as they are), a mapping, or names in one text; None takes
    the exact candidates of a table, else local, fedavg, finetuned, ditto and ifca. rounds: None chooses them. seeds: repeats
    of the cross-validation, and splits of the learning algorithms. metric: what gains are measured in. note: called with
    (method, seed) before each run; progress: with (method, seed, share done).

    privacy: a budget. A candidate `private` joins: the method named by `private`, with settings fixed in advance; and one
    release of it with exact noise, `comparison.released`, whose `comparison.receipt` covers its shared model and nothing
    else (see `comparison/private.py`). private_data: the same rows prepared without statistics of other clients' rows
    (`Federation.from_frame(…, scaling="own")`); without it a table's receipt is not valid. target_range: public bounds of a
    number to predict.
    """
    check_arguments(
        locals(), federation=ANYTHING, rounds=whole(1) | NONE, note=CALLABLE | NONE, progress=CALLABLE | NONE
    )
    if privacy is None and not (private_data is None and target_range is None and isinstance(private, str)):
        raise ConfigError("private, private_data and target_range belong to a private candidate. Give privacy= also.")
    chosen = [int(s) for s in (range(int(seeds)) if isinstance(seeds, int | Integral) else seeds)]
    if not chosen:
        raise ConfigError(f"compare needs at least one seed; got seeds={seeds!r}.")
    if not isinstance(federation, Federation) and not callable(federation):
        raise DataError(
            f"compare takes a Federation, or a function from a seed to one; got {type(federation).__name__}. "
            "Build one with Federation.from_arrays or from_frame."
        )
    one = federation if isinstance(federation, Federation) else None
    first = one if one is not None else federation(chosen[0])  # type: ignore[operator]
    if first.y.ndim > 1 or first.weights is not None:
        raise DataError(
            "compare judges clients by rows with one target and one weight each; these have more. Train with fit, and "
            "compare results with fit_seeds."
        )
    is_table = task is None and first.x.ndim == 2 and len(first) > 1
    methods = None if algorithms is None and is_table else parse(DEFAULT if algorithms is None else algorithms)
    if (methods is not None or privacy is not None) and not first.n_test.any():
        raise DataError(
            "Trained methods are judged by test rows; these clients have none.",
            python="Split them, for example with test_fraction=0.25.",
            cli="Hold some out, for example with --test-fraction 0.25.",
        )
    candidate = None
    if privacy is not None:
        from coterie.comparison.private import NAME, ROUNDS, Private, private_method

        given = federation if private_data is None else private_data
        draw: Split = (lambda seed: given) if isinstance(given, Federation) else given
        candidate = Private(private_method(private), privacy, draw, rounds or ROUNDS, task, target_range)
        methods = {**(parse(["local"]) if methods is None else methods), NAME: candidate}
    if not is_table:
        assert methods is not None
        trained = _trained(federation, task, methods, rounds, chosen, metric, engine, note, progress, 0.0)
        return _with_release(trained, candidate, chosen[0], engine)
    _check_metric(first, metric)
    share = 1.0 if methods is None else _EXACT_SHARE
    if note is not None:
        note("exact models", chosen[0])
    exact = exact_comparison(first, chosen, metric, _part(progress, chosen[0], share))
    if methods is None:
        return exact
    extra = _trained(federation, None, methods, rounds, chosen, exact.metric, engine, note, progress, share)
    return _with_release(_joined(exact, extra), candidate, chosen[0], engine)


def _with_release(comparison: Comparison, candidate: Private | None, seed: int, engine: Any) -> Comparison:
    """The comparison with the one run of the private candidate that may be given out."""
    if candidate is None:
        return comparison
    try:
        return replace(comparison, released=candidate.release(seed, comparison.metric, engine))
    except BudgetSpent as error:
        return replace(comparison, warnings=(*comparison.warnings, f"nothing private was released: {error}"))


def _check_metric(federation: Federation, metric: str | None) -> None:
    known = METRICS[federation.kind]
    if metric is None or metric in known:
        return
    if any(metric in others for others in METRICS.values()):
        raise ConfigError(f"The metric {metric!r} does not fit {federation.kind}. Choose one of {', '.join(known)}.")
    raise ConfigError(f"There is no metric {metric!r}. {suggest(metric, known)}")


def _part(progress: Progress | None, seed: int, share: float) -> Callable[[int, int], None] | None:
    if progress is None:
        return None
    return lambda done, total: progress("exact models", seed, share * done / total)


def _trained(
    federation: Federation | Split,
    task: Task | None,
    methods: dict[str, Any],
    rounds: int | None,
    seeds: list[int],
    metric: str | None,
    engine: Any,
    note: Note | None,
    progress: Progress | None,
    done: float,
) -> Comparison:
    from coterie.comparison.learned import Schedule, train_all, trained_comparison

    redrawn = not isinstance(federation, Federation)
    split: Split = (lambda seed: federation) if isinstance(federation, Federation) else federation
    tell: Progress | None = None
    if progress is not None:
        tell = lambda name, seed, share: progress(name, seed, done + (1 - done) * share)  # noqa: E731
    runs = train_all(split, task, methods, metric, Schedule(rounds, seeds, engine, note, tell))
    return trained_comparison(runs, seeds, redrawn=redrawn)


def _joined(exact: Comparison, extra: Comparison) -> Comparison:
    """The exact comparison with learning algorithms as further rows; its recommendation stays."""
    names = ("table", "gains", "errors", "half_widths", "marks", "clusters")
    rows = {n: pd.concat([getattr(exact, n), getattr(extra, n)]).rename_axis("method") for n in names}
    both = {n: pd.concat([getattr(exact, n), getattr(extra, n)], ignore_index=True) for n in ("scores", "settings")}
    return replace(
        exact,
        **rows,
        **both,
        curves=extra.curves,
        overview=extra.overview,
        about={**extra.about, **exact.about, "model": extra.about["model"]}
        | {"new_split_each_seed": extra.about["new_split_each_seed"]},
        results=extra.results,
        judgement=extra.judgement,
        failed=extra.failed,
        warnings=(*exact.warnings, *extra.warnings),
        regrouped=exact.regrouped | extra.regrouped,
    )
