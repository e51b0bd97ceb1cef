"""A comparison as a TOML file, [data] and [compare]: the report shows it, and `coterie run settings.toml` runs it again."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from pydantic import Field

from coterie.cli.build import checked_sections
from coterie.cli.config import Section, loader
from coterie.cli.table_options import TableSource, names
from coterie.data.federation import Federation
from coterie.data.positions import positions_of
from coterie.data.tables import federation_from_frame, read_table
from coterie.datasets import rain_stations
from coterie.errors import ConfigError

_LISTS = ("features", "exclude")


class CompareSection(Section):
    algorithms: list[str] | None = None
    rounds: int | None = Field(None, ge=1)
    seeds: int = Field(3, ge=1)
    metric: str | None = None
    family: Literal["auto", "linear", "trees"] = "auto"
    across: Literal["rows", "sites"] = "rows"
    least: int | None = Field(None, ge=1)
    out: str = "coterie-report"


class CompareFile(Section):
    data: dict[str, Any]
    compare: CompareSection


def settings_of(source: TableSource, options: Mapping[str, Any], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a `coterie compare` as sections, without those that have their defaults."""
    data: dict[str, Any] = {"path": str(source.table.resolve())}
    for f in fields(source):
        value = getattr(source, f.name)
        if f.name != "table" and (f.default is MISSING or value != f.default):
            data[f.name] = names(value) if f.name in _LISTS else value
    named = {"classes": source.named_classes(), "categories": source.named_categories()}
    data |= {name: values for name, values in named.items() if values is not None}
    usual = inspect.signature(federation_from_frame).parameters
    data |= {k: v for k, v in options.items() if v is not None and v != usual[k].default}
    known = {name: chosen.get(name) for name in CompareSection.model_fields if name != "out"}
    return {"data": data, "compare": {k: v for k, v in known.items() if v not in (None, "auto", "rows")}}


def parse(table: Mapping[str, Any], folder: Path) -> tuple[CompareSection, Callable[[int], Federation]]:
    """The checked [compare], and a function seed → Federation."""
    section = checked_sections(table, CompareFile, CompareFile.model_fields, ("data",)).compare
    loader(table["data"], folder)  # refuse what can be refused before data are read

    @cache
    def split(seed: int) -> Federation:
        data = loader(table["data"], folder, seed)()
        data = data[0] if isinstance(data, tuple) else data  # generators also return the truth
        if not isinstance(data, Federation):
            raise ConfigError(f"data.name {table['data'].get('name')!r} gives no clients to compare. Choose another.")
        return data

    return section, split


def positions(data: Mapping[str, Any], folder: Path) -> pd.DataFrame | None:
    """The positions of the clients of [data], if they are known."""
    if "path" not in data:
        return rain_stations()[["lon", "lat"]] if data["name"] == "rain" else None
    reading = {k: data[k] for k in ("delimiter", "decimal", "encoding") if k in data}
    return positions_of(read_table(folder / data["path"], client=data["client"], **reading), data["client"])
