"""`coterie predict` and `coterie update`: a saved model on new rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from coterie.base.text import harmless, number
from coterie.cli.screen import Screen
from coterie.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

    from coterie.comparison.deploy.model import TableModel

_SHOWN = 10
Model = Annotated[Path, typer.Argument(help="The folder model of a comparison's --out.", metavar="MODEL")]
Rows = Annotated[Path, typer.Argument(help="A CSV, Parquet or Excel file with the columns of training.", metavar="NEW")]
Delimiter = Annotated[str | None, typer.Option(help="The separator of columns; by default recognised.")]
Decimal = Annotated[str | None, typer.Option(help="The decimal sign, . or ,; by default recognised.")]
Encoding = Annotated[str | None, typer.Option(help="The encoding, such as utf-8 or cp1252; by default recognised.")]


def predict(
    model: Model,
    new: Rows,
    out: Annotated[Path | None, typer.Option(help="Write the predictions to this .csv or .parquet file.")] = None,
    level: Annotated[float, typer.Option(help="The share of rows whose target lies between low and high.")] = 0.9,
    delimiter: Delimiter = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
) -> None:
    """New rows: predictions with intervals, and what each rests on (own, group, population, covariates).

    For classes, low and high bound the chance that the predicted class is right."""
    console = Screen()
    if out is not None and out.suffix not in (".csv", ".parquet"):
        raise ConfigError(f"--out must end in .csv or .parquet; got {out.name}. Name a file of predictions.")
    used, frame = _opened(model, new, delimiter, decimal, encoding)
    made = used.table(frame, level)
    for told in used.told(frame):
        console.print(harmless(told), markup=False, highlight=False)
    if out is None:
        show(console, made)
    else:
        _write(made, out)
        console.print(f"{len(made):,} predictions: {out}", soft_wrap=True, highlight=False, markup=False)


def update(
    model: Model,
    new: Rows,
    out: Annotated[Path | None, typer.Option(help="Write the new model to this folder; by default to MODEL.")] = None,
    delimiter: Delimiter = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
) -> None:
    """New rows with their targets: the model learns from them, without the rows it was trained on."""
    from coterie.comparison.deploy.statistics import words

    console = Screen()
    used, frame = _opened(model, new, delimiter, decimal, encoding)
    again = used.update(frame)
    folder = again.save(model if out is None else out)
    console.print(words(used, again, len(frame)), markup=False, highlight=False)
    console.print(f"Model: {folder}", soft_wrap=True, highlight=False, markup=False)


def _opened(
    model: Path, new: Path, delimiter: str | None, decimal: str | None, encoding: str | None
) -> tuple[TableModel, pd.DataFrame]:
    from coterie.comparison.deploy.stored import load_model
    from coterie.data.reading import read_table

    used = load_model(model)
    return used, read_table(new, client=used.client, delimiter=delimiter, decimal=decimal, encoding=encoding)


def _write(made: pd.DataFrame, out: Path) -> None:
    from coterie.base.disk import write_text, writing
    from coterie.comparison.files import csv_text

    if out.suffix == ".csv":
        write_text(out, csv_text(made.set_index(made.columns[0])))
        return
    with writing(out) as partial:
        made.to_parquet(partial)


def show(console: Any, made: pd.DataFrame, title: str | None = None) -> None:
    """The first predictions as a table."""
    table = Table(box=None, header_style="bold", pad_edge=False, title=title, title_justify="left")
    for name in made.columns:
        table.add_column(harmless(str(name)), justify="left" if name in (made.columns[0], "basis") else "right")
    for values in made.head(_SHOWN).itertuples(index=False):
        table.add_row(*(number(v) if isinstance(v, float) else harmless(str(v)) for v in values))
    console.print(table)
    if len(made) > _SHOWN:
        console.print(f"The first {_SHOWN} of {len(made):,} predictions; write all with --out.", highlight=False)
