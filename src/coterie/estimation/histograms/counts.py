"""Reading and checking token counts: the users × tokens matrix behind every histogram estimator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from coterie.base.archives import check_unpacked
from coterie.base.arguments import finite, refuse_masked, regular
from coterie.base.disk import said
from coterie.errors import CoterieError, DataError

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Counts: TypeAlias = "sp.csr_array[np.float64, tuple[int, int]]"
Source: TypeAlias = "ArrayLike | sp.sparray | sp.spmatrix | pd.DataFrame | str | Path"

COLUMNS = ("user", "token", "count")
MISSING = ["", "NA", "N/A", "NaN", "nan", "null", "NULL", "None"]
# "NA", "null" and "nan" are words like any other here; only an empty field is missing
CSV: dict[str, Any] = {"keep_default_na": False, "na_values": {"user": [""], "token": [""], "count": MISSING}}
WIDEST = 10**8  # the most columns allowed, since centres are dense


@dataclass(frozen=True)
class CountTable:
    """Counts (users × tokens, CSR, float64) with the names of rows and columns when the source had any."""

    counts: Counts
    users: NDArray[Any] | None = None
    vocabulary: NDArray[Any] | None = None


def read_counts(source: Source, vocabulary: NDArray[Any] | None = None, width: int | None = None) -> CountTable:
    """Counts from a sparse or dense matrix, a frame, Parquet or CSV of (user, token, count), or an .npz of CSR parts.

    `vocabulary` and `width` are those of the fitted model; a source that does not fit them is refused.
    """
    users: NDArray[Any] | None = None
    names: NDArray[Any] | None = None
    table: Any = source
    if isinstance(source, (str, Path)):
        path = Path(source)
        table = _open(path)
        if path.suffix == ".npz":
            with readable(path):
                users, names = npz_names(path, table.shape)
    if is_wide(table) and not isinstance(source, (str, Path)):  # a file is always one of user, token, count
        return _from_wide(table, vocabulary, width)
    if isinstance(table, pd.DataFrame):
        return _from_rows(table, vocabulary, width)
    if names is not None and vocabulary is not None and not np.array_equal(names, vocabulary):
        raise DataError("The file's vocabulary must be that of fit, in its order; got another. Map its tokens first.")
    return CountTable(check_counts(table, width), users, names if vocabulary is None else vocabulary)


def refuse_other_width(estimator: Any, counts: Any) -> None:
    """scikit-learn's words for a matrix with other columns than in fit."""
    shape: tuple[int, ...] = getattr(counts, "shape", ())
    width = estimator.centers_.shape[1]
    if not isinstance(counts, pd.DataFrame) and len(shape) == 2 and shape[1] != width and shape[1] > 0:
        raise DataError(
            f"X has {shape[1]} features, but {type(estimator).__name__} is expecting {width} features as input: one column "
            "per token the model was fitted on. Map the tokens to the vocabulary used in fit."
        )


def is_wide(source: Any) -> bool:
    """Whether a frame has a row per user and a column per token, and not rows of user, token, count."""
    return isinstance(source, pd.DataFrame) and not set(COLUMNS) & set(source.columns)


def _from_wide(frame: Any, vocabulary: NDArray[Any] | None, width: int | None) -> CountTable:
    named = all(isinstance(name, str) for name in frame.columns)
    names = np.array(list(frame.columns)) if named and len(frame.columns) else None
    if names is not None and vocabulary is not None and not np.array_equal(names, vocabulary):
        raise DataError(
            "The feature names should match those that were passed during fit, in the same order; got others, such as "
            f"{[str(n) for n in names[:3]]}. Reorder or rename the columns."
        )
    counts: Any = frame.to_numpy()
    counts = counts.astype(np.float64) if counts.dtype == object and len(counts) else counts
    return CountTable(check_counts(counts, width), frame.index.to_numpy(), names)


def npz_names(path: Path, shape: tuple[int, int]) -> tuple[NDArray[Any] | None, NDArray[Any] | None]:
    """The names of users and tokens in an .npz: `users` or `row_names`, and `vocabulary` or `vocab`, if it has them."""
    out: list[NDArray[Any] | None] = []
    with path.open("rb") as file, np.load(file, allow_pickle=False) as parts:
        for size, keys in zip(shape, (("users", "row_names"), ("vocabulary", "vocab")), strict=True):
            key = next((k for k in keys if k in parts.files), None)
            names = None if key is None else parts[key]
            if names is not None and (names.shape != (size,) or len(np.unique(names)) != size):
                raise DataError(
                    f"{path.name} must name every row or column once in {key}; got {names.shape} for {size}. Correct it."
                )
            out.append(names)
    return out[0], out[1]


PUBLIC = "vocabulary-is-public"  # a file that save_counts writes for a declared vocabulary


def has_public_vocabulary(source: Source) -> bool:
    """Whether the columns were given with a matrix in memory, and not read off the users' own tokens. A folder says so only
    if its vocabulary was saved as `public(...)`, and a file never does."""
    if isinstance(source, (str, Path)):
        if Path(source).is_dir():
            return (Path(source) / PUBLIC).is_file()
        return False  # nothing in a file says where its tokens come from
    return not isinstance(source, pd.DataFrame)


def check_counts(given: Any, width: int | None = None) -> Counts:
    """The counts as a canonical float64 CSR array, or one sentence saying which rule they break."""
    refuse_masked(counts=given)
    counts: Any = given if sp.issparse(given) else regular("Counts", given)
    if counts.dtype == object and counts.ndim == 2:
        counts = finite("Counts", counts)
    dtype: np.dtype[Any] = counts.dtype
    if dtype.kind == "c":
        raise DataError("Complex data not supported: counts must be real numbers; got complex ones. Pass counts.")
    if dtype.kind not in "iufb":
        raise DataError(f"Counts must be numbers; got dtype {dtype}. Pass a users × tokens matrix of token counts.")
    if counts.ndim != 2:
        raise DataError(
            f"Counts must be a users × tokens matrix; got {counts.ndim} dimension(s). "
            "Reshape your data: counts.reshape(1, -1) for one user."
        )
    if 0 in counts.shape:
        raise DataError(
            f"Counts need at least one user and one token; got {counts.shape[0]} sample(s) and {counts.shape[1]} feature(s) "
            f"(shape={counts.shape}) while a minimum of 1 is required. Pass one row per user."
        )
    if width is not None and counts.shape[1] != width:
        raise DataError(
            f"Counts must have the {width} tokens the model was fitted on; got {counts.shape[1]} columns. "
            "Map the tokens to the vocabulary used in fit."
        )
    # First, since small types overflow when repeated entries are added up
    out = sp.csr_array(counts.astype(np.float64, copy=False))
    if not out.has_canonical_format:
        out = out.copy()  # the caller's matrix is left as it is
        out.sum_duplicates()
    check_values(out.data)
    if out.nnz and not out.data.all():
        out = out.copy()
        out.eliminate_zeros()
    return out


def check_values(values: NDArray[Any]) -> None:
    """Counts are finite and not negative."""
    if values.size == 0:
        return
    low, high = values.min(), values.max()
    if not (np.isfinite(low) and np.isfinite(high)):
        raise DataError("Counts must be finite; got NaN or infinity. Remove or repair these entries.")
    if low < 0:
        raise DataError(
            f"Counts must not be negative; got {low}. Negative values in data are not counts: pass token counts, not "
            "log-probabilities or differences."
        )


def _open(path: Path) -> Any:
    if not path.exists():
        raise DataError(f"Counts must come from an existing file; {path} does not exist. Check the path.")
    readers: dict[str, Callable[[Path], Any]] = {
        ".parquet": pd.read_parquet,
        ".pq": pd.read_parquet,
        ".csv": _read_csv,
        ".npz": _read_npz,
    }
    if path.suffix not in readers:
        raise DataError(
            f"Counts are read from .parquet, .csv or .npz files; got {path.name}. Convert it to one of these."
        )
    with readable(path):
        check_unpacked(path)
        return readers[path.suffix](path)


def _read_csv(path: Path) -> Any:
    return pd.read_csv(path, **CSV)


def _read_npz(path: Path) -> Any:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as parts:
        if "format" in parts.files:  # written by scipy.sparse.save_npz, by columns or rows
            file.seek(0)
            matrix = sp.load_npz(file)
        else:
            check_names(parts.files, ("indptr", "indices", "data", "shape"), path.name)
            users, tokens = (int(n) for n in parts["shape"])
            values = (parts["data"], parts["indices"].astype(np.int32), parts["indptr"])
            matrix = sp.csr_array(values, shape=(users, tokens))
    if max(matrix.shape) > WIDEST:
        raise DataError(
            f"{path} is not a readable file of counts: it says {matrix.shape[0]} users and {matrix.shape[1]} tokens. "
            "Take it from a copy, or write it again."
        )
    if hasattr(matrix, "check_format"):
        matrix.check_format(full_check=True)
    return matrix


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn a library's error about an unreadable file into one sentence."""
    try:
        yield
    except CoterieError:
        raise
    except Exception as error:
        raise DataError(
            f"{path} is not a readable file of counts: {said(error)}. Take it from a copy, or write it again."
        ) from None


def check_names(got: Any, needed: tuple[str, ...], where: str) -> None:
    missing = [name for name in needed if name not in list(got)]
    if missing:
        raise DataError(
            f"{where} needs {', '.join(needed)}; {', '.join(missing)} missing, got {', '.join(map(str, got))}. "
            "Add or rename them."
        )


def check_rows(rows: pd.DataFrame, where: str) -> None:
    """A frame has the three columns, rows, no gaps, and numbers to count."""
    check_names(rows.columns, COLUMNS, where)
    if len(rows) == 0:
        raise DataError(f"{where} needs at least one row of user, token, count; got none. Check the file or frame.")
    if rows.isna().any().any():
        raise DataError(
            f"A table of counts must have no missing values; got {int(rows.isna().any(axis=1).sum())} rows with some. "
            "Drop or fill them."
        )
    if not pd.api.types.is_numeric_dtype(rows["count"]):
        raise DataError(f"The column count must be numeric; got dtype {rows['count'].dtype}. Convert it.")


def column_numbers(lowest: int, highest: int) -> int:
    """How many columns integer tokens need: they are column numbers, not names."""
    if lowest < 0:
        raise DataError(
            f"Integer tokens are column numbers and must not be negative; got {lowest}. Number them from 0."
        )
    if highest >= WIDEST:
        raise DataError(
            f"Integer tokens are column numbers, at most {WIDEST - 1}; got {highest}. "
            "If they are names, pass them as text to have a vocabulary."
        )
    return highest + 1


def _from_rows(rows: pd.DataFrame, vocabulary: NDArray[Any] | None, width: int | None) -> CountTable:
    """One row per (user, token, count); repeated pairs add up. Integer tokens are column numbers, others names."""
    check_rows(rows, "A table of counts")
    extra = [str(name) for name in rows.columns if name not in COLUMNS]
    if extra:
        raise DataError(
            f"A table of counts has the columns user, token, count; got also {', '.join(extra)}. Drop them."
        )
    user_codes, users = pd.factorize(rows["user"], sort=True)
    columns, names, tokens = _columns(np.asarray(rows["token"]), vocabulary, width)
    values = np.asarray(rows["count"], dtype=np.float64)
    check_values(values)  # before repeated pairs are added up, which could hide a negative count
    matrix = sp.coo_array((values, (user_codes, columns)), shape=(len(users), tokens))
    return CountTable(check_counts(matrix, width), np.asarray(users), names)


def _columns(
    tokens: NDArray[Any], vocabulary: NDArray[Any] | None, width: int | None
) -> tuple[Ints, NDArray[Any] | None, int]:
    """Column of each token, the names of the columns (None for integers) and their number."""
    if tokens.dtype.kind in "iu" and vocabulary is None:
        needed = column_numbers(int(tokens.min()), int(tokens.max()))
        if width is not None and needed > width:
            raise DataError(
                f"Tokens must be below the {width} the model was fitted on; got token {needed - 1}. Drop such tokens."
            )
        return tokens.astype(np.int64), None, width or needed
    if vocabulary is None:
        vocabulary = np.unique(tokens.astype(str))
    tokens = tokens.astype(vocabulary.dtype) if vocabulary.dtype.kind != "U" else tokens.astype(str)
    order = np.argsort(vocabulary, kind="stable")  # a vocabulary read from a file need not be sorted
    at = order[np.minimum(np.searchsorted(vocabulary, tokens, sorter=order), len(vocabulary) - 1)]
    unknown = vocabulary[at] != tokens
    if unknown.any():
        raise DataError(
            f"Tokens must be in the fitted vocabulary; {str(tokens[unknown][0])!r} is not. Drop or map such tokens."
        )
    return at.astype(np.int64), vocabulary, len(vocabulary)
