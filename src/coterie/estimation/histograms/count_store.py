"""Counts on disk: a folder of plain .npy files (indptr, indices, data, shape), read a block of users at a time."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pandas as pd
import scipy.sparse as sp
from numpy.typing import NDArray

from coterie.base.annotations import guarded
from coterie.base.archives import check_unpacked
from coterie.base.arguments import labels
from coterie.base.disk import write_text, writing
from coterie.errors import DataError
from coterie.estimation.histograms.counts import (
    COLUMNS,
    CSV,
    PUBLIC,
    WIDEST,
    Counts,
    check_counts,
    check_names,
    check_rows,
    check_values,
    column_numbers,
    npz_names,
    read_counts,
    readable,
)
from coterie.privacy import Released

_PARTS = ("indptr", "indices", "data", "shape")
_BATCH = 1_000_000  # rows of a table read at a time


class CountStore:
    """A folder of counts. Only the row pointers stay in memory; a block is mapped, copied and unmapped again."""

    def __init__(self, folder: Path) -> None:
        check_names([path.stem for path in folder.glob("*.npy")], _PARTS, f"A folder of counts ({folder.name})")
        self.folder = folder
        with readable(folder):
            users, tokens = self._part("shape")
            self.shape = (int(users), int(tokens))
            self._indptr = np.asarray(self._part("indptr"), dtype=np.int64)
            stored = {name: len(self._part(name)) for name in ("indices", "data")}
        fits = self._indptr.shape == (self.shape[0] + 1,) and not self._indptr[0] and (np.diff(self._indptr) >= 0).all()
        if not fits or not 0 < self.shape[1] <= WIDEST or any(size < self._indptr[-1] for size in stored.values()):
            raise DataError(
                f"A folder of counts must hold as many entries as indptr says; got shape {self.shape}, {stored}. "
                "Write the folder anew with save_counts."
            )

    def load(self, start: int, stop: int) -> Counts:
        """Raw counts of users start … stop − 1, checked."""
        begin, end = int(self._indptr[start]), int(self._indptr[stop])
        with readable(self.folder):
            data = np.array(self._part("data")[begin:end], dtype=np.float64)
            indices = np.array(self._part("indices")[begin:end], dtype=np.int64)
        if indices.size and not (indices.min() >= 0 and indices.max() < self.shape[1]):
            raise DataError(
                f"Token indices must be between 0 and {self.shape[1] - 1}; got {indices.min()} … {indices.max()}. "
                "Write the folder anew with save_counts."
            )
        pointers = (self._indptr[start : stop + 1] - begin).astype(np.int32)
        return check_counts(
            sp.csr_array((data, indices.astype(np.int32), pointers), shape=(stop - start, self.shape[1]))
        )

    def users(self) -> NDArray[Any] | None:
        return self._optional("users")

    def vocabulary(self) -> NDArray[Any] | None:
        return self._optional("vocabulary")

    def _part(self, name: str) -> NDArray[Any]:
        return np.asarray(np.load(self.folder / f"{name}.npy", mmap_mode="r", allow_pickle=False))

    def _optional(self, name: str) -> NDArray[Any] | None:
        if not (self.folder / f"{name}.npy").exists():
            return None
        with readable(self.folder):
            return np.array(self._part(name))


@guarded
def save_counts(folder: str | Path, blocks: Iterable[Any], users: Any = None, vocabulary: Any = None) -> Path:
    """Write blocks of users (CSR or dense, the same tokens in each), in order, as a folder `fit_stream` reads.

    A private fit of the folder needs `vocabulary=privacy.public([...])`: tokens of unknown origin void its receipt."""
    folder = Path(folder)
    (folder / PUBLIC).unlink(missing_ok=True)
    known = isinstance(vocabulary, Released) and vocabulary.free
    vocabulary = vocabulary.value if isinstance(vocabulary, Released) else vocabulary
    lengths, width = [np.zeros(1, dtype=np.int64)], None
    with (
        writing(folder / "indices.npy") as indices_file,
        writing(folder / "data.npy") as data_file,
        _NpyWriter(indices_file, np.int32) as indices,
        _NpyWriter(data_file, np.float32) as data,
    ):
        for block in blocks:
            counts = check_counts(block, width)
            width = counts.shape[1]
            lengths.append(np.diff(counts.indptr).astype(np.int64))
            indices.append(counts.indices)
            data.append(counts.data)
    if width is None:
        raise DataError("save_counts needs at least one block of users; got none. Pass one or more blocks.")
    pointers = np.cumsum(np.concatenate(lengths))
    _save(folder, "indptr", pointers)
    _save(folder, "shape", np.array([len(pointers) - 1, width]))
    for name, values in (("users", users), ("vocabulary", vocabulary)):
        if values is not None:
            _save(folder, name, labels(name, values))
        else:  # the file of an earlier call, with other users, is removed
            (folder / f"{name}.npy").unlink(missing_ok=True)
    if known:
        write_text(folder / PUBLIC, "declared by the user\n")
    return folder


def _save(folder: Path, name: str, values: NDArray[Any]) -> None:
    with writing(folder / f"{name}.npy") as partial, partial.open("wb") as file:
        np.save(file, values.astype(str) if values.dtype == object else values)


class _NpyWriter:
    """A one-dimensional .npy file whose length is known only at the end."""

    def __init__(self, path: Path, dtype: Any) -> None:
        self._file: BinaryIO = path.open("wb")
        self._dtype, self._length = np.dtype(dtype), 0
        self._header()

    def _header(self) -> None:
        self._file.seek(0)
        text = f"{{'descr': '{self._dtype.str}', 'fortran_order': False, 'shape': ({self._length},), }}"
        self._file.write(b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + text.ljust(117).encode() + b"\n")

    def append(self, values: NDArray[Any]) -> None:
        self._file.write(np.ascontiguousarray(values, dtype=self._dtype).data)
        self._length += len(values)

    def __enter__(self) -> _NpyWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._header()
        self._file.close()


@contextmanager
def open_store(source: Path) -> Iterator[CountStore]:
    """A store for a folder, or a temporary one made from an .npz, Parquet or CSV file."""
    if source.is_dir():
        yield CountStore(source)
        return
    if not source.exists():
        raise DataError(f"Counts must come from an existing file or folder; {source} does not exist. Check the path.")
    with tempfile.TemporaryDirectory(prefix="coterie-counts-") as name:
        folder = Path(name)
        if source.suffix in {".npz", ".parquet", ".pq", ".csv"}:
            with readable(source):
                check_unpacked(source)
                (_unpack if source.suffix == ".npz" else _lay_out)(source, folder)
        else:
            raise DataError(
                f"Counts are streamed from a folder, .parquet, .csv or .npz; got {source.name}. Convert it to one of these."
            )
        yield CountStore(folder)


def _unpack(source: Path, folder: Path) -> None:
    """Unpack the .npy files inside an .npz. A matrix that is not stored by rows is read whole and written anew."""
    with zipfile.ZipFile(source) as archive:
        members = [Path(member).stem for member in archive.namelist()]
        if "format" in members:
            with source.open("rb") as file, np.load(file, allow_pickle=False) as parts:
                by_rows = parts["format"].item() in (b"csr", "csr")
            if not by_rows:
                table = read_counts(source)
                save_counts(folder, [table.counts], users=table.users, vocabulary=table.vocabulary)
                return
        check_names(members, _PARTS, source.name)
        most = max(sum(archive.getinfo(f"{part}.npy").file_size for part in _PARTS), 1)
        if most > 1100 * max(source.stat().st_size, 1):  # beyond what compression can do
            raise DataError(
                f"{source} is not a readable file of counts: it says that it holds {most} bytes. Take it from a copy, or "
                "write it again."
            )
        archive.extractall(folder, [f"{part}.npy" for part in _PARTS])
    for name, values in zip(("users", "vocabulary"), npz_names(source, CountStore(folder).shape), strict=True):
        if values is not None:
            _save(folder, name, values)


def _lay_out(source: Path, folder: Path) -> None:
    """Two passes over a table sorted by user: first collect the tokens, then write the counts."""
    names: set[Any] = set()
    for batch in _batches(source):
        check_rows(batch, source.name)
        names.update(batch["token"].unique().tolist())
    if not names:
        raise DataError(f"{source.name} needs at least one row of user, token, count; got none. Check the file.")
    integers = all(isinstance(name, int) for name in names)
    vocabulary = None if integers else np.array(sorted(map(str, names)))
    width = column_numbers(min(names), max(names)) if vocabulary is None else len(vocabulary)
    users: list[Any] = []

    def blocks() -> Iterator[Counts]:
        for rows in _whole_users(source):
            codes, ids = pd.factorize(rows["user"], sort=False)
            if not ids.is_monotonic_increasing or (users and not users[-1][-1] < ids[0]):
                raise DataError(
                    f"A table to be streamed must be sorted by user; {source.name} is not. Sort it, or use fit."
                )
            users.append(np.asarray(ids))
            tokens = (
                np.asarray(rows["token"])
                if vocabulary is None
                else np.searchsorted(vocabulary, rows["token"].astype(str))
            )
            values = np.asarray(rows["count"], dtype=np.float64)
            check_values(values)
            yield check_counts(sp.coo_array((values, (codes, tokens)), shape=(len(ids), width)))

    save_counts(folder, blocks(), vocabulary=vocabulary)
    _save(folder, "users", np.concatenate(users))


def _batches(source: Path) -> Iterator[pd.DataFrame]:
    if source.suffix == ".csv":
        with pd.read_csv(source, chunksize=_BATCH, **CSV) as reader:
            for frame in reader:
                check_names(frame.columns, COLUMNS, source.name)
                yield frame
        return
    import pyarrow.parquet as pq

    with pq.ParquetFile(source) as file:
        check_names(file.schema_arrow.names, COLUMNS, source.name)
        for batch in file.iter_batches(batch_size=_BATCH, columns=list(COLUMNS)):
            yield batch.to_pandas()


def _whole_users(source: Path) -> Iterator[pd.DataFrame]:
    """Batches that never divide a user: the last user of each batch is held back for the next one."""
    waiting: pd.DataFrame | None = None
    for batch in _batches(source):
        rows = batch if waiting is None else pd.concat([waiting, batch])
        last = np.asarray(rows["user"] == rows["user"].iloc[-1])
        if (~last).any():
            yield rows[~last]
        waiting = rows[last]
    if waiting is not None:
        yield waiting
