"""Tables that stay at their sites are prepared as one table would be."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import coterie as ct
from coterie.data.digits import LEVELS, sortable, unsorted
from coterie.flower.agreement import Agreement, Columns, agreed_classes
from coterie.flower.site_tables import SiteTable, require_named

OPTIONS: dict[str, Any] = {
    "client": "site", "target": "y", "features": ["age", "dose", "kind", "same"], "kind": "classification"
}  # fmt: skip


def rows(n: int = 300) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    made = pd.DataFrame(
        {
            "site": np.sort(rng.choice(list("abcdef"), n)),
            "age": np.round(rng.normal(50, 10, n), 1),
            "dose": rng.lognormal(3, 2, n),
            "kind": rng.choice(["x", "y", "z"], n, p=[0.7, 0.2, 0.1]),
            "same": 4.0,
            "y": rng.choice(["no", "yes"], n),
        }
    )
    made.loc[rng.random(n) < 0.2, "age"] = np.nan
    made.loc[rng.random(n) < 0.1, "kind"] = None
    return made


def agree(tables: dict[str, SiteTable]) -> Agreement:
    told = {k: json.loads(json.dumps(t.facts(private=False))) for k, t in tables.items()}
    columns = Columns(told)
    for level in range(LEVELS):
        columns.narrow([t.digits(level, columns.prefixes()) for t in tables.values()])
    plan = columns.plan([t.spread(columns.fills()) for t in tables.values()])
    made = Agreement(plan, agreed_classes(told))
    return Agreement(**json.loads(json.dumps(made.to_json())))


@pytest.mark.parametrize("scaling", ["all", "own"])
def test_sites_agree_on_what_one_table_says(scaling: str) -> None:
    frame, options = rows(), OPTIONS | {"scaling": scaling}
    if scaling == "own":
        options |= {"features": ["age", "dose", "kind"]}
    whole = ct.Federation.from_frame(frame, **options)
    tables = {k: SiteTable.of(frame[frame["site"].isin(list(k))], options, 1) for k in ("ab", "c", "def")}
    agreement = agree(tables)
    if scaling == "all":
        there, here = agreement.frame(), whole.preprocessing
        assert here is not None
        assert there["column"].tolist() == here["column"].tolist()
        holes = here["source"] == "age"  # the only numbers that are ever filled
        np.testing.assert_allclose(there.loc[holes, "fill"].astype(float), here.loc[holes, "fill"].astype(float))
        for name in ("mean", "scale"):
            np.testing.assert_allclose(there[name].astype(float), here[name].astype(float), rtol=1e-12)
    for table in tables.values():
        mine = table.federation(agreement)
        assert mine.columns == whole.columns
        assert mine.classes == whole.classes
        for client in mine.clients:
            for a, b in zip(
                mine.train(client) + mine.test(client), whole.train(client) + whole.test(client), strict=True
            ):
                np.testing.assert_allclose(a, b, atol=1e-6)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
@settings(max_examples=60)
def test_numbers_keep_their_order_as_digits_and_come_back(numbers: list[float]) -> None:
    bits = sortable(np.array(numbers))
    assert sorted(bits.tolist()) == sortable(np.sort(np.array(numbers))).tolist()
    assert [unsorted(b) for b in bits.tolist()] == numbers


def test_what_would_need_a_look_at_all_rows_is_refused_in_one_sentence() -> None:
    for missing in ("features", "kind"):
        with pytest.raises(ct.errors.ConfigError, match=missing):
            require_named({k: v for k, v in OPTIONS.items() if k != missing}, private=False)
    with pytest.raises(ct.errors.ConfigError, match='scaling = "own"'):
        require_named(OPTIONS, private=True)
    with pytest.raises(ct.errors.ConfigError, match=r'named categories.*scaling = "own"'):
        require_named(OPTIONS | {"categories": {"kind": ["a"]}}, private=False)


@pytest.mark.filterwarnings("ignore::coterie.errors.CoterieWarning")
def test_with_a_budget_a_site_tells_nothing_of_what_columns_hold() -> None:
    told = OPTIONS | {"scaling": "own", "classes": ["no", "yes"], "categories": {"kind": ["x", "y"]}}
    agreed, first = Agreement([], ["no", "yes"]), rows()
    mine = np.asarray(first["site"] == "a")
    usual = SiteTable.of(first, told, private=True).federation(agreed)
    assert usual.columns == ("age", "dose", "kind=x", "kind=y", "same")
    for column, value in (("age", "old"), ("age", np.inf), ("kind", "w"), ("kind", 1.5), ("y", "perhaps"), ("y", None)):
        changed = first.astype({column: object})
        changed.loc[mine, column] = value
        site = SiteTable.of(changed, told, private=True)
        summary = site.facts(private=True)
        assert summary["columns"] == {c: {"kind": "own"} for c in OPTIONS["features"]}
        assert summary["labels"] is None
        made = site.federation(agreed)
        assert (made.columns, made.classes, list(made.clients)) == (usual.columns, usual.classes, list(usual.clients))
        for client in "bcdef":
            for a, b in zip(
                made.train(client) + made.test(client), usual.train(client) + usual.test(client), strict=True
            ):
                assert torch.equal(a, b)


def test_a_column_that_names_rows_does_not_leave_its_site() -> None:
    frame = rows().assign(kind=[f"patient {i}" for i in range(300)])
    with pytest.raises(ct.errors.DataError, match="names rows"):
        SiteTable.of(frame, OPTIONS).facts(private=False)


def test_a_column_of_two_kinds_is_named_with_its_sites() -> None:
    frame = rows()
    told = {
        "site 1": SiteTable.of(frame, OPTIONS).facts(private=False),
        "site 2": SiteTable.of(frame.assign(kind=1.5), OPTIONS).facts(private=False),
    }
    with pytest.raises(
        ct.errors.DataError, match=r"'kind' holds category values at site 1 and numeric values at site 2"
    ):
        Columns(told)


def test_a_budget_keeps_sizes_and_statistics_at_home() -> None:
    options = OPTIONS | {"features": ["age", "dose"], "scaling": "own"}
    told = SiteTable.of(rows(), options).facts(private=True)
    assert set(told) == {"clients", "labels", "columns"}
    assert all(column == {"kind": "own"} for column in told["columns"].values())


def test_few_rows_are_not_told_apart_and_the_median_is_close() -> None:
    """Prefixes of fewer than five rows are not refined: a median is the middle of a narrow range."""
    frame = rows()
    tables = {k: SiteTable.of(frame[frame["site"].isin(list(k))], OPTIONS) for k in ("ab", "c", "def")}
    there, here = agree(tables).frame(), ct.Federation.from_frame(frame, **OPTIONS).preprocessing
    assert here is not None
    fill, exact = (float(plan.loc[plan["source"] == "age", "fill"].iloc[0]) for plan in (there, here))
    assert abs(fill - exact) <= abs(exact) / 32
    site = tables["c"]
    ages = np.sort(frame["age"].to_numpy()[site.frame.index.to_numpy()][site.rows.train])
    bits = sortable(ages[~np.isnan(ages)])
    for level in range(1, LEVELS):
        for head in {int(b) >> 8 * (LEVELS - level) for b in bits.tolist()}:
            (counts,) = site.digits(level, {"age": [head]})["age"]
            many = sum(int(b) >> 8 * (LEVELS - level) == head for b in bits.tolist())
            assert sum(counts) == (many if many >= 5 else 0)


def test_sites_that_hold_back_leave_the_median_to_the_others() -> None:
    values = {"a": np.repeat([6.0, 7.0, 8.0], [13, 14, 13]), "b": np.array([1.0, 3.0, 900.0])}
    frame = pd.concat(
        [pd.DataFrame({"site": k, "age": v, "y": np.resize(["no", "yes"], len(v))}) for k, v in values.items()]
    )
    frame.iloc[0, 1] = np.nan
    options = OPTIONS | {"features": ["age"], "one_class": "allow"}
    tables = {k: SiteTable.of(frame[frame["site"] == k].reset_index(drop=True), options) for k in "ab"}
    assert agree(tables).frame()["fill"].iloc[0] == 7.0


def test_values_held_back_are_taken_to_lie_as_the_others_do() -> None:
    """60 values tell a median of 3.5. Four more that their site holds back must not move it, wherever they lie."""
    told = {"kind": "numeric", "missing": 1, "holes": True}
    columns = Columns({s: {"columns": {"age": told | {"present": n}}} for s, n in (("a", 60), ("b", 4))})
    bits = sortable(np.repeat(np.arange(1.0, 7.0), 10)).tolist()
    for level in range(LEVELS):
        counts = [[0] * 256 for _ in range(2)]
        for row, head in zip(counts, columns.prefixes()["age"], strict=True):
            for b in bits:
                if b >> 8 * (LEVELS - level) == head:
                    row[b >> 8 * (LEVELS - level - 1) & 255] += 1
        columns.narrow([{"age": counts}, {"age": [[0] * 256] * 2}])
    assert columns.fills() == {"age": 3.5}


def test_names_of_rare_categories_do_not_leave_their_site() -> None:
    frame = rows()
    frame.loc[[0, 5, 9, 14], "kind"] = "the only patient with it"
    tables = {k: SiteTable.of(frame[frame["site"].isin(list(k))], OPTIONS) for k in ("abc", "def")}
    told = {k: t.facts(private=False)["columns"]["kind"] for k, t in tables.items()}
    assert "patient" not in json.dumps(told)
    assert told["abc"]["rare"] > 0
    made = agree(tables)
    assert "kind=(other)" in made.frame()["column"].tolist()
    mine = tables["abc"].federation(made)
    assert float(mine.x[:, mine.columns.index("kind=(other)")].sum()) > 0


def test_no_cell_that_leaves_a_site_is_of_fewer_than_five_rows() -> None:
    """Counts of digits, labels, means and deviations."""
    frame = rows()
    frame.loc[[3, 7], "y"] = "the only two"
    few = frame.iloc[:4].assign(dose=[1.5, 2.5, 3.5, 4.5])
    one = frame.assign(dose=np.where(np.arange(300) == np.flatnonzero(frame["site"] == "c")[0], 7.77, np.nan))
    site = SiteTable.of(frame, OPTIONS)
    assert site.facts(private=False)["labels"] == ["no", "yes"]
    (counts,) = site.digits(0, {"dose": [0]})["dose"]
    for head in np.flatnonzero(counts).tolist():
        (next_bytes,) = site.digits(1, {"dose": [head]})["dose"]
        assert all(n == 0 or n >= 5 for n in counts + next_bytes)
        exact = sortable(frame["dose"].to_numpy()[site.rows.train]) >> np.uint64(56) == head
        assert sum(next_bytes) in (0, int(exact.sum()))  # nobody is left out
    for table in (few, one):
        alone = SiteTable.of(table, OPTIONS | {"one_class": "allow", "test_fraction": 0.0 if table is few else 0.25})
        assert alone.spread({"dose": 0.0})["dose"][:3] == [0, 0.0, 0.0]
    with pytest.raises(ct.errors.ConfigError, match="names of classes with fewer than 5 rows") as told:
        site.federation(agree({"all": site}))
    assert "the only" not in str(told.value)


def test_a_column_with_too_few_values_everywhere_is_left_out() -> None:
    frame = rows().assign(dose=np.where(np.arange(300) % 100 == 0, 3.0, np.nan))
    tables = {k: SiteTable.of(frame[frame["site"].isin(list(k))], OPTIONS) for k in ("abc", "def")}
    plan = agree(tables).frame()
    assert plan.loc[plan["source"] == "dose", "note"].tolist() == ["too few values at every site"]
