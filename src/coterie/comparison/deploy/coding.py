"""Raw columns → the inputs of a model, as in training: the same fills, scales, categories and principal components."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from coterie.comparison.exact.levels import Blocks
from coterie.comparison.exact.plan import Projection
from coterie.data.coded_table import Floats
from coterie.data.preprocessing import OTHER, apply_preprocessing, category_texts
from coterie.errors import DataError


@dataclass(frozen=True)
class Coding:
    """``plan`` is `Federation.preprocessing`; without one the columns ``names`` hold numbers that are used as they are."""

    plan: pd.DataFrame | None
    names: tuple[str, ...]
    dtype: Literal["float32", "float64"]
    projection: Projection | None = None
    blocks: Blocks | None = None

    @property
    def sources(self) -> list[str]:
        """The raw columns that are needed."""
        if self.plan is None:
            return list(self.names)
        return list(dict.fromkeys(self.plan.loc[self.plan["kind"] != "dropped", "source"]))

    def inputs(self, frame: pd.DataFrame) -> Floats:
        """Model inputs (rows, columns) of raw rows."""
        there = {str(c) for c in frame.columns}
        missing = [c for c in self.sources if c not in there]
        if missing:
            some = ", ".join(map(repr, missing[:5])) + (", …" if len(missing) > 5 else "")
            raise DataError(f"The model needs the columns it was trained on; the table lacks {some}. Add them.")
        if self.plan is None:
            found = self._plain(frame)
        else:
            found = apply_preprocessing(frame, self.plan, dtype=self.dtype).astype(np.float64)
        found = found if self.blocks is None else self.blocks.coded(found)
        return found if self.projection is None else self.projection.columns(found)

    def _plain(self, frame: pd.DataFrame) -> Floats:
        columns = {str(c): c for c in frame.columns}
        try:
            values = frame[[columns[name] for name in self.names]].to_numpy(np.float64, na_value=np.nan)
        except (TypeError, ValueError):
            raise DataError(
                "The model's columns hold numbers; the table has text in one of them. Correct it."
            ) from None
        if not np.isfinite(values).all():
            raise DataError("The model's columns hold numbers; the table has missing or infinite values. Fill them in.")
        return np.asarray(values.astype(self.dtype), np.float64)

    def unseen_categories(self, frame: pd.DataFrame) -> dict[str, int]:
        """Column → the number of rows with a category that training did not see (or saw too rarely to tell apart)."""
        if self.plan is None:
            return {}
        found = {}
        columns = {str(c): c for c in frame.columns}
        hot = self.plan[self.plan["kind"] == "category"]
        for source, part in hot.groupby("source", sort=False):
            codes, texts = category_texts(frame[columns[str(source)]])
            known = np.isin(np.array(texts, dtype=object), [c for c in part["category"] if c != OTHER])
            count = int((~np.append(known, True)[codes]).sum())
            if count:
                found[str(source)] = count
        return found

    def to_json(self) -> dict[str, Any]:
        plan = self.plan
        rows = None if plan is None else plan.astype(object).where(plan.notna(), None).to_dict("list")
        about = {"plan": rows, "names": list(self.names), "dtype": self.dtype}
        return about | ({} if self.blocks is None else {"levels": True})

    @classmethod
    def from_json(cls, saved: dict[str, Any], projection: Projection | None) -> Coding:
        plan = saved["plan"]
        if plan is not None:
            plan = pd.DataFrame(plan).astype({"fill": "float64", "mean": "float64", "scale": "float64"})
        blocks = Blocks.of(plan) if saved.get("levels") else None
        return cls(plan, tuple(saved["names"]), saved["dtype"], projection, blocks)
