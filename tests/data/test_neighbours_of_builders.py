"""One client's rows change; nothing of the others may, in any way of building a federation.

Either every other client's arrays, the shapes and the receipt's dimension are bit-equal, or no receipt is valid.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import coterie as ct
from coterie.privacy import public

pytestmark = pytest.mark.filterwarnings("ignore::coterie.errors.CoterieWarning")
EXACT = ct.Privacy(3.0, 1e-6, clip=1.0)
STEP = ct.LocalSGD(steps=1, lr=0.1, batch_size=None)
CHANGES = (
    None, "class", "category", "rare", "float", "text", "missing", "no label", "more", "fewer", "huge", "infinite", "bool",
    "large", "outlier",
)  # fmt: skip
TOLD: dict[str, Any] = {"classes": public([0, 1]), "categories": public({"colour": ["red", "blue"]}), "scaling": "own"}


def frame(change: str | None) -> pd.DataFrame:
    """Five clients with eight rows; the rows of client 0 change."""
    parts = []
    for i in range(5):
        rng = np.random.default_rng(9 if i == 0 and change else i)
        n = {"more": 14, "fewer": 2}.get(change or "", 8) if i == 0 else 8
        colours = np.where(np.arange(n) % 3, "red", "blue")
        columns = {"size": rng.integers(0, 9, n), "dose": rng.normal(size=n), "colour": colours, "y": np.arange(n) % 2}
        one = pd.DataFrame({"who": f"c{i}"} | columns)
        if i == 0 and change:
            one = _changed(one, change)
        parts.append(one.astype({"size": object, "y": object}) if change == "bool" else one)
    return pd.concat(parts, ignore_index=True)


def _changed(one: pd.DataFrame, change: str) -> pd.DataFrame:
    values: dict[str, dict[str, Any]] = {
        "class": {"y": 2}, "category": {"colour": "green"}, "rare": {"size": 77}, "float": {"size": 2.5, "y": 0.5},
        "text": {"size": "many", "dose": "0,5", "y": "no"}, "missing": {"size": None, "dose": None, "colour": None},
        "no label": {"y": None}, "huge": {"dose": 1e300, "size": 10**15}, "infinite": {"dose": np.inf},
        "bool": {"size": True, "y": True}, "large": {"size": 2**62, "y": 2**53 + 1},
    }  # fmt: skip
    made = one.copy()
    if change == "outlier":
        made["dose"] = np.where(np.arange(len(made)) == len(made) // 2, 1e308, 5e-324)
    for column, value in values.get(change, {}).items():
        made[column] = pd.Series([value] * len(made), dtype="object").infer_objects()
    return made


def from_frame(change: str | None, folder: Path, **told: Any) -> ct.Federation:
    return ct.Federation.from_frame(frame(change), client="who", target="y", **told)


def from_csv(change: str | None, folder: Path, **told: Any) -> ct.Federation:
    path = folder / f"{change}.csv"
    frame(change).to_csv(path, index=False)
    return ct.Federation.from_csv(path, client="who", target="y", **told)


def from_folder(change: str | None, folder: Path, **told: Any) -> ct.Federation:
    place = folder / f"files of {change}"
    place.mkdir()
    for name, rows in frame(change).infer_objects().groupby("who"):
        rows.drop(columns="who").infer_objects().to_csv(place / f"{name}.csv", index=False)
    told = {"features": ["size", "dose", "colour"]} | told
    return ct.Federation.from_folder(place, target="y", **told)


def numbers(change: str | None) -> dict[str, Any]:
    """The same as arrays: what is no number becomes one as far as it goes."""
    data = {}
    for name, rows in frame(change).groupby("who"):
        x = rows[["size", "dose"]].apply(pd.to_numeric, errors="coerce").to_numpy()
        x = x.astype(float) if x.dtype == object else x
        if name == "c0" and change is None:
            x = x.astype(np.float32)
        y = rows["y"].infer_objects().to_numpy()
        data[str(name)] = (x.astype(np.int64) if change == "rare" and name == "c0" else x, y)
    return data


def from_arrays(change: str | None, folder: Path, **told: Any) -> ct.Federation:
    return ct.Federation.from_arrays(numbers(change), classes=told.get("classes"))


def from_npz(change: str | None, folder: Path, **told: Any) -> ct.Federation:
    place = folder / f"arrays of {change}"
    place.mkdir()
    for name, (x, y) in numbers(change).items():
        np.savez(place / f"{name}.npz", x=x, y=y.astype(str) if y.dtype == object else y)
    return ct.Federation.from_folder(place, classes=told.get("classes"))


def from_leaf(change: str | None, folder: Path, **told: Any) -> ct.Federation:
    place = folder / f"leaf of {change}"
    place.mkdir()
    users = {name: {"x": x.tolist(), "y": [_json(v) for v in y]} for name, (x, y) in numbers(change).items()}
    (place / "all.json").write_text(json.dumps({"user_data": users}))
    return ct.Federation.from_leaf(place, classes=told.get("classes"))


class Columns:
    """What offers columns by name, as a HuggingFace dataset does."""

    def __init__(self, **columns: Any) -> None:
        self.columns, self.column_names = columns, list(columns)

    def __getitem__(self, name: str) -> Any:
        return self.columns[name]


def from_datasets(change: str | None, folder: Path, **told: Any) -> ct.Federation:
    data = numbers(change)
    columns = {
        "who": [name for name, (x, _) in data.items() for _ in x],
        "x": [row for x, _ in data.values() for row in x],
        "label": [_json(value) for _, y in data.values() for value in y],
    }
    return ct.Federation.from_datasets(Columns(**columns), client="who", x="x", classes=told.get("classes"))


def _json(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


BUILDERS = (from_frame, from_csv, from_folder, from_arrays, from_npz, from_leaf, from_datasets)


def receipt(fed: ct.Federation) -> Any:
    return ct.fit(ct.FedAvg(STEP), fed, rounds=1, alone=False, progress=False, privacy=EXACT).receipt


def same(a: ct.Federation, b: ct.Federation) -> bool:
    """Whether all clients but the first have bit-equal rows, and nothing else tells the two apart."""
    shape = [(f.x.shape[1:], f.x.dtype, f.y.dtype, f.classes, f.columns, f.kind, list(f.clients)) for f in (a, b)]
    parts = [
        torch.equal(left, right)
        for client in a.clients[1:]
        for part in ("train", "test")
        for left, right in zip(getattr(a, part)(client), getattr(b, part)(client), strict=True)
    ]
    return shape[0] == shape[1] and all(parts)


@pytest.mark.parametrize("build", BUILDERS, ids=lambda b: b.__name__)
def test_declared_facts_leave_one_clients_rows_without_a_trace(
    build: Callable[..., ct.Federation], tmp_path: Path
) -> None:
    first = build(None, tmp_path, **TOLD)
    usual = receipt(first)
    assert usual.valid, usual.reasons
    for change in CHANGES[1:]:
        changed = build(change, tmp_path, **TOLD)
        assert same(first, changed), change
        found = receipt(changed)
        assert found.valid, (change, found.reasons)
        assert [r["dimension"] for r in found.releases] == [r["dimension"] for r in usual.releases], change
        assert found.public == usual.public, change


@pytest.mark.parametrize("build", BUILDERS, ids=lambda b: b.__name__)
@pytest.mark.parametrize("told", [{}, {"scaling": "own"}], ids=["all", "own"])
def test_undeclared_facts_void_every_receipt(
    build: Callable[..., ct.Federation], told: dict[str, Any], tmp_path: Path
) -> None:
    built = 0
    for change in CHANGES:
        try:
            fed = build(change, tmp_path, **told)
        except ct.errors.DataError:
            continue  # said at once, and nothing was promised
        built += 1
        assert not receipt(fed).valid, change
    assert built > 3


def test_a_row_without_a_client_changes_no_other_clients_random_numbers() -> None:
    """It makes floats of whole-numbered ids, and the ids are where the split and the order of batches come from."""
    rows = frame(None).assign(who=np.repeat(np.arange(5), 8))
    lost = rows.assign(who=rows["who"].where(np.arange(len(rows)) != 3))
    made, other = (
        ct.Federation.from_frame(table, client="who", target="y", drop_missing=True, **TOLD).declare_public("clients")
        for table in (rows, lost)
    )
    assert np.array_equal(made.keys, other.keys)
    for client in range(1, 5):
        assert all(map(torch.equal, made.train(client), other.train(client)))
    assert receipt(made).valid
    assert receipt(other).valid
    with pytest.raises(ct.errors.DataError, match="as text and as a number"):
        ct.Federation.from_arrays({1.0: numbers(None)["c1"], "1": numbers(None)["c2"]})
