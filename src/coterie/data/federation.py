"""Federation: every client's data in one ragged layout.

All samples of all clients are in `x` and `y`, one client after another; client i owns the rows `offsets[i] : offsets[i +
1]`, its training rows first, then its validation rows, if it has any, then its test rows. There are no per-client Python
objects, so 10⁵ clients cost 10⁵ integers, and the arrays may be memory-mapped from disk (`save` / `load`). A federation is
immutable.

Bytes (uint8) of images, x with three dimensions or more, are brightness: they stay bytes in memory, and become float32 in
[0, 1] only for the chunk of clients at work. Bytes of tables are numbers like any other (token ids, counts) and become
floats as they are. `scale_bytes` overrides this rule. It holds for each client's bytes, whatever type the others' are.

`client_rows.py` has the layout and its views; here are the ways to build one. What tables need is in `tables.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from coterie.base.annotations import guarded
from coterie.base.arguments import check_arguments
from coterie.data.checks import (
    Ints,
    Kind,
    as_rows,
    bytes_to_numbers,
    checked_clusters,
    checked_ids,
    checked_pair,
    encode_target,
    overflowing,
    refuse_arrays_as_ids,
    refuse_mixed_targets,
    refuse_one_class,
    row_counts,
    row_weights,
    shown,
)
from coterie.data.client_rows import ClientRows, Part, as_numbers, client_keys, split_order
from coterie.data.own_splits import ClientArrays, own_split, sample_weights
from coterie.data.schema import Rows, Target, is_public, joined, plain
from coterie.data.targets import encode_rows, relative_weights
from coterie.errors import DataError
from coterie.privacy.taint import Released

__all__ = [
    "DType",
    "Federation",
    "Ints",
    "Kind",
    "OneClass",
    "Part",
    "as_numbers",
    "client_keys",
    "held_out_sizes",
    "split_order",
]

OneClass = Literal["error", "allow"]
DType = Literal["float32", "float64", "int64"]


@dataclass(frozen=True, eq=False, repr=False)
class Federation(ClientRows):
    """Clients' data; build it with `from_arrays`, `from_frame`, `from_parquet` or `load`."""

    @classmethod
    @guarded
    def from_arrays(
        cls,
        data: Mapping[Any, ClientArrays] | Sequence[tuple[Any, ClientArrays]],
        *,
        test_fraction: float = 0.25,
        seed: int = 0,
        clusters: Mapping[Any, int] | None = None,
        kind: Kind | Released[Any] | None = None,
        classes: Sequence[Any] | Released[Any] | None = None,
        one_class: OneClass = "error",
        dtype: DType = "float32",
        scale_bytes: bool | None = None,
    ) -> Federation:
        """`{client id: (x, y)}`, or a list of `(client id, (x, y))`; rows of x are samples. `(x, y, w)` weighs the samples.

        Your own split: `{client id: {"train": (x, y), "validation": (x, y), "test": (x, y)}}`, where validation and test may
        be left out. No model trains on validation rows; they are used to choose settings.

        Integer, boolean and string targets mean classification, floating ones regression; `kind` overrides. Targets may
        have several entries per sample: floats are several numbers, booleans several labels (kind "multilabel"), whole
        numbers a sequence of classes, with −100 for a missing one. A client whose targets are all of one class is refused
        unless `one_class="allow"` says that it is meant. dtype="int64" keeps whole numbers (token ids) as they are.
        `scale_bytes` divides uint8 features by 255 (None: those of images, x with three dimensions or more).

        `classes=privacy.public([...])` or `kind=privacy.public("regression")` declare the target for private runs. A row
        that does not fit is then left out with a warning, instead of an error (`coterie.data.schema`).
        """
        check_arguments(locals())
        given = list(data.items()) if isinstance(data, Mapping) else list(data)
        if not given:
            raise DataError("A federation needs at least one client; got none. Pass {client id: (x, y)}.")
        refuse_arrays_as_ids(given)
        items, parts, own = own_split(given)
        target = Target.of(kind, classes)
        pairs = [checked_pair(client, pair, finite=target is None) for client, pair in items]
        if target is None:
            refuse_mixed_targets([c for c, _ in items], [y for _, y in pairs])
        if clusters is not None:
            for client in (c for c, _ in items if c not in clusters):
                raise DataError(f"Client {shown(client)} has no entry in clusters. Name every client's cluster.")
        wide = {y.shape[1:] for _, y in pairs}
        if len(wide) > 1:
            raise DataError(
                f"All clients need targets of one shape; got {sorted(wide)}. Pad them, or give fewer entries."
            )
        shapes = {x.shape[1:] for x, _ in pairs}
        if len(shapes) > 1:
            odd = next(c for (c, _), (x, _) in zip(items, pairs, strict=True) if x.shape[1:] != pairs[0][0].shape[1:])
            raise DataError(
                f"All clients need features of one shape; client {shown(odd)} differs: got {sorted(shapes)}. "
                "Give every client the same columns."
            )
        return cls.from_flat(
            np.concatenate(bytes_to_numbers([x for x, _ in pairs], scale_bytes, dtype)),
            (np.concatenate if target is None else joined)([y for _, y in pairs]),
            sizes=parts.sum(1),
            clients=[c for c, _ in given],
            test_fraction=test_fraction,
            n_valid=parts[:, 1] if own else None,
            n_test=parts[:, 2] if own else None,
            weights=sample_weights(items, [x for x, _ in pairs]),
            seed=seed,
            clusters=None if clusters is None else [clusters[c] for c, _ in given],
            kind=kind,
            classes=classes,
            one_class=one_class,
            dtype=dtype,
            scale_bytes=scale_bytes,
        )

    @classmethod
    @guarded
    def from_flat(
        cls,
        x: npt.NDArray[Any],
        y: npt.NDArray[Any],
        *,
        sizes: npt.NDArray[Any],
        clients: Sequence[Any],
        test_fraction: float = 0.25,
        n_test: npt.NDArray[Any] | None = None,
        n_valid: npt.NDArray[Any] | None = None,
        weights: npt.NDArray[Any] | None = None,
        seed: int = 0,
        clusters: Sequence[int] | Ints | None = None,
        kind: Kind | Released[Any] | None = None,
        columns: Sequence[str] | None = None,
        classes: Sequence[Any] | Released[Any] | None = None,
        one_class: OneClass = "error",
        dtype: DType = "float32",
        scale_bytes: bool | None = None,
    ) -> Federation:
        """Rows already sorted by client (`sizes[i]` rows for client i).

        By default every client's rows are shuffled with the seed and its last `test_fraction` held out. With `n_test`
        the rows are taken as they are and the last `n_test[i]` rows of client i are its test data; the `n_valid[i]` before
        them are its validation rows. `weights` are one number per row.
        """
        check_arguments(locals())
        declared = frozenset({"kind"} if kind is not None else ()) | (
            {"classes", "kind"} if is_public(classes) else set()
        )
        target = Target.of(kind, classes)
        asked: Kind | None = plain(kind)
        labels: Sequence[Any] | None = plain(classes)
        ids = checked_ids(clients)
        x, y = as_rows("x", x), as_rows("y", y)
        sizes = row_counts("sizes", sizes, len(ids))
        if len(sizes) != len(ids) or not int(sizes.sum()) == len(x) == len(y):
            raise DataError(
                f"sizes must name the rows of every client; got {len(sizes)} sizes for {len(ids)} clients, which add up "
                f"to {sizes.sum()} for {len(x)} rows of x and {len(y)} of y. Pass one size per client."
            )
        for i in np.flatnonzero(sizes < 1)[:1]:
            raise DataError(f"Client {shown(ids[i])} has no samples. Drop it or give it data.")
        if target is not None:
            rows = Rows(x, y, sizes, n_valid, n_test, weights).fitting(target, dtype)
            x, y, sizes, n_valid, n_test, weights = rows.x, rows.y, rows.sizes, rows.n_valid, rows.n_test, rows.weights
            found, labels = target.kind, target.classes
        else:
            y, found, labels = (encode_target if y.ndim == 1 else encode_rows)(y, asked, labels, ids, sizes)
            if found == "classification" and one_class == "error" and y.ndim == 1:
                refuse_one_class(y, ids, sizes, labels)
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        (x,) = bytes_to_numbers([x], scale_bytes, dtype)
        on_disk = isinstance(x, np.memmap) and (dtype == "int64" or x.dtype in (np.uint8, dtype))
        order = None
        if n_test is None:
            n_test = held_out_sizes(sizes, test_fraction)
            order = split_order(sizes, client_keys(ids), seed)
            x, y = x if on_disk else x[order], y[order]
            weights = None if weights is None else row_weights(weights, len(x))[order]
        valid = np.zeros_like(sizes) if n_valid is None else row_counts("n_valid", n_valid, len(ids))
        n_train = sizes - row_counts("n_test", n_test, len(ids)) - valid
        for i in np.flatnonzero((n_train < 1) | (n_train > sizes))[:1]:
            raise DataError(
                f"Client {shown(ids[i])} has no training sample left after the split. Lower its test share."
            )
        x = _writable(x) if on_disk else x
        for bad in overflowing(x, y, dtype):
            raise DataError(
                f"Client {shown(ids[np.searchsorted(offsets, bad, side='right') - 1])} holds numbers too large for {dtype}, "
                "or none at all. Rescale them, or use dtype='float64'."
            )
        return cls(
            x=_tensor(x, dtype),
            y=torch.from_numpy(np.ascontiguousarray(y if y.dtype == np.int64 else y.astype(_floating(dtype)))),
            offsets=offsets,
            n_train=n_train,
            clients=ids,
            kind=found,
            classes=None if labels is None else tuple(labels),
            clusters=None if clusters is None else checked_clusters(clusters, ids),
            columns=None if columns is None else tuple(columns),
            declared=declared,
            n_valid=valid,
            mapped=on_disk,
            order=None if order is None or not on_disk else torch.from_numpy(order),
            weights=None if weights is None else torch.from_numpy(relative_weights(weights, sizes, dtype)),
        )

    @classmethod
    def from_frame(cls, frame: pd.DataFrame, *, client: str, target: str, **options: Any) -> Federation:
        """One table with a client column and a target column; see `coterie.data.tables.federation_from_frame`."""
        from coterie.data.tables import federation_from_frame

        return federation_from_frame(frame, client=client, target=target, **options)

    @classmethod
    @guarded
    def from_parquet(cls, path: str | Path, *, client: str, target: str, **options: Any) -> Federation:
        """Like `from_frame`, from a file; takes `delimiter`, `decimal` and `encoding` too (`read_table`)."""
        from coterie.data.reading import read_table

        reading: dict[str, Any] = {k: options.pop(k) for k in ("delimiter", "decimal", "encoding") if k in options}
        reading["text"] = is_public(options.get("categories"))  # then no value may change how others are read
        return cls.from_frame(read_table(path, client=client, **reading), client=client, target=target, **options)

    from_csv = from_parquet

    @classmethod
    def from_datasets(cls, data: Any, **options: Any) -> Federation:
        """torch or HuggingFace datasets; see `coterie.data.sources.federation_from_datasets`."""
        from coterie.data.sources import federation_from_datasets

        return federation_from_datasets(data, **options)

    @classmethod
    @guarded
    def from_leaf(cls, folder: str | Path, **options: Any) -> Federation:
        """LEAF's JSON files; see `coterie.data.sources.federation_from_leaf`."""
        from coterie.data.sources import federation_from_leaf

        return federation_from_leaf(Path(folder), **options)

    @classmethod
    @guarded
    def from_folder(cls, folder: str | Path, **options: Any) -> Federation:
        """A folder with a file per client; see `coterie.data.sources.federation_from_folder`."""
        from coterie.data.sources import federation_from_folder

        return federation_from_folder(Path(folder), **options)

    # ---- disk --------------------------------------------------------------------------------------------------------

    @guarded
    def save(self, folder: str | Path) -> Path:
        """Write plain .npy arrays and a JSON description; `load` maps them back without reading them."""
        from coterie.data.saving import save

        return save(self, Path(folder))

    @classmethod
    @guarded
    def load(cls, folder: str | Path, *, mmap: bool = True) -> Federation:
        """A saved federation. A damaged one is refused; with `mmap` the features stay on disk and are not checked, but for
        their type and shape."""
        from coterie.data.saving import load

        return load(Path(folder), mapped=mmap)


# ---- helpers ---------------------------------------------------------------------------------------------------------


def held_out_sizes(sizes: Ints, fraction: float) -> Ints:
    """How many rows of every client are held out; at least one stays for training."""
    if not 0.0 <= fraction < 1.0:
        raise DataError(
            f"test_fraction must be in [0, 1); got {fraction}.",
            python="Use for example test_fraction=0.25.",
            cli="Use for example --test-fraction 0.25.",
        )
    return np.minimum(np.round(sizes * fraction).astype(np.int64), sizes - 1)


def _tensor(x: npt.NDArray[Any], dtype: DType) -> Tensor:
    kept = x.dtype == np.uint8 or dtype == "int64"
    return torch.from_numpy(np.ascontiguousarray(x if kept else x.astype(dtype, copy=False)))


def _writable(x: Any) -> npt.NDArray[Any]:
    """A map of a file that torch takes without a warning: what is written into it (nothing is) never reaches the file."""
    if x.flags.writeable or not x.flags.c_contiguous or x.filename is None:
        return np.asarray(x)
    return np.memmap(x.filename, x.dtype, "c", x.offset, x.shape)


def _floating(dtype: DType) -> str:
    return "float32" if dtype == "int64" else dtype
