"""The pieces a report page is made of: tables, charts with their data, sections. The templates escape every value."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Iterable, Sized
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from coterie.base.text import cut, harmless, slug


def _finalize(value: Any) -> Any:
    """The change that the templates make to every value before they escape it."""
    return harmless(value) if isinstance(value, str) and not isinstance(value, Markup) else value


_TEMPLATES = Environment(loader=PackageLoader("coterie.report"), autoescape=True, trim_blocks=True, finalize=_finalize)
_NUMBERS = count()  # charts of all pages: an id is used once


@dataclass(frozen=True)
class Cell:
    """One cell of a table: its text, perhaps a gain below it, a kind (for its colour) and a title (shown on hovering)."""

    text: str
    gain: str = ""
    kind: str = ""
    title: str = ""
    code: bool = False


@dataclass(frozen=True)
class Table:
    """kind "text": cells are words. `find` names the search field that filters the rows (by their first cell)."""

    head: list[str]
    rows: list[list[Cell]]
    kind: str = ""
    caption: str = ""
    find: str = ""


@dataclass(frozen=True)
class Chart:
    """A Plotly figure, a sentence for readers who cannot see it, and its data, to download as CSV."""

    figure: go.Figure
    alt: str
    data: pd.DataFrame
    name: str
    title: str = ""
    number: int = field(default_factory=lambda: next(_NUMBERS))

    @property
    def id(self) -> str:
        return f"chart-{self.name}-{self.number}"

    @property
    def figure_json(self) -> Markup:
        return as_json(self.figure.to_plotly_json())

    @property
    def data_json(self) -> Markup:
        return as_json(columns(self.data))


def columns(data: pd.DataFrame) -> dict[str, Any]:
    """A table as {"columns": names, "values": a list per column}: what the page's script makes CSV of."""
    return {
        "columns": [str(c) for c in data.columns],
        "values": [data.iloc[:, j].tolist() for j in range(data.shape[1])],
    }


def as_json(value: Any) -> Markup:
    """JSON for a script element: no tag can begin in it, missing numbers are null, numbers have six digits."""
    text = json.dumps(_plain(value), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for sign, code in (
        ("&", "\\u0026"),
        ("<", "\\u003c"),
        (">", "\\u003e"),
        ("\u2028", "\\u2028"),
        ("\u2029", "\\u2029"),
    ):
        text = text.replace(sign, code)
    return Markup(text)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, np.ndarray, pd.Series, pd.Index)):
        return [_plain(v) for v in value]
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value if value is None or isinstance(value, str) else str(value)


def label(name: object, most: int = 24) -> str:
    """A name inside a figure: short, and its tags and entities are text (Plotly reads some HTML)."""
    return html.escape(cut(name, most), quote=False)


def labels(names: Iterable[object]) -> dict[str, str]:
    """A different label for every name, so that long names that are equal when cut stay apart on an axis."""
    found: dict[str, str] = {}
    for name in dict.fromkeys(map(str, names)):
        alike = [label(name), *(f"{label(name)} ({n})" for n in range(2, len(found) + 2))]
        found[name] = next(short for short in alike if short not in found.values())
    return found


def with_code(text: str) -> Markup:
    """Our own words, with what stands between backticks as code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", html.escape(text)))


def render(template: str, **values: Any) -> Markup:
    return Markup(_TEMPLATES.get_template(f"{template}.html").render(values))


def section(title: str, note: str = "", **parts: Any) -> Markup:
    """A section of the page with any of text, charts, table, items and body (HTML made by `render`)."""
    return render("section", id=slug(title), title=title, note=note, **parts)


def row(*values: object) -> list[Cell]:
    return [Cell(str(value)) for value in values]


def how_many(shown: Sized, there: Sized) -> str:
    """The title of a folded table of clients, which may be only the first of them."""
    some = len(shown) < len(there)
    return f"The first {len(shown):,} of {len(there):,} clients" if some else f"Table of {len(there):,} clients"
