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
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import pandas as pd

from coterie.base.arguments import ANYTHING, CALLABLE, NONE, check_arguments, shown, whole
from coterie.comparison.deploy.choice import Family
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
    family: str = "auto",
    across: Literal["rows", "sites"] = "rows",
    least: int | None = None,
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

    family: the models of a table that may be deployed: "linear", "trees" (boosted), or "auto" for both. `comparison.deploy`
    says what they are expected to lose; `comparison.proven` is what is shown about collaboration.

    across: "sites" asks every client for sums over its rows and nothing else, as a deployment does where the tables stay
    (linear models, and learning algorithms by name with one; a number or two classes). Folds are then dealt by each client
    alone, and no sum is of fewer than `least` rows (by default two more than columns), so that small clients have fewer
    folds, or are left out and named. There
    `privacy=Privacy(epsilon, delta, unit="row")` protects every row: each client tells one noisy release, and `receipts` has
    a receipt per client. Columns then need public bounds (`ranges={column: (low, high)}`; columns of arrays lie in
    [−1, 1]), and so does the target (`target_range`).
    """
    if federation is not None:
        warnings.warn("compare(federation=…) is now compare(data=…).", FutureWarning, stacklevel=2)
        data = federation
    checked = {"data": ANYTHING, "federation": ANYTHING, "rounds": whole(1) | NONE, "least": whole(1) | NONE}
    check_arguments(locals(), **checked, note=CALLABLE | NONE, progress=CALLABLE | NONE)
    if privacy is None and not (private_data is None and target_range is None and isinstance(private, str)):
        raise ConfigError("private, private_data and target_range belong to a private candidate. Also give privacy=.")
    chosen = [int(s) for s in (range(int(seeds)) if isinstance(seeds, int | Integral) else seeds)]
    if not chosen:
        raise ConfigError(f"compare needs at least one seed; got seeds={seeds!r}.")
    if not isinstance(family, str) or family not in get_args(Family):
        raise ConfigError(f"family must be 'auto', 'linear' or 'trees'; got {shown(family)}. Choose one of them.")
    if isinstance(data, type):
        raise ConfigError(f"compare needs a table, a Federation or a function of a seed; got {shown(data)}. Pass one.")
    split = (
        cache(data)
        if callable(data) and not reading
        else opened(data, reading, task is None and algorithms is None and across == "rows")
    )
    first = split(chosen[0])
    if not isinstance(first, Federation):
        raise ConfigError(f"compare needs a function that gives a Federation for a seed; it gave {shown(first)}.")
    plain = first.weights is None or ("weight" in first.beside and algorithms is None and first.kind == "regression")
    if first.y.ndim > 1 or not plain:
        raise DataError(
            "compare judges clients by one target per row, and weights rows of a table with a number to predict only. Leave "
            "out what is more, or train with fit and compare results with fit_seeds."
        )
    if not isinstance(across, str) or across not in ("rows", "sites"):
        raise ConfigError(f"across must be 'rows' or 'sites'; got {shown(across)}. Choose one of them.")
    if across == "sites":
        if not (task is None and family != "trees"):
            raise ConfigError("Across sites, linear models are compared; task and trees are not. Leave them out.")
        if privacy is not None and algorithms is not None:
            raise ConfigError(
                "Across sites a budget protects rows in the comparison of linear models; algorithms are trained without "
                "one. Leave one of the two out."
            )
        if privacy is not None and (privacy.unit == "client" or least is not None):
            raise ConfigError(
                "Across sites a budget protects rows, and noisy sums need no least number of rows; got "
                f"unit={privacy.unit!r} and least={least!r}. Pass Privacy(epsilon, delta, unit='row'), or name a column of "
                "units, and leave least out."
            )
        from coterie.comparison.sites.learned import with_learned
        from coterie.comparison.sites.result import across_sites, all_rows
        from coterie.training.run import engine_of

        asking, part = engine_of(engine, None), 1.0 if algorithms is None else _EXACT_SHARE
        try:
            if privacy is not None:
                from coterie.comparison.sites.noisy import across_sites_privately

                return across_sites_privately(first, privacy, chosen[0], asking, target_range)
            seen = across_sites(first, chosen, metric, least, asking, _part(progress, chosen[0], part))
            if algorithms is None:
                return seen
            return with_learned(seen, all_rows(first), algorithms, rounds, chosen, asking, None, note, progress)
        finally:
            if isinstance(engine, str):
                asking.close()
    if least is not None:
        raise ConfigError("least is the fewest rows of a sum that a site tells; it needs across='sites'. Add it.")
    is_table = task is None and first.x.ndim == 2 and len(first) > 1
    if first.judged_as and (algorithms is not None or privacy is not None or not is_table):
        raise ConfigError(
            f"A target of kind {first.judged_as} is for the exact models of a table; networks take kind regression. Leave "
            "algorithms, task and privacy out, or use kind regression."
        )
    methods = None if algorithms is None and is_table else parse(DEFAULT if algorithms is None else algorithms)
    own_split = first.labels.get("split")
    if own_split is not None and is_table and methods is None:
        raise DataError(
            f"Exact models are judged on folds that coterie deals over all rows, so the split in column {own_split!r} "
            "would be ignored. Leave split out, or name algorithms to train, which are judged by it."
        )
    if (methods is not None or privacy is not None) and not first.n_test.any():
        raise DataError(
            "Trained methods are judged by test rows; these clients have none.",
            python="Split them, for example with test_fraction=0.25.",
            cli="Hold some out, for example with --test-fraction 0.25.",
        )
    candidate = None
    if privacy is not None and privacy.unit != "client":
        raise ConfigError(
            f"A private candidate protects whole clients; got unit={privacy.unit!r}. Use across='sites' for a decision that "
            "protects rows, or train with fit."
        )
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
    exact = exact_comparison(first, chosen, metric, _part(progress, chosen[0], share), cast("Family", family))
    if isinstance(data, str | Path):
        exact = replace(exact, about=exact.about | {"table": Path(data).name})
    if methods is None:
        return exact
    extra = _trained(split, redrawn, None, methods, rounds, chosen, exact.metric, engine, note, progress, share)
    if own_split is not None:
        told = f"the split in column {own_split!r} holds for trained methods; exact models deal folds over all rows."
        exact = replace(exact, warnings=(*exact.warnings, told))
    return _with_release(exact.joined(extra), candidate, chosen[0], engine)


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
