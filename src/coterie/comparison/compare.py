"""compare: should clients learn alone, together, shrunk or in groups, and which of them gain or lose?

For a table the candidates are exact models (`exact/`): they are solved to convergence and cross-validated inside every
client, in seconds. Learning algorithms are added by name or as objects. They are tuned on validation rows (never on test
rows), trained on every split and compared with their own tuned `local`. They never change the recommendation for a table.
For networks and images the recommendation comes from them, by the same rule (`evidence/rule.py`). Only `compare` and
`Comparison.coalition` train. `private.py` adds a private candidate."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from coterie.arguments import ANYTHING, CALLABLE, NONE, check_arguments, whole
from coterie.comparison.from_decision import exact_comparison
from coterie.comparison.methods import DEFAULT, NAMES, Algorithms, parse
from coterie.comparison.result import Comparison
from coterie.data.federation import Federation
from coterie.data.opening import Split, opened
from coterie.errors import ConfigError, DataError
from coterie.privacy.ledger import BudgetSpent

if TYPE_CHECKING:
    from coterie.comparison.private import Private
    from coterie.learning.task import Task
    from coterie.privacy.settings import Privacy

Note = Callable[[str, int], None]
Progress = Callable[[str, int, float], None]
_EXACT_SHARE = 0.3  # share of the progress bar, when learning algorithms follow

__all__ = ["DEFAULT", "NAMES", "Comparison", "compare"]


def compare(
    data: str | Path | pd.DataFrame | Mapping[Any, Any] | Federation | Split | None = None,
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
    federation: Any = None,
    **reading: Any,
) -> Comparison:
    """Should these clients learn alone, together, shrunk towards all, or in groups, and what does each gain?

    data: a file (CSV, Parquet, Excel) or a DataFrame, with `client=` and `target=`, the names of two columns; arrays
    `{client: (X, y)}`; a `Federation`; or a function `seed → Federation`. Tables and arrays are split anew for every seed
    when algorithms are trained (the exact candidates of a table deal their own folds, on the rows of the first split).
    Further keywords say how to read a table (`drop_missing=True`, `exclude=[…]`; see `Federation.from_frame`) or arrays.

    task: a network; without one a table is judged by exact models.
    algorithms: names (tuned on validation rows) or objects (used as they are), a mapping, or names in one text; None takes
    the exact candidates of a table, else local, fedavg, finetuned, ditto and ifca. rounds: None chooses the number. seeds:
    repeats of the cross-validation, and splits of the learning algorithms. metric: gains are measured in it. note: called
    with (method, seed) before each run. progress: called with (method, seed, share done).

    privacy: a budget. It adds the candidate `private`: the method named by `private`, with settings fixed in advance. It is
    released once with exact noise as `comparison.released`; `comparison.receipt` covers its shared model and nothing else
    (see `comparison/private.py`). private_data: the same rows prepared without statistics of other clients' rows
    (`Federation.from_frame(…, scaling="own")`); without it a table's receipt is not valid. target_range: public bounds of a
    number to predict.
    """
    if federation is not None:
        warnings.warn("compare(federation=…) is now compare(data=…).", FutureWarning, stacklevel=2)
        data = federation
    checked = {"data": ANYTHING, "federation": ANYTHING, "rounds": whole(1) | NONE}
    check_arguments(locals(), **checked, note=CALLABLE | NONE, progress=CALLABLE | NONE)
    if privacy is None and not (private_data is None and target_range is None and isinstance(private, str)):
        raise ConfigError("private, private_data and target_range belong to a private candidate. Also give privacy=.")
    chosen = [int(s) for s in (range(int(seeds)) if isinstance(seeds, int | Integral) else seeds)]
    if not chosen:
        raise ConfigError(f"compare needs at least one seed; got seeds={seeds!r}.")
    split = cache(data) if callable(data) and not reading else opened(data, reading)
    first = split(chosen[0])
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

        draw = split if private_data is None else opened(private_data, {})
        candidate = Private(private_method(private), privacy, draw, rounds or ROUNDS, task, target_range)
        methods = {**(parse(["local"]) if methods is None else methods), NAME: candidate}
    redrawn = not isinstance(data, Federation)
    if not is_table:
        assert methods is not None
        trained = _trained(split, redrawn, task, methods, rounds, chosen, metric, engine, note, progress, 0.0)
        return _with_release(trained, candidate, chosen[0], engine)
    share = 1.0 if methods is None else _EXACT_SHARE
    if note is not None:
        note("exact models", chosen[0])
    exact = exact_comparison(first, chosen, metric, _part(progress, chosen[0], share))
    if methods is None:
        return exact
    extra = _trained(split, redrawn, None, methods, rounds, chosen, exact.metric, engine, note, progress, share)
    return _with_release(_joined(exact, extra), candidate, chosen[0], engine)


def _with_release(comparison: Comparison, candidate: Private | None, seed: int, engine: Any) -> Comparison:
    """The comparison with the one run of the private candidate that may be given out."""
    if candidate is None:
        return comparison
    try:
        return replace(comparison, released=candidate.release(seed, comparison.metric, engine))
    except BudgetSpent as error:
        return replace(comparison, warnings=(*comparison.warnings, f"nothing private was released: {error}"))


def _part(progress: Progress | None, seed: int, share: float) -> Callable[[int, int], None] | None:
    if progress is None:
        return None
    return lambda done, total: progress("exact models", seed, share * done / total)


def _trained(
    split: Split,
    redrawn: bool,
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

    tell: Progress | None = None
    if progress is not None:
        tell = lambda name, seed, share: progress(name, seed, done + (1 - done) * share)  # noqa: E731
    runs = train_all(split, task, methods, metric, Schedule(rounds, seeds, engine, note, tell))
    return trained_comparison(runs, seeds, redrawn=redrawn)


def _joined(exact: Comparison, extra: Comparison) -> Comparison:
    """The exact comparison with learning algorithms as further rows; its recommendation stays."""
    names = ("table", "gains", "errors", "half_widths", "marks", "clusters", "intervals")
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
