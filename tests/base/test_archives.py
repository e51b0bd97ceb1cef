"""Files that unpack to more than is allowed are refused with one sentence by every reader; honest ones are read."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp

import coterie as ct
from coterie.base import archives
from coterie.base.archives import VARIABLE, check_unpacked, most_unpacked
from coterie.data.reading import read_table
from coterie.datasets.files import convert_cifar10
from coterie.errors import ConfigError, DataError
from coterie.estimation.histograms.count_store import open_store
from coterie.estimation.histograms.counts import read_counts

LIMIT = 1_000_000
ROWS = 200_000


def _opened(path: Path) -> None:
    with open_store(path):
        pass


def _folder(path: Path) -> None:
    ct.Federation.from_folder(path.parent)


def csv_gz(path: Path) -> None:
    path.write_bytes(gzip.compress(b"a,b\n" + b"1,2\n" * (10 * LIMIT // 4)))


def parquet_numbers(path: Path) -> None:
    pd.DataFrame({"user": np.zeros(ROWS, int), "token": np.zeros(ROWS, int), "count": 1}).to_parquet(path)


def parquet_texts(path: Path) -> None:
    """One long text that all rows share, each time shorter than the limit: 100 kB a row, a few kilobytes in all."""
    pd.DataFrame({"user": ["u" * 100_000] * 50, "token": ["t"] * 50, "count": 1}).to_parquet(path)


def npz(path: Path) -> None:
    np.savez_compressed(path, x=np.zeros((ROWS, 2)), y=np.zeros(ROWS))


def npz_counts(path: Path) -> None:
    counts = sp.csr_array(np.ones((1000, 300)))
    np.savez_compressed(path, indptr=counts.indptr, indices=counts.indices, data=counts.data, shape=counts.shape)


def npz_scipy(path: Path) -> None:
    sp.save_npz(path, sp.csr_array(np.ones((1000, 300))))


def xlsx(path: Path) -> None:
    """The container of an Excel file; it is refused before anything looks at the sheet."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/worksheets/sheet1.xml", b"<row/>" * (10 * LIMIT // 6))


def tar_gz(path: Path) -> None:
    with tarfile.open(path, "w:gz") as tar:
        info = tarfile.TarInfo("data_batch_1.bin")
        info.size = 10 * LIMIT
        tar.addfile(info, io.BytesIO(bytes(info.size)))


BOMBS: list[tuple[str, Callable[[Path], None], Callable[[Path], Any]]] = [
    ("t.csv.gz", csv_gz, read_table),
    ("t.parquet", parquet_numbers, read_table),
    ("t.parquet", parquet_texts, read_table),
    ("t.xlsx", xlsx, read_table),
    ("t.npz", npz, _folder),
    ("t.npz", npz_counts, read_counts),
    ("t.npz", npz_scipy, read_counts),
    ("t.npz", npz_counts, _opened),
    ("t.npz", npz_scipy, _opened),
    ("t.parquet", parquet_numbers, read_counts),
    ("t.parquet", parquet_numbers, _opened),
    ("t.parquet", parquet_texts, _opened),
    ("t.tar.gz", tar_gz, lambda path: convert_cifar10(path, path.with_name("out.npz"))),
]


@pytest.mark.parametrize(("name", "make", "read"), BOMBS)
def test_a_bomb_is_refused_with_one_sentence(
    name: str, make: Any, read: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / name
    make(path)
    assert path.stat().st_size < LIMIT / 4
    monkeypatch.setenv(VARIABLE, str(LIMIT))
    with pytest.raises(DataError, match=rf"must unpack to at most {LIMIT} bytes; its \d+ bytes.*{VARIABLE}") as found:
        read(path)
    assert "\n" not in str(found.value)
    monkeypatch.setenv(VARIABLE, str(1000 * LIMIT))
    check_unpacked(path)


def test_stated_sizes_are_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gzip file's last four bytes give its size; here they say 7. A zip part says 7 as well, and no more is read."""
    monkeypatch.setenv(VARIABLE, str(LIMIT))
    path = tmp_path / "t.csv.gz"
    csv_gz(path)
    path.write_bytes(path.read_bytes()[:-4] + struct.pack("<I", 7))
    with pytest.raises(DataError, match="must unpack to at most"):
        check_unpacked(path)
    archive = tmp_path / "alone" / "t.npz"
    archive.parent.mkdir()
    npz(archive)
    said = struct.pack("<I", 16 * ROWS + 128)
    assert said in archive.read_bytes()
    archive.write_bytes(archive.read_bytes().replace(said, struct.pack("<I", 7)))
    with pytest.raises(DataError, match=r"cannot be read|must unpack"):
        _folder(archive)


def test_many_members_of_a_gzip_file_are_added_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(LIMIT))
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"a,b\n") + gzip.compress(b"1,2\n" * 10_000) * 30)
    with pytest.raises(DataError, match="must unpack to at most"):
        read_table(path)


def test_a_tar_member_with_holes_is_counted_as_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.tar.gz"
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("data_batch_1.bin")
        info.pax_headers = {"GNU.sparse.map": "0,1", "GNU.sparse.size": str(10 * LIMIT)}
        info.size = 1
        tar.addfile(info, io.BytesIO(b"x"))
    monkeypatch.setenv(VARIABLE, str(LIMIT))
    with pytest.raises(DataError, match="must unpack to at most"):
        convert_cifar10(path, tmp_path / "out.npz")


def test_honest_and_damaged_files_pass(tmp_path: Path) -> None:
    for name, make, read in BOMBS[:2]:
        make(tmp_path / name)
        assert len(read(tmp_path / name)) > 1000  # under the usual limit
    (tmp_path / "cut.csv.gz").write_bytes((tmp_path / "t.csv.gz").read_bytes()[:-20])
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "t.parquet").read_bytes()[:-20])
    (tmp_path / "cut.csv").write_bytes(b"PK\x03\x04 \0 and nothing else")
    for path in tmp_path.glob("cut*"):
        with pytest.raises(DataError, match="cannot be read as a table"):
            read_table(path)


@pytest.mark.parametrize("kind", ["string", "large_string", "binary", "large_binary"])
def test_a_long_text_of_many_rows_is_never_written_out(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred rows share a text of 4 MB. What Arrow holds of them at a time must stay near that, not near 400 MB."""
    text, path = "u" * 4_000_000, tmp_path / "t.parquet"
    column = pa.array([text], pa.string()).take(pa.array([0] * 100)).cast(getattr(pa, kind)())
    pq.write_table(pa.table({"a": column}), path)
    held, size, whole = [], archives._size, 100 * (len(text) + 4)
    monkeypatch.setattr(archives, "_size", lambda column: held.append(column.nbytes) or size(column))
    monkeypatch.setenv(VARIABLE, str(whole))
    check_unpacked(path)
    assert max(held) < 2 * len(text)
    monkeypatch.setenv(VARIABLE, str(whole - 1))
    with pytest.raises(DataError, match=f"unpack to {whole} or more"):
        check_unpacked(path)


def test_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert most_unpacked(1000) == 8 << 30
    assert most_unpacked(10**9) == 20 * 10**9
    for bad in ("0", "-1", "8 GB", "1e9", "²"):
        monkeypatch.setenv(VARIABLE, bad)
        with pytest.raises(ConfigError, match="must be a whole number of bytes above 0"):
            most_unpacked(1)


@pytest.mark.parametrize("part", ["xl/worksheets/sheet1.xml", "elsewhere.xml"])
@pytest.mark.parametrize("how", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_two_cells_of_a_sheet_that_are_far_apart_are_a_large_table(part: str, how: int, tmp_path: Path) -> None:
    """Readers fill the rectangle between them: 1,048,576 rows of 16,384 columns."""
    cells = {"far": ("A1048576", "XFD1"), "near": ("A1048576", "B1")}
    for name, (one, two) in cells.items():
        with zipfile.ZipFile(tmp_path / f"{name}.xlsx", "w", how) as archive:
            text = f'<row r="1"><c r="{two}"/></row>{" " * 3_000_000}<row><c t="n" r = "{one}"/></row>'
            archive.writestr(part, text.encode("utf-16" if part == "elsewhere.xml" else "utf-8"))
    check_unpacked(tmp_path / "near.xlsx")
    with pytest.raises(ct.errors.DataError, match="must unpack to at most"):
        check_unpacked(tmp_path / "far.xlsx")


@pytest.mark.parametrize("kind", ["null", "list", "struct"])
def test_nulls_of_a_parquet_file_take_their_place(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nulls = pa.nulls(1_000_000)
    column = {
        "null": nulls,
        "list": pa.ListArray.from_arrays(pa.array([0, 1_000_000], pa.int32()), nulls),
        "struct": pa.StructArray.from_arrays([nulls], ["a"]),
    }[kind]
    pq.write_table(pa.table({"a": column}), tmp_path / "a.parquet")
    check_unpacked(tmp_path / "a.parquet")
    monkeypatch.setenv("COTERIE_MAX_UNPACKED", "7999999")
    with pytest.raises(ct.errors.DataError, match="must unpack to at most"):
        check_unpacked(tmp_path / "a.parquet")
