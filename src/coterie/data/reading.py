"""A file → a table. Delimiter, decimal sign and encoding are recognised and can be given.

Nothing that was written is lost: whole numbers with leading zeros (030018) are codes and stay text, and so do clients
that are not plain whole numbers (1e5, 2.50).
"""

from __future__ import annotations

import codecs
import csv
import difflib
import gzip
import importlib.util
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import pandas as pd

from coterie.base.archives import check_unpacked
from coterie.base.text import listed
from coterie.errors import ConfigError, DataError

__all__ = ["read_table"]

CSV = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".txt", ".txt.gz")
PARQUET = (".parquet", ".pq")
EXCEL = (".xlsx", ".xlsm")
DELIMITERS = (",", ";", "\t", "|")
_SPELT = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "pipe": "|", "space": " "}
_BOMS = (  # the longer ones first: UTF-32's starts like UTF-16's
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_CHUNK = 1 << 20
_SAMPLE = 1 << 17
_LEADING_ZERO = re.compile(r"0\d+")
_WHOLE = re.compile(r"-?(0|[1-9]\d{0,17})(\.0)?")
_COMMA_NUMBER = re.compile(r"[+-]?\d+,\d+")
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+")
_POINT_NUMBER = re.compile(r"[+-]?\d*\.\d+")


@dataclass(frozen=True)
class _Format:
    """How a CSV file is written."""

    encoding: str
    delimiter: str
    decimal: str
    skip: int = 0
    """Lines before the header: Excel writes `sep=;` there."""
    trailing: bool = False
    """Every row ends with a delimiter that the header lacks."""

    def read(self, path: Path, **options: Any) -> pd.DataFrame:
        frame: pd.DataFrame = pd.read_csv(
            path,
            sep=self.delimiter,
            decimal=self.decimal,
            encoding=self.encoding,
            skiprows=self.skip,
            index_col=False if self.trailing else None,
            na_values=["?"],
            low_memory=False,
            skipinitialspace=True,
            **options,
        )
        return frame


def read_table(
    path: str | Path,
    *,
    client: str | None = None,
    delimiter: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
    text: bool = False,
) -> pd.DataFrame:
    """A Parquet (.parquet, .pq), CSV (.csv, .tsv, .txt, also .gz) or, with openpyxl, Excel file (first sheet).

    `delimiter` (comma, semicolon, tab or pipe), `decimal` (point or comma) and `encoding` (UTF-8, UTF-16, Windows-1252)
    are recognised; a given value is used as it is. `?` counts as missing, in addition to pandas' own list (empty, NA, NaN,
    null, …). Columns of digits with leading zeros stay text. A first column without a name that only counts the rows (as
    `DataFrame.to_csv` writes it) is left out.

    `text=True` reads every cell on its own, for private runs: no value changes how others are read. Cells stay text, nothing
    is recognised from rows (delimiter: from the header; decimal: a point; encoding: UTF-8), and a row with more cells than
    the header, or an unnamed first column, is left out.
    """
    path = Path(path)
    name = path.name.lower()
    if re.match(r"\w{2,}:/", str(path)):
        raise DataError(f"A table must be a file on this machine, not an address. Download {path.name} first.")
    _check_options(delimiter, decimal, encoding)
    if name.endswith(".xls"):
        raise DataError(f"{path} is an old Excel file, which coterie cannot read. Save it as CSV and give that file.")
    if not name.endswith(CSV + PARQUET + EXCEL):
        raise DataError(
            f"{path} is neither CSV, Parquet nor Excel: give a file ending in {', '.join(CSV + PARQUET + EXCEL)}."
        )
    if not path.is_file():
        near = difflib.get_close_matches(path.name, [p.name for p in _siblings(path)], n=1)
        raise DataError(f"There is no file {path}. " + (f"Did you mean {near[0]}?" if near else "Check the path."))
    if not path.stat().st_size:
        raise DataError(f"{path} is empty: it has neither columns nor rows. Give a file with a table.")
    check_unpacked(path)
    if name.endswith(EXCEL) and importlib.util.find_spec("openpyxl") is None:
        raise DataError(f"{path} is an Excel file. Save it as CSV, or `pip install openpyxl` and try again.")
    try:
        if name.endswith(PARQUET):
            return pd.read_parquet(path)
        if text:
            return _read_cells(path, client, delimiter, decimal or ".", encoding)
        frame = (
            _read_excel(path, client) if name.endswith(EXCEL) else _read_csv(path, client, delimiter, decimal, encoding)
        )
    except DataError:
        raise
    except Exception as problem:  # pandas and pyarrow raise many kinds; the user needs the one sentence
        reason = (str(problem).strip() or type(problem).__name__).splitlines()[0].rstrip(".")
        raise DataError(
            f"{path} cannot be read as a table: {reason}. Check that it is a whole, valid file,",
            python="or give delimiter, decimal and encoding.",
            cli="or give --delimiter, --decimal and --encoding.",
        ) from None
    return _without_counter(frame)


def _siblings(path: Path) -> Iterable[Path]:
    return path.parent.iterdir() if path.parent.is_dir() else ()


def _check_options(delimiter: str | None, decimal: str | None, encoding: str | None) -> None:
    if delimiter is not None and len(_SPELT.get(delimiter, delimiter)) != 1:
        raise ConfigError(f"delimiter must be one character, or tab, space, comma, semicolon, pipe; got {delimiter!r}.")
    if decimal not in (None, ".", ","):
        raise ConfigError(f"decimal must be '.' or ','; got {decimal!r}.")
    if encoding is not None:
        try:
            codecs.lookup(encoding)
        except LookupError:
            raise ConfigError(
                f"encoding must be one that Python knows, such as utf-8, utf-16, cp1252 or latin-1; got {encoding!r}."
            ) from None


def _without_counter(frame: pd.DataFrame) -> pd.DataFrame:
    if not isinstance(frame.index, pd.RangeIndex):  # R writes row names without a name in the header
        return frame.reset_index(names="row names")
    frame = frame.reset_index(drop=True)
    first = frame.columns[0] if len(frame.columns) else ""
    counts_rows = str(first).startswith("Unnamed") and np.array_equal(frame[first].to_numpy(), np.arange(len(frame)))
    return frame.drop(columns=first) if counts_rows else frame


# ---- CSV -------------------------------------------------------------------------------------------------------------


def _read_csv(
    path: Path, client: str | None, delimiter: str | None, decimal: str | None, encoding: str | None
) -> pd.DataFrame:
    form = _recognise(path, delimiter, decimal, encoding)
    frame = form.read(path)
    wanted = _may_be_codes(frame, client)
    if not wanted:
        return frame
    texts = form.read(path, usecols=wanted, dtype=dict.fromkeys(wanted, "str"))
    return _keep_codes(frame, texts, client)


def _read_cells(
    path: Path, client: str | None, delimiter: str | None, decimal: str, encoding: str | None
) -> pd.DataFrame:
    """Every cell as it is written, but for the decimal sign of numbers; clients that are plain whole numbers are numbers."""
    if path.name.lower().endswith(EXCEL):
        frame = pd.read_excel(path, na_values=["?"], dtype="str")
    else:
        form = _recognise(path, delimiter, decimal, encoding, header=True)
        frame = replace(form, trailing=True).read(path, dtype="str", on_bad_lines="skip", encoding_errors="replace")
    frame = frame.drop(columns=[c for c in frame.columns[:1] if str(c).startswith("Unnamed")])
    for column in frame.columns:
        cells = frame[column].str.strip()
        if decimal == ",":
            cells = cells.where(~cells.str.fullmatch(_COMMA_NUMBER, na=False), cells.str.replace(",", "."))
        frame[column] = cells
    if client in frame.columns and all(_WHOLE.fullmatch(t) for t in frame[client].dropna().unique()):
        numbers = pd.to_numeric(frame[client]).astype("Int64")
        frame[client] = numbers if frame[client].isna().any() else numbers.astype("int64")
    return frame


def _read_excel(path: Path, client: str | None) -> pd.DataFrame:
    frame = pd.read_excel(path, na_values=["?"])
    wanted = _may_be_codes(frame, client)
    texts = (
        pd.read_excel(path, na_values=["?"], usecols=wanted, dtype=dict.fromkeys(wanted, "str")) if wanted else frame
    )
    return _keep_codes(frame, texts, client) if wanted else frame


def _may_be_codes(frame: pd.DataFrame, client: str | None) -> list[str]:
    """Columns of whole numbers, and the client column; their text may have been more than the number (leading zeros)."""
    if not isinstance(frame.index, pd.RangeIndex):
        return []
    numbers = [c for c in frame.columns if pd.api.types.is_numeric_dtype(frame[c])]
    whole = [c for c in numbers if c == client or bool((frame[c].dropna() % 1 == 0).all())]
    return [c for c in whole if frame[c].notna().any() and not pd.api.types.is_bool_dtype(frame[c])]


def _keep_codes(frame: pd.DataFrame, texts: pd.DataFrame, client: str | None) -> pd.DataFrame:
    codes: dict[str, Any] = {}
    for column in texts.columns:
        distinct = [str(t).strip() for t in texts[column].dropna().unique()]
        plain = column != client or all(_WHOLE.fullmatch(t) for t in distinct)
        if not plain or any(_LEADING_ZERO.fullmatch(t) for t in distinct):
            codes[column] = texts[column].str.strip()
        elif column == client and pd.api.types.is_float_dtype(frame[column]):  # 1, 2 and a gap became 1.0 and 2.0
            codes[column] = frame[column].astype("Int64")
    return frame.assign(**codes) if codes else frame


# ---- what kind of file it is -----------------------------------------------------------------------------------------


def _recognise(
    path: Path, delimiter: str | None, decimal: str | None, encoding: str | None, *, header: bool = False
) -> _Format:
    """How a file is written, as its first rows show; with `header` as its first line alone shows."""
    encoding = encoding or (_mark(path) or "utf-8" if header else _encoding(path))
    with _open(path) as stream:
        head = stream.read(_SAMPLE) + stream.readline()  # up to the end of a line
    text = codecs.getincrementaldecoder(encoding)("replace").decode(head)
    if "\0" in (text.lstrip().split("\n", 1)[0] if header else text):  # no other line decides whether a table is read
        raise DataError(f"{path} cannot be read as a table: it holds zero bytes, so it is no text. Save it as CSV.")
    lines = text.splitlines()
    form = _Format(encoding, ",", ".")
    if lines and (told := re.fullmatch(r'"?sep=(.)"?', lines[0])):
        form, lines, delimiter = replace(form, skip=1), lines[1:], delimiter or told[1]
    lines = [line for line in lines if line.strip()]
    usual = "\t" if ".tsv" in path.name.lower() else ","
    lines = lines[:1] if header else lines
    delimiter = _SPELT.get(delimiter, delimiter) if delimiter else _delimiter(lines, usual)
    rows = _cells(lines, delimiter)
    twice = (
        [name for name, times in Counter(name.strip() for name in rows[0] if name.strip()).items() if times > 1]
        if rows
        else []
    )
    if twice:
        raise DataError(f"Every column needs its own name; {path} has {listed(map(repr, twice))} twice. Rename one.")
    trailing = len(rows) > 1 and all(len(r) == len(rows[0]) + 1 and not r[-1].strip() for r in rows[1:])
    return replace(form, delimiter=delimiter, decimal=decimal or _decimal(rows[1:]), trailing=trailing)


def _open(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path, "rb")) if path.name.lower().endswith(".gz") else path.open("rb")


def _mark(path: Path) -> str | None:
    """The encoding that a mark at the start of a file names."""
    with _open(path) as stream:
        start = stream.read(4)
    return next((name for mark, name in _BOMS if start.startswith(mark)), None)


def _encoding(path: Path) -> str:
    """The mark at the start; else zero bytes at every other place (UTF-16); else UTF-8 if all of it is; else Windows."""
    with _open(path) as stream:
        chunk = stream.read(_CHUNK)
        for mark, name in _BOMS:
            if chunk.startswith(mark):
                return name
        even, odd = chunk[:4096:2].count(0), chunk[1:4096:2].count(0)
        if max(even, odd) > 0.3 * len(chunk[:4096:2]):
            return "utf-16-le" if odd > even else "utf-16-be"
        utf8 = codecs.getincrementaldecoder("utf-8")()
        windows = True
        try:
            while chunk:
                windows = windows and not any(byte in chunk for byte in b"\x81\x8d\x8f\x90\x9d")
                utf8.decode(chunk)
                chunk = stream.read(_CHUNK)
            utf8.decode(b"", final=True)
        except UnicodeDecodeError:
            while chunk and windows:
                windows = not any(byte in chunk for byte in b"\x81\x8d\x8f\x90\x9d")
                chunk = stream.read(_CHUNK)
            return "cp1252" if windows else "latin-1"
    return "utf-8"


def _cells(lines: Iterable[str], delimiter: str) -> list[list[str]]:
    try:
        return list(csv.reader(lines, delimiter=delimiter, skipinitialspace=True))
    except csv.Error:
        return []


def _delimiter(lines: list[str], usual: str) -> str:
    """The one that cuts the header into several names and most rows into as many cells; ties: the most cells."""
    best, chosen = (0.0, 0), usual
    for candidate in dict.fromkeys((usual, *DELIMITERS)):
        rows = _cells(lines, candidate)
        width = len(rows[0]) if rows else 0
        if width < 2:
            continue
        widths = Counter(map(len, rows[1:])) or Counter([width])
        share = (widths[width] + widths[width + 1]) / widths.total()  # one more: row names or a delimiter at the end
        if (round(share, 1), width) > best:
            best, chosen = (round(share, 1), width), candidate
    return chosen


def _decimal(rows: list[list[str]]) -> str:
    """A comma when numbers are written with one and none with a point; 1,234 alone may be one thousand."""
    cells = [cell.strip() for row in rows for cell in row]
    commas = [c for c in cells if _COMMA_NUMBER.fullmatch(c)]
    points = any(_POINT_NUMBER.fullmatch(c) for c in cells)
    return "," if commas and not points and not all(_THOUSANDS.fullmatch(c) for c in commas) else "."
