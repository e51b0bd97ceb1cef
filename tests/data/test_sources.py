"""Data as others keep them: the same federation as from plain arrays."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import coterie as ct

rng = np.random.default_rng(0)
X, Y = rng.normal(size=(12, 3)).astype("float32"), np.arange(12) % 2
SPLIT = {"train": (X[:6], Y[:6]), "validation": (X[6:8], Y[6:8]), "test": (X[8:], Y[8:])}


def same(a: ct.Federation, b: ct.Federation) -> None:
    assert torch.equal(a.x, b.x)
    assert torch.equal(a.y, b.y)
    assert [list(v) for v in (a.offsets, a.n_train, a.n_valid)] == [list(v) for v in (b.offsets, b.n_train, b.n_valid)]
    assert list(a.clients) == list(b.clients)


# ---- a split of one's own ----------------------------------------------------------------------------------------------


def test_your_own_split_is_taken_as_it_is(tmp_path: Path) -> None:
    fed = ct.Federation.from_arrays({"a": SPLIT, "b": {"train": (X, Y)}})
    assert (list(fed.n_train), list(fed.n_valid), list(fed.n_test)) == ([6, 12], [2, 0], [4, 0])
    for part, rows in (("train", fed.train("a")), ("validation", fed.validation("a")), ("test", fed.test("a"))):
        np.testing.assert_array_equal(rows[0], SPLIT[part][0])
        np.testing.assert_array_equal(rows[1], SPLIT[part][1])
    assert len(fed.rows("validation")[0]) == 2
    choosing = fed.holdout(0.25, seed=3)
    np.testing.assert_array_equal(choosing.test("a")[0], X[6:8])
    np.testing.assert_array_equal(choosing.train("a")[0], X[:6])
    assert list(choosing.n_test) == [2, 3]  # who has no validation rows holds out a part, whatever the others have
    fed.save(tmp_path)
    same(fed, ct.Federation.load(tmp_path))
    same(fed.subset(["b"]), ct.Federation.from_arrays({"b": {"train": (X, Y)}}))


def test_nothing_trains_on_validation_rows() -> None:
    wild = SPLIT | {"validation": (1e6 * X[6:8], Y[6:8])}
    task = ct.Task(lambda: nn.Linear(3, 2))
    runs = [
        ct.fit(ct.FedAvg(), ct.Federation.from_arrays({"a": s}), task, rounds=2, alone=False) for s in (SPLIT, wild)
    ]
    assert torch.equal(runs[0].state.model["weight"], runs[1].state.model["weight"])
    assert runs[0].scores().equals(runs[1].scores())


def test_a_frame_with_a_split_and_a_weight_column() -> None:
    frame = pd.DataFrame(X, columns=["u", "v", "w"]).assign(who=["a"] * 8 + ["b"] * 4, y=Y, many=np.arange(12) + 1.0)
    frame["part"] = ["train"] * 4 + ["val", "test", "train", "test", "Train", "train", "test", "dev"]
    fed = ct.Federation.from_frame(frame, client="who", target="y", split="part", weight="many")
    assert fed.columns == ("u", "v", "w")
    assert (list(fed.n_train), list(fed.n_valid), list(fed.n_test)) == ([5, 2], [1, 1], [2, 1])
    assert fed.weights is not None
    np.testing.assert_allclose(
        fed.weights, np.array([1, 2, 3, 4, 7, 5, 6, 8, 9, 10, 12, 11]) / ([1] * 8 + [9] * 4), rtol=1e-6
    )
    with pytest.raises(ct.errors.DataError, match="holds 'tomorrow'"):
        ct.Federation.from_frame(frame.assign(part="tomorrow"), client="who", target="y", split="part")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"a": SPLIT, "b": (X, Y)}, "client 'b' has no split"),
        ({"a": {"test": (X, Y)}}, "'a' has no training rows"),
        ({"a": {"train": (X, Y), "later": (X, Y)}}, "holds 'later'"),
    ],
)
def test_bad_splits_are_named(data: Any, message: str) -> None:
    with pytest.raises(ct.errors.DataError, match=message):
        ct.Federation.from_arrays(data)


# ---- token ids ---------------------------------------------------------------------------------------------------------


def test_ids_stay_whole_numbers(tmp_path: Path) -> None:
    for kind in ("uint8", "int32", "int64"):
        ids = rng.integers(0, 9, (10, 5)).astype(kind)
        fed = ct.Federation.from_arrays({"a": (ids, np.arange(10) % 3)}, dtype="int64", test_fraction=0.0)
        assert fed.train("a")[0].dtype == torch.int64
        assert sorted(map(tuple, fed.train("a")[0].tolist())) == sorted(map(tuple, ids.tolist()))
        fed.save(tmp_path / kind)
        same(fed, ct.Federation.load(tmp_path / kind))
    task = ct.Task(lambda: nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(20, 3)))
    one, two = (ct.fit(ct.FedAvg(), fed, task, rounds=1, engine=e, alone=False).state.model for e in ("local", "loop"))
    torch.testing.assert_close(one["0.weight"], two["0.weight"])
    with pytest.raises(ct.errors.DataError, match="keeps whole numbers"):
        ct.Federation.from_arrays({"a": (X, Y)}, dtype="int64")
    with pytest.raises(ct.errors.TaskError, match="need a model that reads them"):
        ct.fit(ct.FedAvg(), fed, rounds=1)


# ---- datasets ----------------------------------------------------------------------------------------------------------


class Columns:
    """What HuggingFace's datasets offer."""

    def __init__(self, **columns: Any) -> None:
        self.columns, self.column_names = columns, list(columns)

    def __getitem__(self, name: str) -> Any:
        return list(self.columns[name])

    def __len__(self) -> int:
        return len(self.columns[self.column_names[0]])


class Stream:
    """Only an iterator."""

    def __iter__(self) -> Iterator[Any]:
        return iter(zip(X, Y, strict=True))


def test_torch_datasets() -> None:
    plain = ct.Federation.from_arrays({"a": (X, Y), "b": (X[:6], Y[:6])})
    items: Dataset[Any] = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    same(ct.Federation.from_datasets({"a": items, "b": torch.utils.data.Subset(items, range(6))}), plain)
    same(ct.Federation.from_datasets({"a": Stream(), "b": list(zip(X[:6], Y[:6], strict=True))}), plain)
    parts = {"train": torch.utils.data.Subset(items, range(8)), "test": torch.utils.data.Subset(items, range(8, 12))}
    assert list(ct.Federation.from_datasets({"a": parts}).n_test) == [4]
    with pytest.raises(ct.errors.DataError, match=r"pairs \(x, y\); those of client 'a'"):
        ct.Federation.from_datasets({"a": [1, 2]})


def test_datasets_with_columns() -> None:
    plain = ct.Federation.from_arrays({"a": (X, Y)})
    same(ct.Federation.from_datasets({"a": Columns(pixels=X, label=Y)}), plain)
    same(ct.Federation.from_datasets({"a": Columns(u=X, v=X, z=Y)}, x="u", y="z"), plain)
    whole = Columns(user=["a"] * 12 + ["b"] * 4, pixels=[*X, *X[:4]], label=[*Y, *Y[:4]])
    same(
        ct.Federation.from_datasets(whole, client="user"), ct.Federation.from_arrays({"a": (X, Y), "b": (X[:4], Y[:4])})
    )
    halves = {
        part: Columns(user=["a"] * 6, pixels=X[at], label=Y[at])
        for part, at in (("train", slice(6)), ("test", slice(6, 12)))
    }
    assert list(ct.Federation.from_datasets(halves, client="user").n_test) == [6]
    with pytest.raises(ct.errors.DataError, match=r"Name the columns of client 'a'"):
        ct.Federation.from_datasets({"a": Columns(u=X, v=X, label=Y)})
    with pytest.raises(ct.errors.DataError, match="no column 'who'"):
        ct.Federation.from_datasets(whole, client="who")


# ---- files -------------------------------------------------------------------------------------------------------------


def test_leaf(tmp_path: Path) -> None:
    for part, at in (("train", slice(8)), ("test", slice(8, 12))):
        (tmp_path / part).mkdir()
        users = {"u1": {"x": X[at].tolist(), "y": Y[at].tolist()}}
        text = json.dumps({"users": ["u1"], "num_samples": [len(Y[at])], "user_data": users})
        (tmp_path / part / "all.json").write_text(text)
    fed = ct.Federation.from_leaf(tmp_path)
    same(fed, ct.Federation.from_arrays({"u1": {"train": (X[:8], Y[:8]), "test": (X[8:], Y[8:])}}))
    (tmp_path / "train" / "all.json").write_text("{}")
    with pytest.raises(ct.errors.DataError, match=r"all\.json is not a LEAF file"):
        ct.Federation.from_leaf(tmp_path)
    with pytest.raises(ct.errors.DataError, match="no LEAF files"):
        ct.Federation.from_leaf(tmp_path / "nowhere")


def test_leaf_text_becomes_ids(tmp_path: Path) -> None:
    users = {"romeo": {"x": ["abca", "bcab", "cabc", "abcb"], "y": ["b", "c", "a", "a"]}}
    (tmp_path / "all.json").write_text(json.dumps({"user_data": users}))
    fed = ct.Federation.from_leaf(tmp_path, test_fraction=0.0)
    assert sorted(fed.train("romeo")[0].tolist()) == [[1, 2, 3, 1], [1, 2, 3, 2], [2, 3, 1, 2], [3, 1, 2, 3]]
    assert fed.classes == ("a", "b", "c")


def test_a_folder_with_a_file_per_client(tmp_path: Path) -> None:
    arrays, tables = tmp_path / "arrays", tmp_path / "tables"
    arrays.mkdir()
    tables.mkdir()
    np.savez(arrays / "a.npz", x=X, y=Y)
    np.savez(arrays / "b.npz", x=X[:6], y=Y[:6])
    same(ct.Federation.from_folder(arrays), ct.Federation.from_arrays({"a": (X, Y), "b": (X[:6], Y[:6])}))
    frame = pd.DataFrame(X, columns=["u", "v", "w"]).assign(y=Y)
    frame.to_parquet(tables / "a.parquet")
    frame[:6].to_csv(tables / "b.csv", index=False)
    whole = pd.concat([frame.assign(who="a"), frame[:6].assign(who="b")])
    told = ct.Federation.from_frame(whole, client="who", target="y")
    np.testing.assert_allclose(ct.Federation.from_folder(tables, target="y").x, told.x, rtol=1e-5)
    with pytest.raises(ct.errors.DataError, match="Name the column to predict"):
        ct.Federation.from_folder(tables)
    np.savez(arrays / "b.npz", x_train=X, y_train=Y)
    with pytest.raises(ct.errors.DataError, match="client 'a' has no split"):
        ct.Federation.from_folder(arrays)
    np.savez(arrays / "a.npz", z=X)
    with pytest.raises(ct.errors.DataError, match=r"needs x and y, or x_train"):
        ct.Federation.from_folder(arrays)


def test_dots_in_a_files_name_belong_to_the_client(tmp_path: Path) -> None:
    for name in ("site.1", "site.2"):
        np.savez(tmp_path / f"{name}.npz", x=X, y=Y)
    assert list(ct.Federation.from_folder(tmp_path).clients) == ["site.1", "site.2"]
    tables = tmp_path / "tables"
    tables.mkdir()
    for name in ("site.1.csv", "site.2.parquet", "site.3.csv.gz"):
        frame = pd.DataFrame(X, columns=["u", "v", "w"]).assign(y=Y)
        frame.to_parquet(tables / name) if name.endswith("parquet") else frame.to_csv(tables / name, index=False)
    assert list(ct.Federation.from_folder(tables, target="y").clients) == ["site.1", "site.2", "site.3"]


def test_folders_of_parts_with_a_file_per_client(tmp_path: Path) -> None:
    for part, at in (("train", slice(8)), ("test", slice(8, 12))):
        (tmp_path / part).mkdir()
        for client in ("0", "1"):
            np.savez(tmp_path / part / f"{client}.npz", x=X[at], y=Y[at])
    own = {"train": (X[:8], Y[:8]), "test": (X[8:], Y[8:])}
    same(ct.Federation.from_folder(tmp_path), ct.Federation.from_arrays({"0": own, "1": own}))
    np.savez(tmp_path / "train" / "1.npz", data=np.array({"x": X, "y": Y}, dtype=object))
    with pytest.raises(ct.errors.DataError, match=r"1\.npz holds Python objects, whose reading could run any code"):
        ct.Federation.from_folder(tmp_path)
    (tmp_path / "train" / "1.npz").rename(tmp_path / "train" / "1.csv")
    with pytest.raises(ct.errors.DataError, match=r"Folders of parts hold \.npz files"):
        ct.Federation.from_folder(tmp_path)


def test_a_loader_of_batches_is_refused() -> None:
    loader = DataLoader(TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)), batch_size=4)
    with pytest.raises(ct.errors.DataError, match="A DataLoader gives batches"):
        ct.Federation.from_datasets({"a": loader})


# ---- on disk -----------------------------------------------------------------------------------------------------------


def test_mapped_features_stay_on_disk(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.tile(X, (10, 1)))
    x = np.load(tmp_path / "x.npy", mmap_mode="r")
    fed = ct.Federation.from_flat(x, np.tile(Y, 10), sizes=np.full(10, 12), clients=range(10), n_test=np.full(10, 3))
    assert fed.mapped
    fed.save(tmp_path / "fed")
    engine = ct.engines.LocalEngine()
    for data in (fed, ct.Federation.load(tmp_path / "fed")):
        assert data.mapped
        mapped = ct.fit(ct.FedAvg(), data, rounds=2, engine=engine, alone=False)
        assert not engine._cache
    plain = ct.fit(ct.FedAvg(), ct.Federation.load(tmp_path / "fed", mmap=False), rounds=2, alone=False)
    assert mapped.scores().equals(plain.scores())
    assert np.array_equal(np.load(tmp_path / "x.npy"), np.tile(X, (10, 1)))


def test_parts_of_mapped_features_are_views_and_hold_the_right_rows(tmp_path: Path) -> None:
    """Splitting, choosing clients and holding out, one after the other, as with data in memory."""
    features, y = rng.normal(size=(120, 3)).astype(np.float32), np.tile(Y, 10)
    np.save(tmp_path / "x.npy", features)
    x = np.load(tmp_path / "x.npy", mmap_mode="r")
    whole = {"sizes": np.full(10, 12), "clients": range(10), "weights": np.arange(1.0, 121)}
    mapped, plain = (ct.Federation.from_flat(given, y, **whole) for given in (x, features))
    some = [7, 2, 5, 0]
    for chosen in (lambda fed: fed, lambda fed: fed.subset(some), lambda fed: fed.subset(some).holdout(0.25, seed=1)):
        ours, theirs = chosen(mapped), chosen(plain)
        assert ours.mapped
        assert not theirs.mapped
        assert ours.x.data_ptr() == mapped.x.data_ptr()
        assert ours.weights is not None
        assert torch.equal(ours.weights, theirs.weights)
        for part in ("train", "test"):
            for a, b in zip(ours.rows(part), theirs.rows(part), strict=True):
                np.testing.assert_array_equal(a, b)
        ours.save(tmp_path / "fed")
        for mmap in (True, False):
            read = ct.Federation.load(tmp_path / "fed", mmap=mmap)
            assert torch.equal(read.x, theirs.x)
    results = [ct.fit(ct.FedAvg(), fed, rounds=2, cohort=5) for fed in (mapped, plain)]
    pd.testing.assert_frame_equal(*(result.evaluate() for result in results))


def anonymous_mb() -> float:
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("RssAnon")).split()[1]) / 1024


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's account of memory")
def test_anonymous_memory_stays_flat_with_data_on_disk(tmp_path: Path) -> None:
    """400 MB of features; splitting, rounds and an evaluation against clients alone may hold a few chunks of 64 MB."""
    clients, rows, width = 100, 1000, 1000
    file = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (clients * rows, width))
    for i in range(clients):
        file[i * rows : (i + 1) * rows] = rng.normal(size=(rows, width))
    file.flush()
    x = np.load(tmp_path / "x.npy", mmap_mode="r")
    y = rng.integers(0, 2, clients * rows)
    before, seen = anonymous_mb(), []
    fed = ct.Federation.from_flat(x, y, sizes=np.full(clients, rows), clients=range(clients))
    task = ct.Task(ct.models.linear(width, 2))
    result = ct.fit(
        ct.FedAvg(ct.LocalSGD(steps=2)), fed, task, rounds=3, engine=ct.engines.LocalEngine(workers=1), alone="equal budget",
        callbacks=[lambda row, state: seen.append(anonymous_mb())],
    )  # fmt: skip
    result.evaluate()
    seen.append(anonymous_mb())
    held = fed.holdout(0.25, seed=0).subset(range(clients - 1))
    seen.append(anonymous_mb())
    assert held.mapped
    assert max(seen) - seen[0] < 50
    assert max(seen) - before < 250
