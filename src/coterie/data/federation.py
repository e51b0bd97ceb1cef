"""Federation: every client's data in one ragged layout.

All samples of all clients are in `x` and `y`, one client after another; client i owns the rows `offsets[i] : offsets[i +
1]`, its training rows first, then its validation rows, if it has any, then its test rows. There are no per-client Python
objects, so 10⁵ clients cost 10⁵ integers, and the arrays may be memory-mapped from disk (`save` / `load`). A federation is
immutable.

Bytes (uint8) of images, x with three dimensions or more, are brightness: they stay bytes in memory, and become float32 in
[0, 1] only for the chunk of clients at work. Bytes of tables are numbers like any other (token ids, counts) and become
floats as they are. `scale_bytes` overrides this rule. It holds for each client's bytes, whatever type the others' are.

The file is long because the ways to build a federation share its checks; what tables need is in `tables.py`.
"""

from __future__ import annotations

import hashlib
import math
import uuid
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from coterie import randomness
from coterie.annotations import guarded
from coterie.arguments import check_arguments
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
from coterie.data.coded_table import Table
from coterie.data.columns import ColumnReport
from coterie.data.own_splits import ClientArrays, own_split, sample_weights
from coterie.data.provenance import checked_facts
from coterie.data.schema import Rows, Target, is_public, joined, plain
from coterie.data.targets import encode_rows, relative_weights
from coterie.errors import ConfigError, DataError
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
Part = Literal["train", "validation", "test"]
DType = Literal["float32", "float64", "int64"]
_PARTS: WeakKeyDictionary[Federation, dict[Part, tuple[Ints, Ints]]] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class Federation:
    """Clients' data; build it with `from_arrays`, `from_frame`, `from_parquet` or `load`."""

    x: Tensor
    y: Tensor
    offsets: Ints
    n_train: Ints
    clients: pd.Index[Any]
    kind: Kind
    classes: tuple[Any, ...] | None = None
    clusters: Ints | None = None
    columns: tuple[str, ...] | None = None
    preprocessing: pd.DataFrame | None = None
    notes: ColumnReport | None = None
    """The fate of a table's columns and rows: used, ignored, suspicious, dropped."""
    keys: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    n_valid: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """Every client's own validation rows: no model trains on them; they serve to choose settings, instead of a random
    part."""
    weights: Tensor | None = None
    """How much every sample counts in losses and metrics; the smallest is 1."""
    mapped: bool = False
    """Whether the features are on disk and only the rows at work in memory."""
    order: Tensor | None = None
    """For mapped features, the place of each row in `x` (None: in order), so that parts need no copy."""
    declared: frozenset[str] = frozenset()
    """Facts about its shape that the user declared public; all others were read from clients' data."""
    filtered: bool = False
    """Whether clients were left out or merged because of their rows."""
    encoded: bool = False
    """Whether the meaning of inputs was read from rows: which columns hold numbers, the names of categories, characters."""
    origin: str = field(default_factory=lambda: uuid.uuid4().hex, repr=False)
    """A mark shared by everything made from one federation: its subsets, its other splits, its copies."""

    def __post_init__(self) -> None:
        if not len(self.n_valid):
            object.__setattr__(self, "n_valid", np.zeros_like(self.n_train))
        if not len(self.keys):
            object.__setattr__(self, "keys", client_keys(self.clients))

    def declare_public(self, *facts: str) -> Federation:
        """The same data, with the statement that these facts do not depend on anybody's rows: "classes", "kind", "clusters",
        "clients", "inputs".

        A private run gets a valid receipt only if the facts of its shape are declared."""
        return replace(self, declared=self.declared | checked_facts(facts))

    # ---- what a client has -------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.clients)

    def __repr__(self) -> str:
        """A short text with sizes and no rows."""
        return f"Federation({len(self):,} clients, {len(self.y):,} rows of {tuple(self.x.shape[1:])}, {self.kind})"

    @property
    def n_samples(self) -> Ints:
        return np.diff(self.offsets)

    @property
    def n_test(self) -> Ints:
        return self._part("test")[1]

    def starts(self, part: Part) -> Ints:
        """Where the rows of every client's part begin."""
        return self._part(part)[0]

    def sizes(self, part: Part) -> Ints:
        return self._part(part)[1]

    def _part(self, part: Part) -> tuple[Ints, Ints]:
        """Starts and sizes of a part, computed once, because every chunk of clients needs them."""
        if self not in _PARTS:
            valid = self.offsets[:-1] + self.n_train
            test = valid + self.n_valid
            _PARTS[self] = {
                "train": (self.offsets[:-1], self.n_train),
                "validation": (valid, self.n_valid),
                "test": (test, self.offsets[1:] - test),
            }
        if not isinstance(part, str) or part not in _PARTS[self]:
            raise ConfigError(f"part must be 'train', 'validation' or 'test'; got {shown(part)}. Choose one of them.")
        return _PARTS[self][part]

    @property
    def n_features(self) -> int:
        return int(np.prod(self.x.shape[1:]))

    @property
    def n_outputs(self) -> int:
        """The outputs a model needs: one per class, or one per number or label of a target."""
        return len(self.classes) if self.classes is not None else math.prod(self.y.shape[1:])

    def index(self, client: Hashable) -> int:
        """The position of a client id."""
        try:
            position: Any = self.clients.get_loc(client)
        except (KeyError, TypeError, pd.errors.InvalidIndexError):
            some = ", ".join(self.name(i) for i in range(min(len(self), 5))) + (", …" if len(self) > 5 else "")
            raise DataError(f"There is no client {shown(client)}; the {len(self)} clients are {some}.") from None
        return int(position)  # ids are unique: never a slice or mask

    @guarded
    def name(self, i: int) -> str:
        """The id at a position as messages show it."""
        if not -len(self) <= i < len(self):
            raise DataError(f"There are {len(self)} clients, numbered from 0; got {i}. Pass a number below.")
        return shown(self.clients[i])

    def train(self, client: Hashable) -> tuple[Tensor, Tensor]:
        return self._rows(client, "train")

    def validation(self, client: Hashable) -> tuple[Tensor, Tensor]:
        return self._rows(client, "validation")

    def test(self, client: Hashable) -> tuple[Tensor, Tensor]:
        return self._rows(client, "test")

    def rows(self, part: Part = "train") -> tuple[npt.NDArray[Any], npt.NDArray[Any], Ints]:
        """All clients' rows of a part as NumPy arrays: x flat (N, features), y, and each row's client position."""
        chosen = self._places(part)
        owner = np.repeat(np.arange(len(self)), self.sizes(part))
        return as_numbers(self.features(chosen)).numpy().reshape(len(chosen), -1), self.y[chosen].numpy(), owner

    def table(self) -> Table:
        """All rows, training and test rows alike, under the clients' names, for a comparison by exact fits."""
        if self.y.ndim > 1:
            raise DataError(
                f"A comparison needs one target per row; this federation has {tuple(self.y.shape[1:])} of them. Choose one."
            )
        parts = [self.rows(part) for part in ("train", "validation", "test") if self.sizes(part).any()]
        x, y, owner = (np.concatenate(both) for both in zip(*parts, strict=True))
        present, owner = np.unique(owner, return_inverse=True)
        clients = pd.Index([str(c) for c in self.clients[present]], name="client")
        classes = None
        if self.kind == "classification":
            labels, y = np.unique(y, return_inverse=True)
            classes = pd.Index(labels if self.classes is None else [self.classes[int(c)] for c in labels])
        names = tuple(f"x{j}" for j in range(x.shape[1])) if self.columns is None else tuple(self.columns)
        return Table(x.astype(np.float64), y.astype(np.float64), owner, clients, names, classes)

    @guarded
    def some_rows(self, count: int) -> tuple[Tensor, Tensor, Ints]:
        """About `count` training rows from all over the federation, always the same: x, y and whose each is."""
        if count < 1:
            raise ConfigError(f"count must be a whole number ≥ 1; got {count}. Ask for at least one row.")
        place = np.unique(np.linspace(0, int(self.n_train.sum()) - 1, count).astype(np.int64))
        ends = np.cumsum(self.n_train)
        owner = np.searchsorted(ends, place, side="right")
        rows = torch.from_numpy(place - (ends - self.n_train)[owner] + self.offsets[owner])
        return as_numbers(self.features(rows)), self.y[rows], owner

    def _rows(self, client: Hashable, part: Part) -> tuple[Tensor, Tensor]:
        i = self.index(client)
        start = int(self.starts(part)[i])
        rows = slice(start, start + int(self.sizes(part)[i]))
        return as_numbers(self.features(rows)), self.y[rows]

    def features(self, rows: Any) -> Tensor:
        """Some rows of the features, as they are stored."""
        try:
            return self.x[rows if self.order is None else self.order[rows]]
        except (IndexError, TypeError, ValueError, KeyError, RuntimeError):
            raise DataError(f"rows must be row numbers below {len(self.y)}; got {shown(rows)}. Pass some.") from None

    def _of_rows(self, rows: Ints) -> dict[str, Any]:
        """The fields of a federation of these rows; mapped features stay where they are."""
        chosen = torch.from_numpy(rows)
        order = chosen if self.order is None else self.order[chosen]
        features: dict[str, Any] = {"order": order} if self.mapped else {"x": self.x[chosen]}
        return features | {"y": self.y[rows], "weights": None if self.weights is None else self.weights[rows]}

    def _places(self, part: Part) -> Ints:
        """The row numbers of a part, client by client."""
        sizes = self.sizes(part)
        places: Ints = np.arange(sizes.sum()) + np.repeat(self.starts(part) - (np.cumsum(sizes) - sizes), sizes)
        return places

    @guarded
    def subset(self, clients: Iterable[Hashable]) -> Federation:
        """The same data with only these clients, in this order. The choice of clients may depend on anybody's rows: a
        private run needs `declare_public("clients")` afterwards."""
        index = np.array([self.index(c) for c in clients], np.int64)
        if not len(index):
            raise DataError("A federation needs at least one client; got an empty subset. Name at least one client.")
        ids = checked_ids(self.clients[index])
        sizes = self.n_samples[index]
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        rows = np.arange(offsets[-1]) + np.repeat(self.offsets[index] - offsets[:-1], sizes)
        return replace(
            self,
            **self._of_rows(rows),
            offsets=offsets,
            n_train=self.n_train[index],
            clients=ids,
            clusters=None if self.clusters is None else self.clusters[index],
            keys=self.keys[index],
            n_valid=self.n_valid[index],
            filtered=self.filtered or len(index) < len(self),
            declared=self.declared if len(index) == len(self) else self.declared - {"clients"},
        )

    @guarded
    def holdout(self, fraction: float, seed: int | None = None) -> Federation:
        """A federation of only the training rows, where the last `fraction` of each client's rows are its new test rows.

        For choices that must not see the test data. With a seed every client's rows are shuffled first. A client with a
        single training row keeps it. If a client has its own validation rows, these are its new test rows."""
        if not 0.0 < fraction < 1.0:
            raise DataError(f"The held-out fraction must be in (0, 1); got {fraction}. Use for example 0.25.")
        own, sizes = self.n_valid > 0, self.n_train + self.n_valid
        train, valid = self._places("train"), self._places("validation")
        if seed is not None:
            shuffled = train[split_order(self.n_train, self.keys, seed)]
            train = np.where(np.repeat(own, self.n_train), train, shuffled)
        owner = np.concatenate([np.repeat(np.arange(len(self)), n) for n in (self.n_train, self.n_valid)])
        rows = np.concatenate([train, valid])[np.argsort(owner, kind="stable")]
        held = np.minimum(np.maximum(np.round(self.n_train * fraction).astype(np.int64), 1), self.n_train - 1)
        held = np.where(own, self.n_valid, held)
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        return replace(
            self,
            **self._of_rows(rows),
            offsets=offsets,
            n_train=sizes - held,
            n_valid=np.zeros_like(held),
        )

    def describe(self) -> pd.DataFrame:
        """One row per client: samples, training and test rows, and the mean of the target or the share of each class."""
        counts = {"samples": self.n_samples, "train": self.n_train, "validation": self.n_valid, "test": self.n_test}
        table = pd.DataFrame({k: v for k, v in counts.items() if k != "validation" or v.any()}, index=self.clients)
        owner = np.repeat(np.arange(len(self)), self.n_samples)
        y = self.y.numpy()
        if y.ndim > 1:
            return table if self.clusters is None else table.assign(**{"true cluster": self.clusters})
        if self.classes is not None and len(self.classes) <= 10:
            for c, name in enumerate(self.classes):
                table[f"share of {name}"] = np.bincount(owner, y == c, len(self)) / self.n_samples
        elif self.kind == "regression":
            table["mean target"] = np.bincount(owner, y, len(self)) / self.n_samples
        if self.clusters is not None:
            table["true cluster"] = self.clusters
        return table

    # ---- building ----------------------------------------------------------------------------------------------------

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
        numbers a sequence of classes, with −100 where there is none. A client whose targets are all of one class is refused
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


def as_numbers(x: Tensor) -> Tensor:
    """Bytes, which only stay bytes when they are to be scaled, become float32 in [0, 1], and whole numbers (ids) int64;
    floating data pass through."""
    if x.dtype == torch.uint8:
        return x.to(torch.float32) / 255.0
    return x if x.is_floating_point() else x.to(torch.int64)


def client_keys(clients: pd.Index[Any]) -> Ints:
    """A 64-bit key made from every client id, so that random numbers depend on the client and not on its position."""
    digests = b"".join(hashlib.blake2b(str(c).encode(), digest_size=8).digest() for c in clients)
    return np.frombuffer(digests, np.int64).copy()


def split_order(sizes: Ints, keys: Ints, seed: int) -> Ints:
    """A permutation of the flat rows that shuffles every client within its own block, by (seed, client)."""
    owner = np.repeat(np.arange(len(sizes)), sizes)
    place = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # a row's number within its client
    keys_ = randomness.fold(randomness.client_keys(keys, seed), "split")
    draws = randomness.fold(keys_[torch.from_numpy(owner)], torch.from_numpy(place)).numpy()
    return np.lexsort((draws, owner))


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
