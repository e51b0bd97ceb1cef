"""The settings, as a file that runs the comparison again; and how far to trust it."""

from __future__ import annotations

from markupsafe import Markup

from coterie.base.text import listed, sentence_case
from coterie.comparison.result import Comparison
from coterie.evidence.gains import NO_SCORE
from coterie.report.parts import Cell, Table, render, row, section, with_code
from coterie.report.toml import toml_text

_NAMES = 12


def settings(c: Comparison) -> Markup:
    rows = [[*row(r.method, r.seed, r.rounds), Cell(str(r.algorithm), code=True)] for r in c.settings.itertuples()]
    note = "Exact models are solved to convergence."
    if c.results:
        note = f"Model: {c.about['model']}. Named methods got settings chosen on validation rows, part of the training rows."
    table = Table(["method", "seed", "rounds", "algorithm"], rows, "text", "Settings of every method")
    again = c.about.get("rerun")
    body, text = None, "The data were given in Python, so there is no file that runs this again."
    if again:
        text = "Save this as settings.toml; `coterie run settings.toml` runs the same comparison again."
        if c.receipt is not None:
            text += " The private candidate is left out of it, because running it again is another release."
        body = render("settings", toml=toml_text(again))
    return section("Settings", note, text=with_code(text), body=body, table=table, folded="What each method ran with")


def caveats(c: Comparison) -> Markup:
    items = [
        "The mean over clients decides, with an error that pays for choosing among the methods. Single clients are marked "
        "only after a correction for looking at many, so few are.",
        "Rows of a client are taken as exchangeable: time series and neighbours in space make errors look too small.",
        "This is a simulation on one machine: it says who would gain, not what leaves a client or how private that is.",
        *(f"{name} failed: {why}" for name, why in c.failed.items()),
        *(sentence_case(warning) for warning in c.warnings),
    ]
    if c.results:
        items.insert(
            1, "Trained methods are compared with training alone with the same model, each with its own settings."
        )
        few = [str(x) for x, n in c.overview["test"].items() if n < 30]
        if few:
            items.insert(1, f"Fewer than 30 test rows: {listed(few, _NAMES)}. Their scores are rough.")
    if (c.marks == NO_SCORE).to_numpy().any():
        unknown = c.marks.columns[(c.marks == NO_SCORE).any(axis=0)]
        items.insert(1, f"No score for {listed(unknown, _NAMES)}: too few rows, or only one class among them.")
    return section("How far to trust this", items=items)
