"""Clients' positions in a table: a longitude and a latitude that are the same in all rows of a client."""

from __future__ import annotations

from typing import Any

import pandas as pd

PAIRS = (("longitude", "latitude"), ("lon", "lat"), ("long", "lat"), ("lng", "lat"), ("easting", "northing"))


def positions_of(frame: pd.DataFrame, client: str) -> pd.DataFrame | None:
    """Two columns (across, up) by client, or None if they are missing, are not numbers, or differ within a client."""
    by_name: dict[str, Any] = {str(c).strip().lower(): c for c in frame.columns}
    for across, up in PAIRS:
        if across not in by_name or up not in by_name:
            continue
        columns = [by_name[across], by_name[up]]
        if not all(pd.api.types.is_numeric_dtype(frame[c]) for c in columns):
            continue
        grouped = frame.groupby(client, sort=False)[columns]
        if (grouped.nunique() > 1).to_numpy().any():
            continue
        at = grouped.first().dropna()
        return at.set_axis([str(c) for c in at.index], axis=0).rename_axis("client")
    return None
