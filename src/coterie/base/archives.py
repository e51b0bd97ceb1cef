"""How much a packed file may unpack to: a few kilobytes can be made to hold terabytes.

Readers call `check_unpacked` before a library unpacks the file. The file is unpacked block by block, and nothing is kept;
reading stops at the limit. A file that states too large a size is refused at once; a small stated size is not trusted.
"""

from __future__ import annotations

import gzip
import os
import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from coterie.errors import ConfigError, DataError

VARIABLE = "COTERIE_MAX_UNPACKED"
_MOST = 8 << 30  # bytes
_RATIO = 20  # large honest files may unpack to so many times their own size
_BLOCK = 1 << 20
_ROWS = 1024  # of a Parquet file at a time
_POINTER = 8  # bytes
_EXCEL = (".xlsx", ".xlsm")  # a sheet may be any part of them
_CELL = re.compile(rb"""\br\s*=\s*["']([A-Z]{0,3})([0-9]{1,7})["']""")  # the place of a cell or row of a sheet
_LONGEST = 32  # bytes of such a place


def most_unpacked(packed: int) -> int:
    """The most bytes that a file of `packed` bytes may unpack to: 8 GiB, or 20 times its size where that is more. The
    environment variable COTERIE_MAX_UNPACKED sets another limit."""
    given = os.environ.get(VARIABLE, "")
    if not given:
        return max(_MOST, _RATIO * packed)
    if not given.isascii() or not given.isdigit() or int(given) == 0:
        raise ConfigError(f"{VARIABLE} must be a whole number of bytes above 0; got {given!r}. Correct or unset it.")
    return int(given)


def check_unpacked(path: Path) -> None:
    """Refuse a gzip, zip (.xlsx, .npz) or Parquet file that unpacks to more than the limit; other files pass.

    The kind is read from the first bytes. A damaged file also passes: its reader says what is wrong with it."""
    with path.open("rb") as file:
        start = file.read(4)
    if start[:2] == b"\x1f\x8b":
        check_total(path, _gzip(path))
    elif start in (b"PK\x03\x04", b"PK\x05\x06") or zipfile.is_zipfile(path):
        check_total(path, _zip(path))
    elif start == b"PAR1":
        check_total(path, _parquet(path))


def check_total(path: Path, sizes: Iterator[int]) -> None:
    """Add up sizes of parts until there are no more, or too many bytes."""
    packed = path.stat().st_size
    most, total = most_unpacked(packed), 0
    for size in sizes:
        total += size
        if total > most:
            raise DataError(
                f"{path} must unpack to at most {most} bytes; its {packed} bytes unpack to {total} or more. If you trust "
                f"the file, set the environment variable {VARIABLE} to a larger number of bytes."
            )


_DAMAGE = (OSError, EOFError, ValueError, RuntimeError, NotImplementedError, zlib.error, zipfile.BadZipFile)


def _blocks(stream: Any) -> Iterator[int]:
    while block := stream.read(_BLOCK):
        yield len(block)


def _gzip(path: Path) -> Iterator[int]:
    with suppress(*_DAMAGE), gzip.open(path, "rb") as stream:
        yield from _blocks(stream)


def _zip(path: Path) -> Iterator[int]:
    """The sizes of the parts. A part that is stored uncompressed is not unpacked: Python reads no more of it than its
    stated size."""
    excel = path.name.lower().endswith(_EXCEL)
    with suppress(*_DAMAGE), zipfile.ZipFile(path) as archive:
        for part in archive.infolist():
            if part.compress_type == zipfile.ZIP_STORED and not excel:
                yield part.file_size
                continue
            with archive.open(part) as stream:
                yield from _sheet(stream) if excel else _blocks(stream)


def _sheet(stream: Any) -> Iterator[int]:
    """A sheet of Excel is read as a whole rectangle: two cells far apart are a table of billions of cells."""
    rows, columns, told, before = 0, 0, 0, b""
    while block := stream.read(_BLOCK):
        text = before + block.replace(b"\0", b"")  # of UTF-16
        for letters, row in _CELL.findall(text):
            rows, columns = max(rows, int(row)), max(columns, _column(letters))
        yield len(block) + _POINTER * rows * columns - told
        told, before = _POINTER * rows * columns, text[-_LONGEST:]


def _column(letters: bytes) -> int:
    """A is 1, Z is 26, AA is 27."""
    number = 0
    for letter in letters:
        number = 26 * number + letter - 64
    return number


def _parquet(path: Path) -> Iterator[int]:
    """Texts stay a dictionary and numbers of its entries here: one long text that a million rows share is still short."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with suppress(*_DAMAGE, pa.ArrowException):
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
        texts = [field.name for field in schema if _is_text(field.type)]
        with pq.ParquetFile(path, read_dictionary=texts) as file:
            for batch in file.iter_batches(batch_size=_ROWS):
                yield sum(_size(column) for column in batch.columns)


def _size(column: Any) -> int:
    """The bytes of a column's values, a dictionary's written out. Nulls take no bytes in the file and a pointer each in a
    table, also inside lists."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_null(column.type):
        return _POINTER * len(column)
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        return _POINTER * len(column) + _size(column.flatten())
    if pa.types.is_struct(column.type):
        return _POINTER * len(column) + sum(_size(part) for part in column.flatten())
    if not pa.types.is_dictionary(column.type):
        return int(column.nbytes)
    entries = column.dictionary
    if not _is_text(entries.type):
        return int(column.nbytes)
    return int(pc.sum(pc.binary_length(entries).take(column.indices)).as_py() or 0) + 4 * len(column)


def _is_text(kind: Any) -> bool:
    """Texts and bytes, also those that pandas writes (large_string)."""
    import pyarrow.types as types

    return any(
        is_it(kind) for is_it in (types.is_string, types.is_binary, types.is_large_string, types.is_large_binary)
    )
