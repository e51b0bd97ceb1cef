"""The report of a comparison: one HTML file that needs no network.

The file contains the needed part of plotly.js, compressed (`plotly/`, made by `tools/plotly_bundle.py`); the page's script
unpacks it, draws the charts in the colours of the theme, searches, and turns the charts' data into CSV.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pandas as pd
from markupsafe import Markup

import coterie
from coterie.base.disk import write_text
from coterie.comparison.result import Comparison
from coterie.evidence.participation import Coalition
from coterie.report.parts import render
from coterie.report.sections import SECTIONS
from coterie.report.sections.staying import staying
from coterie.report.sections.summary import TITLE

BUNDLE = "plotly/plotly-cartesian.min.js.gz"


def write_report(
    comparison: Comparison,
    path: str | Path,
    coalition: Coalition | None = None,
    positions: pd.DataFrame | None = None,
) -> Path:
    """Write the page and return its path; pass `comparison.coalition()` to also show what remains when leavers leave.

    positions: where clients are, to draw the groups on a map: indexed by client, two columns (across and up, such as
    longitude and latitude)."""
    path = Path(path)
    shown = comparison if positions is None else replace(comparison, positions=positions)
    write_text(path, page(shown, coalition))
    return path


def page(comparison: Comparison, coalition: Coalition | None = None) -> str:
    """The whole page."""
    parts = [staying(comparison, coalition) if section is staying else section(comparison) for section in SECTIONS]
    return assemble(TITLE, parts, "Tables as CSV and Parquet are next to this page.")


def assemble(title: str, sections: Sequence[Markup], footer: str = "") -> str:
    """A page around some sections: style, script and the packed plotly.js."""
    room = files("coterie.report")
    script, packed = (room / "page.js").read_text("utf-8"), (room / BUNDLE).read_bytes()
    return render(
        "page",
        title=title,
        policy=Markup(policy(script.encode(), gzip.decompress(packed))),
        css=Markup((room / "page.css").read_text("utf-8")),
        js=Markup(script),
        plotly=Markup(base64.b64encode(packed).decode()),
        sections=[s for s in sections if s],
        version=coterie.__version__,
        footer=footer,
    )


def policy(*scripts: bytes) -> str:
    """The page's content-security policy: the browser runs only these scripts, and makes no requests.

    plotly.js writes styles while it draws, so styles are allowed; a style can run nothing and load nothing."""
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s).digest()).decode()}'" for s in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )
