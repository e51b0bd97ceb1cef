"""Data files: looked for in COTERIE_DATA, then the cache, then downloaded; checked; errors say what to put where."""

from __future__ import annotations

import hashlib
import io
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pooch
import pytest

from coterie.datasets import files
from coterie.datasets.files import FILES, convert_cifar10, find_data, is_available, load_arrays
from coterie.errors import DataError


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder, an empty cache and no network."""

    def offline(*args: Any, **kwargs: Any) -> str:
        raise OSError("no network")

    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(files, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(pooch, "retrieve", offline)
    (tmp_path / "data").mkdir()
    (tmp_path / "cache").mkdir()
    return tmp_path


def own_file(folder: Path, name: str = "har.npz", **arrays: Any) -> str:
    np.savez(folder / name, **arrays)
    return hashlib.sha256((folder / name).read_bytes()).hexdigest()


@pytest.mark.parametrize("name", list(FILES))
def test_a_missing_file_says_what_to_put_where(name: str, empty: Path) -> None:
    assert not is_available(name)
    with pytest.raises(DataError) as problem:
        find_data(name)
    message = str(problem.value)
    assert message.startswith(f"{name} is needed: put it into {empty / 'data'} or {empty / 'cache'}")
    assert FILES[name].contents in message
    assert ("failed: no network" in message) == (FILES[name].download is not None)


def test_without_the_variable_the_message_names_it(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COTERIE_DATA")
    with pytest.raises(DataError, match="set COTERIE_DATA to it"):
        find_data("har.npz")


def test_an_unknown_file_is_refused_until_its_hash_is_written_down(empty: Path) -> None:
    digest = own_file(empty / "data", x=np.zeros(3))
    with pytest.raises(DataError, match=f"its SHA-256 is {digest}, expected {FILES['har.npz'].sha256[0]}"):
        find_data("har.npz")
    (empty / "data" / "har.npz.sha256").write_text(f"{digest}  har.npz\n")
    assert find_data("har.npz") == empty / "data" / "har.npz"
    with pytest.raises(DataError, match=r"har\.npz lacks y, subject; it should hold x"):
        load_arrays("har.npz", "x", "y", "subject")
    own_file(empty / "data", x=np.zeros(4000))  # a changed file is hashed again
    with pytest.raises(DataError, match="is not the expected file"):
        find_data("har.npz")


def test_the_folder_goes_before_the_cache(empty: Path) -> None:
    for folder in ("cache", "data"):
        digest = own_file(empty / folder, x=np.zeros(3))
        (empty / folder / "har.npz.sha256").write_text(digest)
        assert find_data("har.npz") == empty / folder / "har.npz"


def test_a_download_is_converted_once(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    batches = {
        f"cifar-10-batches-bin/{name}.bin": rng.integers(0, 10, (2, 3073), dtype=np.uint8)
        for name in ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"]
    }
    archive = empty / "cifar-10-binary.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name, rows in batches.items():
            info = tarfile.TarInfo(name)
            info.size = rows.nbytes
            tar.addfile(info, io.BytesIO(rows.tobytes()))
    calls = []

    def retrieve(url: str, known_hash: str, **where: Any) -> str:
        calls.append((url, known_hash))
        return str(archive)

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    for _ in range(2):
        x, y, x_test = load_arrays("cifar10.npz", "x_train", "y_train", "x_test")
    assert calls == [
        ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "md5:c32a1d4ab5d03f1284b67883e8d87530")
    ]
    assert x.shape == (10, 32, 32, 3)
    assert x_test.shape == (2, 32, 32, 3)
    second = batches["cifar-10-batches-bin/data_batch_2.bin"][1]
    assert y[3] == second[0]
    assert x[3, 5, 7, 2] == second[1 + 2 * 1024 + 5 * 32 + 7]  # channel 2, row 5, column 7 of the record


def test_a_plain_download_is_used_as_it_is(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = own_file(empty, "mnist.npz", x_train=np.zeros(3))
    monkeypatch.setitem(FILES, "mnist.npz", replace(FILES["mnist.npz"], sha256=(digest,)))
    monkeypatch.setattr(pooch, "retrieve", lambda *a, **k: str(empty / "mnist.npz"))
    assert find_data("mnist.npz") == empty / "mnist.npz"


def test_unknown_names_are_refused() -> None:
    with pytest.raises(DataError, match=r"no data file 'mnst\.npz'"):
        find_data("mnst.npz")


def test_downloads_have_a_checksum_and_a_converter_that_exists() -> None:
    for about in FILES.values():
        assert all(len(h) == 64 for h in about.sha256)
        if about.download:
            assert len(about.download.known_hash.removeprefix("md5:")) in (32, 64)
    assert FILES["cifar10.npz"].download is not None
    assert FILES["cifar10.npz"].download.convert is convert_cifar10


def test_the_real_files_are_the_known_ones(data_folder: Path) -> None:
    for name in FILES:
        assert find_data(name) == data_folder / name
