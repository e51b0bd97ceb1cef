"""Every client's rows in one ragged layout: what `Federation` holds, and its views and parts."""

from __future__ import annotations

import hashlib
import math
import uuid
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from coterie.base import randomness
from coterie.base.annotations import guarded
from coterie.data.checks import Ints, Kind, checked_ids, id_text, shown
from coterie.data.coded_table import Table
from coterie.data.columns import ColumnReport
from coterie.data.provenance import checked_facts
from coterie.errors import ConfigError, DataError

Part = Literal["train", "validation", "test"]
_PARTS: WeakKeyDictionary[ClientRows, dict[Part, tuple[Ints, Ints]]] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class ClientRows:
    """Clients' rows, one client after another, and facts about them; immutable."""

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
    judged_as: str = ""
    """The kind of a numeric target, if it is not simply a number: "count", "amount", "share" or "robust"."""
    beside: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    """Numbers per row that are no features: the "unit" it belongs to, its "time"."""
    encoded: bool = False
    """Whether the meaning of inputs was read from rows: which columns hold numbers, the names of categories, characters."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Where a table's rows come from: the names of its columns of clients, targets and parts, and how it was read."""
    origin: str = field(default_factory=lambda: uuid.uuid4().hex, repr=False)
    """A mark shared by everything made from one federation: its subsets, its other splits, its copies."""

    def __post_init__(self) -> None:
        if not len(self.n_valid):
            object.__setattr__(self, "n_valid", np.zeros_like(self.n_train))
        if not len(self.keys):
            object.__setattr__(self, "keys", client_keys(self.clients))

    def declare_public(self, *facts: str) -> Self:
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
        """All rows, training and test rows alike, under the clients' names, for a comparison by exact fits; by time, if
        they have one."""
        if self.y.ndim > 1:
            raise DataError(
                f"A comparison needs one target per row; this federation has {tuple(self.y.shape[1:])} of them. Choose one."
            )
        parts: tuple[Part, ...] = ("train", "validation", "test")
        used = [part for part in parts if self.sizes(part).any()]
        x, y, owner = (np.concatenate(both) for both in zip(*(self.rows(part) for part in used), strict=True))
        places = np.concatenate([self._places(part) for part in used])
        beside = {name: values[places] for name, values in self.beside.items()}
        present, owner = np.unique(owner, return_inverse=True)
        clients = pd.Index([str(c) for c in self.clients[present]], name="client")
        classes = None
        if self.kind == "classification":
            labels, y = np.unique(y, return_inverse=True)
            classes = pd.Index(labels if self.classes is None else [self.classes[int(c)] for c in labels])
        names = tuple(f"x{j}" for j in range(x.shape[1])) if self.columns is None else tuple(self.columns)
        table = Table(x.astype(np.float64), y.astype(np.float64), owner, clients, names, classes, **beside)
        return table if table.time is None else table.rows(np.argsort(table.time, kind="stable"))

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
        beside = {name: values[rows] for name, values in self.beside.items()}
        weights = None if self.weights is None else self.weights[rows]
        return features | {"y": self.y[rows], "weights": weights, "beside": beside}

    def _places(self, part: Part) -> Ints:
        """The row numbers of a part, client by client."""
        sizes = self.sizes(part)
        places: Ints = np.arange(sizes.sum()) + np.repeat(self.starts(part) - (np.cumsum(sizes) - sizes), sizes)
        return places

    @guarded
    def subset(self, clients: Iterable[Hashable]) -> Self:
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
    def holdout(self, fraction: float, seed: int | None = None) -> Self:
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

    def target_moments(self) -> tuple[float, float]:
        """Mean and deviation of the target over all training rows."""
        y = torch.from_numpy(self.rows("train")[1]).double()
        return float(y.mean()), float(y.std(correction=0))

    def class_counts(self) -> Tensor:
        """The number of training rows of every class."""
        return torch.bincount(torch.from_numpy(self.rows("train")[1]).long(), minlength=self.n_outputs).double()

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


def as_numbers(x: Tensor) -> Tensor:
    """Bytes, which only stay bytes when they are to be scaled, become float32 in [0, 1], and whole numbers (ids) int64;
    floating data pass through."""
    if x.dtype == torch.uint8:
        return x.to(torch.float32) / 255.0
    return x if x.is_floating_point() else x.to(torch.int64)


def client_keys(clients: pd.Index[Any]) -> Ints:
    """A 64-bit key made from every client id, so that random numbers depend on the client and not on its position."""
    digests = b"".join(hashlib.blake2b(id_text(c).encode(), digest_size=8).digest() for c in clients)
    return np.frombuffer(digests, np.int64).copy()


def split_order(sizes: Ints, keys: Ints, seed: int) -> Ints:
    """A permutation of the flat rows that shuffles every client within its own block, by (seed, client)."""
    owner = np.repeat(np.arange(len(sizes)), sizes)
    place = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # a row's number within its client
    keys_ = randomness.fold(randomness.client_keys(keys, seed), "split")
    draws = randomness.fold(keys_[torch.from_numpy(owner)], torch.from_numpy(place)).numpy()
    return np.lexsort((draws, owner))
