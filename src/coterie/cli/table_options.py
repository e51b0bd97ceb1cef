"""The options of every command that reads a table, written once.

A command decorated with `reads_table` takes one parameter `source: TableSource`; on the command line it has the fields of
`TableSource` instead:

    @app.command()
    @reads_table
    def compare(source: TableSource, seeds: Seeds = 3) -> None: ...
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from coterie.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

    from coterie.data.federation import Federation

_GROUP = "Table"


class Kind(StrEnum):
    classification = "classification"
    regression = "regression"
    counts = "count"
    amount = "amount"
    share = "share"
    robust = "robust"


def _option(help: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=_GROUP, **more)


@dataclass(frozen=True)
class TableSource:
    """A table on disk, and how to read it and choose its rows and columns."""

    table: Annotated[Path, typer.Argument(help="A CSV, Parquet or Excel file, one row per sample.", metavar="TABLE")]
    client: Annotated[str, _option("The column that says whose row it is.")]
    target: Annotated[str, _option("The column to predict.")]
    features: Annotated[str | None, _option("Use only these columns, separated by commas.")] = None
    exclude: Annotated[str | None, _option("Leave these columns out, separated by commas.")] = None
    kind: Annotated[Kind | None, _option("What the target is, instead of what is inferred.")] = None
    classes: Annotated[
        str | None, _option("The labels of the target, separated by commas; this declares them public.")
    ] = None
    categories: Annotated[
        str | None,
        _option('The columns of categories, "colour: red, green; size: S, L", or none: all others hold numbers.'),
    ] = None
    drop_missing: Annotated[bool, _option("Drop rows without client or target.", "--drop-missing")] = False
    min_rows: Annotated[int, _option("Leave out clients with fewer rows.", min=1)] = 1
    same_clients: Annotated[
        bool, _option("Merge clients that differ only by case or blank space.", "--same-clients")
    ] = False
    delimiter: Annotated[str | None, _option("The separator of columns; by default recognised.")] = None
    decimal: Annotated[str | None, _option("The decimal sign, . or ,; by default recognised.")] = None
    encoding: Annotated[str | None, _option("The encoding, such as utf-8 or cp1252; by default recognised.")] = None

    @cached_property
    def frame(self) -> pd.DataFrame:
        from coterie.data.reading import read_table

        return read_table(
            self.table, client=self.client, delimiter=self.delimiter, decimal=self.decimal, encoding=self.encoding
        )

    @cached_property
    def _cells(self) -> pd.DataFrame:
        """The table, with every cell read on its own."""
        from coterie.data.reading import read_table

        reading = {"delimiter": self.delimiter, "decimal": self.decimal, "encoding": self.encoding}
        return read_table(self.table, client=self.client, text=True, **reading)

    def of_sites(self, places: list[Path]) -> dict[str, pd.DataFrame]:
        """The tables of sites by name; from here on this source holds the rows of all of them."""
        from coterie.cli.consortium import files_of, together
        from coterie.data.reading import read_table

        reading: dict[str, Any] = {"delimiter": self.delimiter, "decimal": self.decimal, "encoding": self.encoding}
        tables = {p.stem: read_table(p, **reading) for p in files_of(places)}
        self.__dict__["frame"] = together(tables, self.client)
        if self.categories is not None:
            cells = {p.stem: read_table(p, text=True, **reading) for p in files_of(places)}
            self.__dict__["_cells"] = together(cells, self.client)
        return tables

    def federation(self, *, private: bool = False, **options: Any) -> Federation:
        """The table as a federation; options as of `federation_from_frame` (seed, test_fraction, one_class, …).

        For a `private` run classes, categories and kind, where they are given, are declared public."""
        from coterie.data.tables import federation_from_frame
        from coterie.privacy.taint import public

        kind = None if self.kind is None else self.kind.value
        told: dict[str, Any] = {
            "kind": kind,
            "classes": self.named_classes(private),
            "categories": self.named_categories(),
        }
        if private:
            told = {name: None if value is None else public(value) for name, value in told.items()}
        return federation_from_frame(
            self._cells if private and self.categories is not None else self.frame,
            client=self.client,
            target=self.target,
            features=names(self.features),
            exclude=names(self.exclude) or (),
            drop_missing=self.drop_missing,
            min_rows=self.min_rows,
            same_clients=self.same_clients,
            **told,
            **options,
        )

    def named_classes(self, private: bool = False) -> list[Any] | None:
        """The declared labels, as numbers where the column holds numbers. A private run must not read the column: there
        labels are matched as text, and are numbers if all of them are."""
        import pandas as pd

        told = names(self.classes)
        if told is None:
            return None
        digits = all(re.fullmatch("-?[0-9]+", t) for t in told)
        numeric = private or (self.target in self.frame and pd.api.types.is_numeric_dtype(self.frame[self.target]))
        return [int(t) for t in told] if digits and numeric else list(told)

    def named_categories(self) -> dict[str, list[str]] | None:
        """`colour: red, green; size: S, L` → {"colour": ["red", "green"], "size": ["S", "L"]}; `none` → {}."""
        if self.categories is None or self.categories.strip().lower() == "none":
            return None if self.categories is None else {}
        found = {}
        for part in filter(str.strip, self.categories.split(";")):
            column, colon, values = part.partition(":")
            if not colon or not names(values):
                raise ConfigError(
                    f'--categories is "column: value, value; column: value, value", or none; got {part.strip()!r}. '
                    "Name the values of every column of categories."
                )
            found[column.strip()] = names(values) or []
        return found


def reads_table(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter `source` of a command by the options of `TableSource`."""
    hints = get_type_hints(TableSource, include_extras=True)
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "source"]
    table = [
        inspect.Parameter(
            f.name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=hints[f.name],
            default=inspect.Parameter.empty if f.default is MISSING else f.default,
        )
        for f in fields(TableSource)
    ]

    @wraps(command)
    def wrapped(**given: Any) -> None:
        mine = {f.name: given.pop(f.name) for f in fields(TableSource)}
        command(TableSource(**mine), **given)

    parameters = [*table, *(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own)]
    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapped


def names(text: str | None) -> list[str] | None:
    """`a, b` → ["a", "b"]."""
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]
