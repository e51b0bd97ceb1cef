"""The command line. Every problem a user can solve is one red sentence and exit code 2, never a stack trace."""

from __future__ import annotations

import importlib.util
import io
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from enum import StrEnum
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import coterie
from coterie.base.text import harmless
from coterie.cli.comparing import (
    EXIT_CODES,
    budget_of,
    check_folder,
    comparison_of,
    print_comparison,
    print_json,
    private_options,
    protects_rows,
    row_options,
    write,
)
from coterie.cli.flower import app as flower_commands
from coterie.cli.hub import app as hub_commands
from coterie.cli.privacy import app as privacy_commands
from coterie.cli.reproduce import reproduce
from coterie.cli.screen import Screen
from coterie.cli.site import app as site_commands
from coterie.cli.table_options import TableSource, names, reads_table
from coterie.cli.usage import is_usage_error, usage_sentence
from coterie.cli.using import predict, update
from coterie.comparison.methods import NAMES
from coterie.data.table_targets import levels_told_apart
from coterie.errors import ConfigError, CoterieError, CoterieWarning

app = typer.Typer(
    name="coterie",
    help="Find out who should learn together, and let them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
console = Screen()
errors = Screen(stderr=True, soft_wrap=True, highlight=False)


class Family(StrEnum):
    auto = "auto"
    linear = "linear"
    trees = "trees"


class OneClass(StrEnum):
    error = "error"
    allow = "allow"


Out = Annotated[Path | None, typer.Option(help="Write tables and report.html to this folder (made if absent).")]
Seeds = Annotated[int, typer.Option(min=1, help="Repeats of the cross-validation, and splits of trained methods.")]
Rounds = Annotated[int | None, typer.Option(min=1, help="Rounds of training; by default chosen on validation rows.")]
Algorithms = Annotated[
    str | None,
    typer.Option(
        help=f"Learning algorithms to train in addition to the exact models, separated by commas: {', '.join(NAMES)}."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Metric = Annotated[str | None, typer.Option(help="What to measure gains in, e.g. accuracy, auc, log_loss, mse, r2.")]


def _private(help: str) -> Any:
    return typer.Option(help=help, rich_help_panel="Privacy")


Report = Annotated[bool, typer.Option("--report", help="Write report.html even without --out (to coterie-report).")]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"coterie {coterie.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and stop.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the stack trace of an error.")] = False,
) -> None:
    if debug:
        os.environ["COTERIE_DEBUG"] = "1"


@app.command(epilog=EXIT_CODES)
def demo(
    out: Annotated[Path, typer.Option(help="Folder for tables and report.html.")] = Path("coterie-demo"),
    seeds: Annotated[int, typer.Option(min=1, help="Repeats of the cross-validation.")] = 1,
) -> None:
    """360 rain gauges, who should learn with whom; and hospitals and states, where staying alone is right."""
    from coterie.cli.demo import show

    check_folder(out)
    with _stoppable("nothing was written"):
        show(console, out, seeds)


@app.command(epilog=EXIT_CODES)
@reads_table
def compare(
    source: TableSource,
    more: Annotated[
        list[Path] | None, typer.Argument(metavar="[TABLE…]", help="Further tables, with --sites.", show_default=False)
    ] = None,
    algorithms: Algorithms = None,
    rounds: Rounds = None,
    seeds: Seeds = 3,
    metric: Metric = None,
    cluster: Annotated[str | None, typer.Option(help="A column with each client's true group (for `oracle`).")] = None,
    one_class: Annotated[
        OneClass, typer.Option("--one-class", help="Whether a client may have only one class in its rows.")
    ] = OneClass.allow,
    test_fraction: Annotated[float, typer.Option(help="Share of rows held out when methods are trained.")] = 0.25,
    unit: Annotated[
        str | None, typer.Option(help="The column of units with several rows (patients, devices), or none.")
    ] = None,
    time: Annotated[
        str | None, typer.Option(help="The column of times: judge the future by models of the past; or none.")
    ] = None,
    weights: Annotated[str | None, typer.Option(help="The column that says how much a row counts.")] = None,
    exposure: Annotated[
        str | None, typer.Option(help="The column over which events were counted (with --kind count).")
    ] = None,
    family: Annotated[
        Family, typer.Option(help="Models that may be deployed: linear, boosted trees, or auto for both.")
    ] = Family.auto,
    folds_by_client: Annotated[
        bool,
        typer.Option("--folds-by-client", help="Ask clients for sums only, as where tables stay; linear models alone."),
    ] = False,
    sites: Annotated[
        bool, typer.Option("--sites", help="Each table (or each file of a folder) is a site that tells sums alone.")
    ] = False,
    least: Annotated[int | None, typer.Option(min=1, help="There: the fewest rows of a sum; else columns + 2.")] = None,
    out: Out = None,
    report: Report = False,
    json: Json = False,
    epsilon: Annotated[
        float | None, _private("ε of a private candidate; it joins the comparison, with a receipt.")
    ] = None,
    delta: Annotated[float | None, _private("δ of the private candidate, well below 1 / number of clients.")] = None,
    clip: Annotated[float, _private("The largest norm of one client's update; public.")] = 1.0,
    private: Annotated[str, _private("The method that is trained privately.")] = "finetuned",
    target_range: Annotated[str | None, _private("Public bounds of a number to predict: LOW,HIGH.")] = None,
    ledger: Annotated[Path | None, _private("A file that adds up all runs on the same clients.")] = None,
    privacy_unit: Annotated[
        str, _private("What --epsilon protects: client; with --sites, row or a column of units such as patient_id.")
    ] = "client",
    rows_per_unit: Annotated[int, _private("The most rows of such a unit; others are left out.")] = 8,
    ranges: Annotated[
        str | None,
        _private('Public bounds of columns of numbers, where rows are protected: "age: 0, 120; bmi: 10, 60".'),
    ] = None,
) -> None:
    """Your own table: should its clients learn alone, together, shrunk or in groups, and what does each gain?"""
    options: dict[str, Any] = {"test_fraction": test_fraction, "one_class": one_class.value, "cluster": cluster}
    of_rows = protects_rows(privacy_unit, folds_by_client or sites, epsilon)
    unit = privacy_unit if privacy_unit not in ("client", "row") else unit
    options |= {"unit": unit, "time": time, "weight": weights, "exposure": exposure}
    if report and out is None:
        out = Path("coterie-report")
    check_folder(out)
    if more and not sites:
        raise ConfigError(f"There are {1 + len(more)} tables. Give one, or each as a site with --sites.")
    if folds_by_client or sites:
        options |= {"test_fraction": 0.0, "dtype": "float64"}
    elif algorithms is None and epsilon is None:
        options |= {"max_categories": levels_told_apart(source.frame, source.target, source.kind and source.kind.value)}
    tables = {} if not sites else source.of_sites([source.table, *(more or [])])
    split = cache(lambda seed: source.federation(seed=seed, **options))
    _show_columns(split(0), errors if json else console)
    chosen: dict[str, Any] = {"algorithms": names(algorithms), "rounds": rounds, "seeds": seeds, "metric": metric}
    chosen |= {"family": family.value, "across": "sites" if folds_by_client or sites else "rows", "least": least}
    if of_rows:
        more_of = {"unit": privacy_unit, "rows_per_unit": rows_per_unit, "clip": clip, "ledger": ledger}
        split, told = row_options(source, options, budget_of(epsilon, delta, **more_of), ranges, target_range)
        chosen |= told
    else:
        chosen |= private_options(source, options, epsilon, delta, clip, private, target_range, ledger)
    from coterie.cli.rerun import settings_of
    from coterie.data.positions import positions_of

    where = positions_of(source.frame, source.client)
    rerun = None if of_rows else settings_of(source, options, chosen)
    if sites and not of_rows:
        from coterie.cli.consortium import tried_on

        with _stoppable("nothing was written"):
            comparison = tried_on(tables, source, split(0), options, chosen)
        _shown(replace(comparison, positions=where), None, out, json)
    else:
        _compared(split, chosen, None if folds_by_client or of_rows else rerun, where, out, json)


@app.command(deprecated=True, hidden=True)
@reads_table
def advise(source: TableSource, metric: Metric = None, json: Json = False) -> None:
    """The former name of `compare` for a short answer; it works for one more release."""
    errors.print("coterie advise is now coterie compare; the old name works for one more release.")
    compare(**{f.name: getattr(source, f.name) for f in fields(source)}, metric=metric, json=json)


@app.command()
def run(
    config: Annotated[Path, typer.Argument(help="A TOML file with \\[data], \\[task], \\[algorithm] and \\[run].")],
    out: Annotated[Path | None, typer.Option(help="Folder of the run; overrides \\[run] out.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run already in the folder.")] = False,
) -> None:
    """Train as a TOML file says; checkpoints, history, models and scores go to its folder.

    A file with \\[data] and \\[compare], such as the settings.toml of a report, runs that comparison again."""
    from coterie.cli.config import read_toml, start

    table = read_toml(config)
    if "compare" in table:
        _compare_again(table, config, out)
        return
    with _stoppable("the last checkpoint is kept"):
        _show(start(config, out=out, overwrite=overwrite))


@app.command()
def resume(folder: Annotated[Path, typer.Argument(help="The folder of an interrupted `coterie run`.")]) -> None:
    """Continue an interrupted run exactly where its last checkpoint stands."""
    from coterie.cli.config import proceed

    with _stoppable("the last checkpoint is kept"):
        _show(proceed(folder))


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN…", help="Folders of `coterie run`, `fit` or `compare`.")],
    out: Annotated[
        Path | None, typer.Option(help="The page; by default report.html, in RUN if there is one RUN.")
    ] = None,
) -> None:
    """Saved runs and seeds side by side on one page: scores, gains, groups, curves, bytes, receipts."""
    from coterie.report.runs_page import runs_table, write_runs

    page, found = write_runs(runs, out)
    console.print(runs_table(found))
    console.print(f"Report: {page}", soft_wrap=True, highlight=False)


@app.command()
def datasets() -> None:
    """The data sets, their licences, and which of their files are on this machine."""
    from coterie.datasets import catalogue
    from coterie.report.terminal import catalogue_table

    console.print(catalogue_table(catalogue()))
    console.print("Files are looked for in the folder named by COTERIE_DATA, then in the per-user cache.")


if importlib.util.find_spec("coterie.incentives") and importlib.util.find_spec("coterie.cli.incentives"):
    app.add_typer(importlib.import_module("coterie.cli.incentives").app, name="incentives")
app.add_typer(privacy_commands, name="privacy")
app.add_typer(hub_commands, name="hub")
app.add_typer(site_commands, name="site")
app.add_typer(flower_commands, name="flower")
app.command()(reproduce)
app.command(epilog=EXIT_CODES)(predict)
app.command(epilog=EXIT_CODES)(update)


# ---- shared ----------------------------------------------------------------------------------------------------------


def _show_columns(federation: Any, screen: Console) -> None:
    """Used, ignored and suspicious columns, and what was done to the rows, before anything is trained."""
    if federation.notes is None:
        return
    styles = {"suspicious": "yellow", "Note": "yellow", "ignored": "dim"}
    for line in federation.notes.lines(cli=True):
        style = styles.get(line.split(":")[0], "")
        screen.print(harmless(line), style=style, markup=False, highlight=False, soft_wrap=True)
    screen.print()


def _show(result: Any) -> None:
    from coterie.report.terminal import result_tables

    for part in result_tables(result):
        console.print(part)
    if not result.about["finished"]:
        raise typer.Exit(1 if "stopped" in result.about else 130)


def _compare_again(table: dict[str, Any], path: Path, out: Path | None) -> None:
    from coterie.cli.rerun import parse, positions

    section, split = parse(table, path.parent)
    folder = Path(section.out) if out is None else out
    check_folder(folder)
    _show_columns(split(0), console)
    _compared(split, section.model_dump(exclude={"out"}), table, positions(table["data"], path.parent), folder)


def _compared(split: Any, chosen: Any, rerun: Any, where: Any, out: Path | None, json: bool = False) -> None:
    """Compare, show the answer, and write it. `rerun` are the sections that run it again; `where` is where clients are."""
    screen = errors if json else console
    with _stoppable("nothing was written"):
        comparison, coalition = comparison_of(split, screen, **chosen)
    about = comparison.about | ({} if rerun is None else {"rerun": rerun})
    _shown(replace(comparison, about=about, positions=where), coalition, out, json)


def _shown(comparison: Any, coalition: Any, out: Path | None, json: bool) -> None:
    if json:
        print_json(comparison.to_json())
    else:
        print_comparison(console, comparison, coalition)
    if out is not None:
        write(errors if json else console, comparison, coalition, out)


@contextmanager
def _stoppable(state: str) -> Iterator[None]:
    """End after Ctrl-C with one sentence and the usual exit code."""
    try:
        yield
    except KeyboardInterrupt:
        errors.print(f"Stopped; {state}.", style="yellow")
        raise typer.Exit(130) from None


def main(arguments: list[str] | None = None) -> None:
    """The entry point; also what `python -m coterie` runs."""
    arguments = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):  # a terminal that knows ASCII alone gets ? for other characters
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    warnings.showwarning = partial(_show_warning, warnings.showwarning, set())
    debug = "--debug" in arguments or os.environ.get("COTERIE_DEBUG", "") not in ("", "0")
    if debug and "--debug" in arguments:  # wherever it stands
        arguments = ["--debug", *(a for a in arguments if a != "--debug")]
    try:
        code = app(args=arguments, prog_name="coterie", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except (KeyboardInterrupt, typer.Abort):
        errors.print("Stopped.", style="yellow")
        sys.exit(130)
    except Exception as error:
        if debug or not (isinstance(error, (CoterieError, OSError)) or is_usage_error(error)):
            raise
        told = _sentence(error, arguments)
        if told:  # a command without arguments shows its help instead
            errors.print(harmless(told), style="red", markup=False)
        sys.exit(2)


def _show_warning(usual: Any, seen: set[str], message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
    """A warning of ours is one sentence on one line, shown once; all others look as in Python."""
    if not issubclass(category, CoterieWarning):
        usual(message, category, *where, **more)
    elif str(message) not in seen:
        seen.add(str(message))
        errors.print(harmless(str(message)), style="yellow", markup=False, soft_wrap=True)


def _sentence(error: Exception, arguments: list[str]) -> str:
    """The error with advice that names options; a run's options are keys of its file, named as in Python."""
    if is_usage_error(error):
        return usage_sentence(error, arguments)
    if isinstance(error, OSError) and error.strerror:
        where = f" {error.filename}" if error.filename else ""
        return f"The file{where} cannot be used: {error.strerror}. Check the path and its permissions."
    by_file = next((a for a in arguments if not a.startswith("-")), "") in ("run", "resume")
    return error.cli if isinstance(error, CoterieError) and not by_file else str(error)
