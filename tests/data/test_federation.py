"""One ragged layout: who owns which row, who is held out, and errors that name the client."""

from __future__ import annotations

import gc
import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from coterie.data.federation import Federation, client_keys, held_out_sizes, split_order
from coterie.errors import DataError


def pair(n: int = 8, value: float = 0.0) -> tuple[Any, Any]:
    return np.arange(n, dtype=float)[:, None] + value, np.arange(n) % 2


def rows(fed: Federation, client: Any) -> list[float]:
    """A client's samples, training before test."""
    return [float(v) for split in (fed.train, fed.test) for v in split(client)[0][:, 0]]


# ---- layout ----------------------------------------------------------------------------------------------------------


def test_rows_stay_with_their_client_and_targets_with_their_rows() -> None:
    fed = Federation.from_arrays({"a": pair(8), "b": pair(5, 100), "c": pair(12, 200)}, test_fraction=0.25)
    assert len(fed) == 3
    assert list(fed.clients) == ["a", "b", "c"]
    assert fed.offsets.tolist() == [0, 8, 13, 25]
    assert fed.n_train.tolist() == [6, 4, 9]
    assert fed.n_test.tolist() == [2, 1, 3]
    assert fed.x.dtype == torch.float32
    assert fed.y.dtype == torch.int64
    for client, start, n in (("a", 0, 8), ("b", 100, 5), ("c", 200, 12)):
        assert sorted(rows(fed, client)) == [start + i for i in range(n)]
        for split in (fed.train, fed.test):
            x, y = split(client)
            assert ((x[:, 0] - start) % 2 == y).all()
    assert (fed.n_features, fed.n_outputs, fed.kind, fed.classes) == (1, 2, "classification", (0, 1))


def test_a_split_is_a_function_of_seed_and_client_alone() -> None:
    alone = Federation.from_arrays({"b": pair(20)}, seed=5)
    among = Federation.from_arrays({"a": pair(9), "b": pair(20), "c": pair(30)}, seed=5)
    assert rows(alone, "b") == rows(among, "b")
    assert rows(alone, "b") != rows(Federation.from_arrays({"b": pair(20)}, seed=6), "b")
    twins = Federation.from_arrays({"a": pair(20), "b": pair(20)}, seed=5)
    assert rows(twins, "a") != rows(twins, "b")


def test_every_row_is_held_out_equally_often() -> None:
    sizes, seeds = np.array([20]), 400
    keys = client_keys(pd.Index(["x"]))
    held = np.concatenate([split_order(sizes, keys, seed)[-5:] for seed in range(seeds)])
    counts = np.bincount(held, minlength=20)
    error = np.sqrt(seeds * 0.25 * 0.75)
    assert np.abs(counts - seeds / 4).max() < 4 * error


def test_copies_know_their_own_parts() -> None:
    fed = Federation.from_arrays({name: pair() for name in "abc"})
    sizes = fed.sizes("test")
    changed = Federation(**{**vars(fed), "n_train": fed.n_train - 1})
    assert (changed.sizes("test") == sizes + 1).all()
    assert (pickle.loads(pickle.dumps(fed)).sizes("test") == sizes).all()


def test_sizes_of_the_test_part() -> None:
    assert held_out_sizes(np.array([1, 2, 3, 4, 100]), 0.25).tolist() == [0, 0, 1, 1, 25]
    assert held_out_sizes(np.array([1, 2, 10]), 0.99).tolist() == [0, 1, 9]  # one row always stays for training
    assert held_out_sizes(np.array([10]), 0.0).tolist() == [0]
    for wrong in (1.0, -0.1, float("nan")):
        with pytest.raises(DataError, match=r"test_fraction must be in \[0, 1\)"):
            Federation.from_arrays({"a": pair()}, test_fraction=wrong)


def test_targets_decide_the_kind_and_kind_overrides() -> None:
    x = np.ones((4, 2))
    assert Federation.from_arrays({"a": (x, np.array([0.5, 1, 2, 3]))}).kind == "regression"
    text = Federation.from_arrays({"a": (x, np.array(["no", "yes", "no", "yes"]))}, test_fraction=0)
    assert text.classes == ("no", "yes")
    assert sorted(text.y.tolist()) == [0, 0, 1, 1]
    assert Federation.from_arrays({"a": (x, [1, 2, 3, 4])}, kind="regression").y.dtype == torch.float32
    assert Federation.from_arrays({"a": (x, [0.0, 1.0, 0.0, 1.0])}, kind="classification").n_outputs == 2
    assert Federation.from_arrays({"a": (x, np.array([1, 2.5, 3, 4], object))}).kind == "regression"
    assert Federation.from_arrays({"a": (torch.ones(4, 2), torch.tensor([0, 1, 1, 0]))}).n_outputs == 2


def test_images_stay_bytes_until_they_are_used() -> None:
    x = np.full((4, 1, 2, 2), 255, np.uint8)
    fed = Federation.from_arrays({"a": (x, [0, 1, 0, 1])})
    assert fed.x.dtype == torch.uint8
    got, _ = fed.train("a")
    assert got.dtype == torch.float32
    assert (got == 1).all()


# ---- subset and disk -------------------------------------------------------------------------------------------------


def test_subset_keeps_rows_split_keys_and_clusters() -> None:
    fed = Federation.from_arrays(
        {c: pair(6, 10 * i) for i, c in enumerate("abcd")}, clusters=dict(zip("abcd", range(4), strict=True))
    )
    some = fed.subset(["d", "b"])
    assert list(some.clients) == ["d", "b"]
    assert some.clusters is not None
    assert some.clusters.tolist() == [3, 1]
    assert some.keys.tolist() == fed.keys[[3, 1]].tolist()
    for client in "db":
        assert rows(some, client) == rows(fed, client)
    with pytest.raises(DataError, match="empty subset"):
        fed.subset([])
    with pytest.raises(DataError, match="unique"):
        fed.subset(["a", "a"])
    with pytest.raises(DataError, match=r"no client 'z'; the 4 clients are 'a', 'b', 'c', 'd'\."):
        fed.subset(["z"])


@pytest.mark.parametrize("ids", [["a", "b"], [3, 7], [1, "b"]], ids=str)
def test_saved_and_loaded_it_is_the_same(ids: list[Any], tmp_path: Path) -> None:
    fed = Federation.from_arrays({c: pair(9) for c in ids}, clusters=dict.fromkeys(ids, 1))
    fed.save(tmp_path)
    for mmap in (True, False):
        again = Federation.load(tmp_path, mmap=mmap)
        assert torch.equal(again.x, fed.x)
        assert torch.equal(again.y, fed.y)
        assert list(again.clients) == ids
        assert (again.kind, again.classes) == (fed.kind, fed.classes)
        for name in ("offsets", "n_train", "keys", "clusters"):
            assert np.array_equal(getattr(again, name), getattr(fed, name)), name
    again = Federation.load(tmp_path)
    again.x[0] = 99.0  # a private copy of the page: the file stays
    assert torch.equal(Federation.load(tmp_path).x, fed.x)
    with pytest.raises(DataError, match="no saved federation"):
        Federation.load(tmp_path / "nowhere")


def test_a_hundred_thousand_clients_are_a_few_arrays(tmp_path: Path) -> None:
    n = 100_000
    began = time.process_time()
    fed = Federation.from_flat(
        np.zeros((3 * n, 2), np.float32), np.tile([0, 1, 0], n), sizes=np.full(n, 3), clients=range(n)
    )
    fed.save(tmp_path)
    before = len(gc.get_objects())
    fed = Federation.load(tmp_path)
    assert len(gc.get_objects()) - before < 1000
    assert fed.train(99_999)[0].shape == (2, 2)
    assert time.process_time() - began < 8  # 1 s on an idle machine


# ---- errors ----------------------------------------------------------------------------------------------------------

X = np.ones((4, 2))
Y = [0, 1, 0, 1]
BAD: dict[str, tuple[dict[Any, Any], str]] = {
    "one class": ({"a": (X, Y), np.int64(1): (X, [1, 1, 1, 1])}, r"client 1 has only 1 in 4 samples"),
    "NaN target": ({"a": (X, [0.5, 1, 2, 3]), "b": (X, [0.5, np.nan, 2, 3])}, r"client 'b' has a NaN target"),
    "None target": ({"b": (X, [0, 1, None, 1])}, r"client 'b' has a NaN target"),
    "infinite target": ({"a": (X, [0.5, 1, 2, 3]), 2: (X, [0.5, np.inf, 2, 3])}, r"client 2 has an infinite one"),
    "empty client": ({"a": (X, Y), np.int64(7): (X[:0], [])}, r"Client 7 has no samples"),
    "no clients": ({}, "at least one client"),
    "text in x": ({"a": (np.array([["1", "q"]] * 4), Y)}, r"Client 'a': x must be numeric"),
    "NaN in x": ({"a": (X * np.nan, Y)}, r"Client 'a': x holds NaN"),
    "flat x": ({"a": (np.ones(4), Y)}, r"Client 'a': x must be \(samples"),
    "other length": ({"a": (X, Y[:3])}, r"Client 'a': x and y need one row per sample"),
    "no pair": ({"a": X[0, 0]}, r"Client 'a' needs a pair"),
    "other width": ({"a": (X, Y), "b": (X[:, :1], Y)}, r"client 'b' differs"),
    "text at one client": ({"a": (X, Y), "b": (X, ["0", "1", "0", "x"]), "c": (X, Y)}, r"client 'b' differs"),
    "mixed": ({"a": (X, Y), "b": (X, np.array([0, "x", 0, 1], object))}, r"client 'b' holds 'x'"),
    "dates": ({"a": (X, np.array(["2020-01-01"] * 4, "datetime64[D]"))}, r"client 'a' holds .*2020"),
    "1 and '1'": ({1: (X, Y), "1": (X, Y)}, r"must differ as text; '1'"),
    "tuple id": ({("a", 1): (X, Y)}, r"text or numbers; got \('a', 1\)"),
    "NaN id": ({float("nan"): (X, Y)}, r"text or numbers; got nan"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name: str) -> None:
    data, message = BAD[name]
    with pytest.raises(DataError, match=message) as caught:
        Federation.from_arrays(data)
    assert "np." not in str(caught.value)


def test_more_bad_input_is_named() -> None:
    with pytest.raises(DataError, match=r"unique; 1 occurs more than once"):
        Federation.from_arrays([(1, (X, Y)), (np.int64(1), (X, Y))])
    with pytest.raises(DataError, match=r"client 'b' holds 'x'"):
        Federation.from_arrays({"a": (X, ["1", "2", "3", "4"]), "b": (X, ["1", "2", "x", "4"])}, kind="regression")
    with pytest.raises(DataError, match=r"Client 'b' has no entry in clusters"):
        Federation.from_arrays({"a": (X, Y), "b": (X, Y)}, clusters={"a": 0})
    with pytest.raises(DataError, match="whole number from 0"):
        Federation.from_arrays({"a": (X, Y)}, clusters={"a": -1})
    with pytest.raises(DataError, match="add up to 5 for 4 rows"):
        Federation.from_flat(X, np.array(Y), sizes=np.array([5]), clients=["a"])
    with pytest.raises(DataError, match="Client 'a' has no training sample left"):
        Federation.from_flat(X, np.array(Y), sizes=np.array([4]), clients=["a"], n_test=np.array([4]))
    with pytest.raises(DataError, match=r"Client 'a' has the target 1, which is not among"):
        Federation.from_flat(X, np.array(Y), sizes=np.array([4]), clients=["a"], classes=[0, 2])
    with pytest.raises(DataError, match="at least two classes; every target is 3"):
        Federation.from_arrays({"a": (X, [3] * 4), "b": (X, [3] * 4)}, one_class="allow")
    one = Federation.from_arrays({"a": (X, Y), "b": (X, [1] * 4)}, one_class="allow")
    with pytest.raises(DataError, match="no client 5"):
        one.train(np.int64(5))


def test_a_client_is_found_by_any_integer_type() -> None:
    fed = Federation.from_arrays({i: pair(6, i) for i in (3, 5)})
    assert fed.index(5) == fed.index(np.int64(5)) == fed.index(np.int32(5)) == 1
    assert client_keys(pd.Index([3, 5])).tolist() == client_keys(pd.Index(["3", "5"])).tolist() == fed.keys.tolist()


def test_describe_has_a_row_a_client() -> None:
    fed = Federation.from_arrays({"a": pair(8), "b": pair(6)}, clusters={"a": 0, "b": 1})
    table = fed.describe()
    assert table.loc["b", ["samples", "train", "test"]].tolist() == [6, 4, 2]
    assert table["share of 1"].tolist() == [0.5, 0.5]
    assert table["true cluster"].tolist() == [0, 1]


# ---- bytes and large numbers -----------------------------------------------------------------------------------------


def test_bytes_are_scaled_for_images_only_or_on_request() -> None:
    rng = np.random.default_rng(0)
    y = np.arange(8) % 2
    table, image = rng.integers(0, 256, (8, 5), np.uint8), rng.integers(0, 256, (8, 1, 3, 3), np.uint8)

    def seen(x: np.ndarray, **options: Any) -> np.ndarray:
        fed = Federation.from_arrays({"a": (x, y)}, test_fraction=0.0, **options)
        return np.sort(fed.train("a")[0].numpy().ravel())

    def flat(x: np.ndarray) -> np.ndarray:
        return np.sort(x.ravel().astype(np.float32))

    np.testing.assert_array_equal(seen(table), flat(table))  # token ids stay what they are
    np.testing.assert_array_equal(seen(table, scale_bytes=True), flat(table) / 255)
    np.testing.assert_array_equal(seen(image), flat(image) / 255)
    np.testing.assert_array_equal(seen(image, scale_bytes=False), flat(image))


@pytest.mark.parametrize("scale", [None, True, False])
@pytest.mark.parametrize("shape", [(8, 5), (8, 1, 3, 3)])
def test_one_client_of_bytes_is_treated_like_a_federation_of_bytes(scale: bool | None, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    y, x = np.arange(8) % 2, rng.integers(0, 256, shape, np.uint8)
    mixed = Federation.from_arrays({"a": (x, y), "b": (rng.random(shape), y)}, scale_bytes=scale)
    alike = Federation.from_arrays({"a": (x, y), "b": (x, y)}, scale_bytes=scale)
    assert torch.equal(mixed.train("a")[0], alike.train("a")[0])


def test_numbers_too_large_for_the_type_are_refused_and_the_client_named() -> None:
    good, bad = np.ones((6, 2)), np.ones((6, 2))
    bad[4, 1] = -1e39
    y = np.arange(6) % 2
    data = {"a": (good, y), "b": (bad, y)}
    with pytest.raises(DataError, match="Client 'b' holds numbers too large for float32"):
        Federation.from_arrays(data)
    assert Federation.from_arrays(data, dtype="float64").x.min() == -1e39
    with pytest.raises(DataError, match="Client 'b' holds numbers too large for float32"):
        Federation.from_arrays({"a": (good, good[:, 0]), "b": (good, np.full(6, 1e300))})


@pytest.mark.parametrize("seed", [None, 5])
def test_a_hold_out_is_of_training_rows_alone_and_of_the_size_asked(seed: int | None) -> None:
    x = np.arange(60.0)[:, None]
    fed = Federation.from_arrays({"a": (x[:40], x[:40, 0]), "b": (x[40:], x[40:, 0])}, kind="regression", seed=1)
    inner = fed.holdout(0.25, seed)
    assert inner.n_train.tolist() == [22, 11]  # of 30 and 15
    assert inner.n_test.tolist() == [8, 4]
    for client in fed.clients:
        train, new, held = (
            set(part[0][:, 0].tolist()) for part in (fed.train(client), inner.train(client), inner.test(client))
        )
        assert new | held == train
        assert not new & held


def test_pairs_without_ids_are_one_sentence() -> None:
    pairs = [(np.zeros((4, 2)), np.arange(4.0)) for _ in range(3)]
    with pytest.raises(DataError, match=r"Pass dict\(enumerate\(pairs\)\)"):
        Federation.from_arrays(pairs)  # type: ignore[arg-type]
    assert len(Federation.from_arrays(dict(enumerate(pairs)))) == 3
