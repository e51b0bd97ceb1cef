"""Rows that do not fit a declared schema are left out for their client alone, and only the holder of the rows is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import coterie as ct
from coterie.data.schema import Target, numbers
from coterie.privacy import public

pytestmark = pytest.mark.filterwarnings("ignore:In this private run")
SGD = ct.LocalSGD(steps=1, lr=0.1, batch_size=None)
EXACT = ct.Privacy(3.0, 1e-6, clip=1.0)


def arrays(**changed: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {f"c{i}": (rng.normal(size=(8, 3)), np.arange(8) % 2) for i in range(4)} | changed


def others_equal(a: ct.Federation, b: ct.Federation) -> bool:
    assert (a.classes, a.kind, list(a.clients), a.x.dtype) == (b.classes, b.kind, list(b.clients), b.x.dtype)
    return all(
        torch.equal(s, t)
        for c in a.clients[1:]
        for s, t in zip(a.train(c) + a.test(c), b.train(c) + b.test(c), strict=True)
    )


def receipt(fed: ct.Federation, task: ct.Task | None = None) -> Any:
    return ct.fit(ct.FedAvg(SGD), fed, task, rounds=1, alone=False, progress=False, privacy=EXACT).receipt


def test_a_stray_label_is_left_out_with_a_warning_and_stays_an_error_without_a_declaration() -> None:
    x = np.random.default_rng(5).normal(size=(8, 3))
    stray = arrays(c0=(x, np.array([0, 1, 2, 0, 1, 7, 0, 1])))
    with pytest.raises(ct.errors.DataError, match="not among the classes"):
        ct.Federation.from_arrays(stray, classes=[0, 1])
    with pytest.warns(ct.errors.CoterieWarning, match="2 rows of 1 client did not fit"):
        fed = ct.Federation.from_arrays(stray, classes=public([0, 1]))
    assert list(fed.n_samples) == [6, 8, 8, 8]
    assert others_equal(ct.Federation.from_arrays(arrays(), classes=public([0, 1])), fed)
    kept = torch.cat([fed.train("c0")[0], fed.test("c0")[0]])
    assert {tuple(row) for row in kept.tolist()} == {
        tuple(row) for row in x.astype(np.float32)[[0, 1, 3, 4, 6, 7]].tolist()
    }


def test_a_client_of_which_nothing_is_left_keeps_its_place_with_a_blank_row() -> None:
    nothing = {"train": (np.ones((3, 3)), np.array([5, 6, 7])), "test": (np.ones((2, 3)), np.array([1, 9]))}
    split = {c: {"train": (x[:6], y[:6]), "test": (x[6:], y[6:])} for c, (x, y) in arrays().items()}
    with pytest.warns(ct.errors.CoterieWarning, match="4 rows of 1 client"):
        fed = ct.Federation.from_arrays(split | {"c0": nothing}, classes=public(["0", "1"]))
    assert (list(fed.n_train), list(fed.n_test)) == ([1, 6, 6, 6], [1, 2, 2, 2])
    assert not fed.train("c0")[0].any()
    assert fed.train("c0")[1].tolist() == [0]
    with pytest.warns(ct.errors.CoterieWarning):
        whole = ct.Federation.from_arrays(arrays(c0=(np.ones((3, 3)), np.array([5, 6, 7]))), classes=public([0, 1]))
    assert list(whole.n_samples) == [1, 8, 8, 8]


@pytest.mark.filterwarnings("ignore::coterie.errors.CoterieWarning")
@pytest.mark.parametrize(
    "mine",
    [
        (np.full((8, 3), np.nan), np.arange(8) % 2),
        (np.full((8, 3), 1e300), np.arange(8) % 2),
        (np.ones((8, 3), np.int64), np.arange(8) % 2),
        (np.full((2, 3), 2**62 + 1, np.int64), np.array(["a", "b"])),
        (np.ones((8, 3)), np.array([0.0, np.nan] * 4)),
        (np.ones((8, 3), bool), np.zeros(8, int)),
        (np.ones((1, 3), np.float16), np.array([None])),
    ],
    ids=["nan", "huge", "ints", "text", "no label", "one class", "nothing"],
)
def test_whatever_one_client_holds_the_others_and_the_promise_stay(mine: Any) -> None:
    usual = ct.Federation.from_arrays(arrays(), classes=public([0, 1]))
    fed = ct.Federation.from_arrays(arrays(c0=mine), classes=public([0, 1]))
    assert others_equal(usual, fed)
    found = receipt(fed)
    assert found.valid, found.reasons
    assert [r["dimension"] for r in found.releases] == [r["dimension"] for r in receipt(usual).releases]


@pytest.mark.filterwarnings("ignore::coterie.errors.CoterieWarning")
@pytest.mark.parametrize(
    ("classes", "others", "mine"),
    [
        ([False, True], np.arange(8) % 2 == 1, np.arange(8) % 2),
        ([False, True], np.arange(8) % 2 == 1, np.arange(8) / 2),
        ([2**53, 2**53 + 1], 2**53 + np.arange(8) % 2, np.full(8, 1.5)),
        ([2**53, 2**53 + 1], 2**53 + np.arange(8) % 2, np.full(8, 2**63, np.uint64)),
        (["b'no'", "b'yes'"], np.array([b"no", b"yes"] * 4), np.array(["no"] * 8)),
        (["2020-01-01 00:00:00", "x"], np.array(["2020-01-01"] * 8, "M8[D]"), np.array(["x"] * 8)),
    ],
    ids=["bool and int", "bool and float", "large and float", "large and unsigned", "bytes and text", "dates and text"],
)
def test_labels_are_read_by_the_type_of_their_own_client(classes: Any, others: Any, mine: Any) -> None:
    data = {f"c{i}": (np.full((8, 3), float(i)), others) for i in range(4)}
    one, two = (
        ct.Federation.from_arrays(data | {"c0": (data["c0"][0], y)}, classes=public(classes)) for y in (others, mine)
    )
    assert one.n_train[1] == 6  # its rows do fit
    assert others_equal(one, two)


@pytest.mark.filterwarnings("ignore::coterie.errors.CoterieWarning")
def test_numbers_and_several_labels_to_predict() -> None:
    numeric = {c: (x, x[:, 0] * 1e3) for c, (x, _) in arrays().items()}
    usual = ct.Federation.from_arrays(numeric, kind=public("regression"))
    for y in (np.full(8, np.inf), np.array(["1.5"] * 8), np.full(8, 1e300), np.array([True] * 8)):
        fed = ct.Federation.from_arrays(numeric | {"c0": (np.ones((8, 3)), y)}, kind=public("regression"))
        assert others_equal(usual, fed)
        assert receipt(fed).valid
    with pytest.raises(ct.errors.DataError, match="infinite"):
        ct.Federation.from_arrays(numeric | {"c0": (np.ones((8, 3)), np.full(8, np.inf))}, kind="regression")
    target = Target.of(public("multilabel"), None)
    assert target is not None
    assert target.encoded(np.array([[0, 1], [2, 0]]))[1].tolist() == [True, False]
    sequences = Target("classification", ("a", "b"))
    assert sequences.encoded(np.array([["a", "z"], ["b", "b"]]))[0].tolist() == [[0, -100], [1, 1]]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bytes_of_images_are_the_same_numbers_beside_floats(dtype: Any) -> None:
    rng = np.random.default_rng(1)
    images: dict[str, Any] = {f"c{i}": (rng.integers(0, 256, (6, 4, 4), np.uint8), np.arange(6) % 2) for i in range(3)}
    told: dict[str, Any] = {"classes": public([0, 1]), "dtype": dtype}
    usual = ct.Federation.from_arrays(images, **told)
    fed = ct.Federation.from_arrays(images | {"c0": (rng.normal(size=(6, 4, 4)), np.arange(6) % 2)}, **told)
    for client in ("c1", "c2"):
        for a, b in zip(usual.train(client), fed.train(client), strict=True):
            assert a.dtype == b.dtype
            assert torch.equal(a, b)


def test_whole_numbers_are_rounded_once_whatever_type_others_have() -> None:
    odd = np.full((4, 2), 2**60 + 2**36 + 1, np.int64)  # rounds to another float32 by way of float64
    told: dict[str, Any] = {"classes": public([0, 1]), "test_fraction": 0.0}
    whole = {f"c{i}": (odd, np.arange(4) % 2) for i in range(2)}
    usual, fed = (
        ct.Federation.from_arrays(whole | {"c0": (odd.astype(t), np.arange(4) % 2)}, **told)
        for t in (np.int64, np.float64)
    )
    assert torch.equal(usual.train("c1")[0], fed.train("c1")[0])


def test_weights_of_one_client_leave_the_others_and_need_no_declaration() -> None:
    rng = np.random.default_rng(2)
    data = {c: (*pair, rng.uniform(1, 2, 8)) for c, pair in arrays().items()}
    told: dict[str, Any] = {"classes": public([0, 1])}
    usual = ct.Federation.from_arrays(data, **told)
    x, y, w = data["c0"]
    fed = ct.Federation.from_arrays(data | {"c0": (x, y, 1e-9 * w)}, **told)
    assert usual.weights is not None
    assert fed.weights is not None
    assert torch.equal(usual.weights[8:], fed.weights[8:])
    with pytest.warns(ct.errors.CoterieWarning, match="1 row of 1 client"):
        holed = ct.Federation.from_arrays(data | {"c0": (x, y, np.where(np.arange(8) == 3, np.nan, w))}, **told)
    assert holed.weights is not None
    assert torch.equal(usual.weights[8:], holed.weights[7:])


def test_every_value_is_read_by_itself() -> None:
    values = [1, "2.5", True, "true", None, "x", np.inf, 10**400, 3 + 1j]
    expected = [1, 2.5, 1, 1, np.nan, np.nan, np.nan, np.nan, np.nan]
    np.testing.assert_array_equal(numbers(pd.Series(values, dtype="object")), expected)
    np.testing.assert_array_equal(numbers(pd.Series([1, None, 3], dtype="Int64")), [1, np.nan, 3])


@pytest.mark.parametrize("classes", [["a"], [1, "1"], [1, "1.0"]])
def test_public_classes_must_differ(classes: list[Any]) -> None:
    with pytest.raises(ct.errors.ConfigError, match="at least two labels that differ as text"):
        ct.Federation.from_arrays(arrays(), classes=public(classes))


def test_classes_do_not_go_with_numbers() -> None:
    with pytest.raises(ct.errors.ConfigError, match="Classes are declared for classification"):
        ct.Federation.from_arrays(arrays(), kind="regression", classes=public([0, 1]))


# ---- tables ------------------------------------------------------------------------------------------------------------


def table(colour: Any = "red") -> pd.DataFrame:
    n = 24
    made = pd.DataFrame({"who": np.repeat(["a", "b", "c"], 8), "size": np.arange(n) % 5, "y": np.arange(n) % 2})
    made["colour"] = np.where(np.arange(n) % 3, "red", "blue")
    made.loc[made["who"] == "a", "colour"] = colour
    return made


def test_declared_categories_are_the_columns_and_undeclared_ones_count_as_missing() -> None:
    told: dict[str, Any] = {"client": "who", "target": "y", "scaling": "own", "classes": public([0, 1])}
    colours = public({"colour": ["red", "blue", "green"]})
    fed = ct.Federation.from_frame(table(), **told, categories=colours)
    assert fed.columns == ("size", "colour=red", "colour=blue", "colour=green")
    found = receipt(fed)
    assert found.valid, found.reasons
    assert any("the inputs size, colour=red" in line for line in found.public)
    with pytest.warns(ct.errors.CoterieWarning, match="8 of 'colour'"):
        odd = ct.Federation.from_frame(table("black"), **told, categories=colours)
    assert others_equal(fed, odd)
    assert not torch.cat([odd.train("a")[0], odd.test("a")[0]])[:, 1:].any()
    read = receipt(ct.Federation.from_frame(table(), **told))
    assert not read.valid
    assert any("categories=privacy.public" in reason for reason in read.reasons)
    other = ct.Federation.from_frame(
        table("black"), **told, categories=public({"colour": ["red", "blue", "(other)"]}), test_fraction=0.0
    )
    assert others_equal(other, other)
    assert other.columns[-1] == "colour=(other)"  # type: ignore[index]


def test_numbers_that_only_look_like_text_stay_numbers_and_a_look_at_rows_voids() -> None:
    rows = table().drop(columns="colour")
    told: dict[str, Any] = {"client": "who", "target": "y", "scaling": "own", "classes": public([0, 1])}
    looked = receipt(ct.Federation.from_frame(rows, **told))
    assert not looked.valid
    assert any("what the columns hold" in reason for reason in looked.reasons)
    usual = ct.Federation.from_frame(rows, **told, categories=public({}))
    assert receipt(usual).valid
    assert receipt(ct.Federation.from_frame(rows, **told).declare_public("inputs")).valid
    twice = rows.assign(copy=rows["size"])
    assert ct.Federation.from_frame(twice, **told, categories=public({})).columns == ("size", "copy")
    with pytest.raises(ct.errors.DataError, match="columns are chosen by you"):
        ct.Federation.from_frame(twice, **told)


@pytest.mark.parametrize("wrong", [["colour"], {"colour": "red"}, {"colour": []}, {"shade": ["red"]}])
def test_categories_that_say_nothing_are_refused(wrong: Any) -> None:
    with pytest.raises(ct.errors.ConfigError, match="categories"):
        ct.Federation.from_frame(table(), client="who", target="y", categories=wrong)


def test_categories_also_serve_a_table_scaled_by_all_rows_which_stays_void() -> None:
    told: dict[str, Any] = {"client": "who", "target": "y", "classes": public([0, 1])}
    fed = ct.Federation.from_frame(table(), **told, categories=public({"colour": ["blue", "red"]}))
    assert fed.columns == ("size", "colour=blue", "colour=red")
    assert not receipt(fed).valid


def test_declared_inputs_survive_a_file(tmp_path: Path) -> None:
    told: dict[str, Any] = {"client": "who", "target": "y", "scaling": "own", "classes": public([0, 1])}
    fed = ct.Federation.from_frame(table(), **told, categories=public({"colour": ["red", "blue"]}))
    assert receipt(ct.Federation.load(fed.save(tmp_path / "a"))).valid
    undeclared = ct.Federation.from_frame(table().drop(columns="colour"), **told)
    assert not receipt(ct.Federation.load(undeclared.save(tmp_path / "b"))).valid


def test_a_csv_is_read_cell_by_cell(tmp_path: Path) -> None:
    told: dict[str, Any] = {"client": "who", "target": "y", "scaling": "own"}
    declared = told | {"classes": public(["no", "yes"]), "categories": public({})}
    lines = [
        f"{who};{v};{'yes' if i % 2 else 'no'}"
        for who in (1, 2, 3)
        for i, v in enumerate(("1,5", "2,25", "3", "7,125"))
    ]
    made = []
    for name, mine in (("usual", "1;4,5;no"), ("point", "1;4.5;no"), ("long", "1;1,5;no;more"), ("code", "1;007;no")):
        path = tmp_path / f"{name}.csv"
        path.write_text("\n".join(["who;size;y", *lines, mine]))
        made.append(ct.Federation.from_csv(path, **declared, decimal=","))
    assert list(made[0].clients) == [1, 2, 3]
    assert all(others_equal(made[0], other) for other in made[1:])
    assert made[0].train(2)[0].unique().numel() > 1
