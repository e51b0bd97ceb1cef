"""What runs in an actor: the vectorised engine on a shard of the clients, whose data and private states stay here.

Only `fetch` uses Ray, so everything else in this file can run in one process.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from coterie.base.tree import Tree, leaves, tree_map
from coterie.data.federation import Federation
from coterie.engines.base import ClientStates, Env, Post
from coterie.engines.devices import checked
from coterie.engines.reduce import Share, merged
from coterie.engines.vectorised import LocalEngine
from coterie.errors import CoterieError
from coterie.exchange.messages import Ask, Ints

_SETTINGS = 8  # runs whose settings an actor remembers


@dataclass(frozen=True)
class Sent:
    """An object that was sent once: its name, and where to get it when it is first needed."""

    name: str
    ref: tuple[Any, ...]


@dataclass(frozen=True)
class Place:
    """The run, data and states of a call, and its place in the run."""

    setting: Sent
    data: Sent
    store: str | None  # None: clients have no states
    round: int
    ask: int


@dataclass(frozen=True)
class Rows:
    """States of some clients."""

    clients: Ints
    values: Tree


class Touched(ClientStates):
    """Clients' states, and which clients got a new one since the last commit."""

    def __init__(self, n_clients: int) -> None:
        super().__init__(n_clients)
        self.touched: list[Ints] = []

    def add(self, clients: Ints, values: Tree) -> None:
        super().add(clients, values)
        self.touched.append(clients)

    def set(self, clients: Ints, values: Tree) -> None:
        super().set(clients, values)
        self.touched.append(clients)

    def put(self, rows: Rows) -> None:
        """Give clients these states, also those without a state."""
        new = self.row[rows.clients] < 0
        for mine, write in ((new, self.add), (~new, self.set)):
            if mine.any():
                write(rows.clients[mine], tree_map(lambda t, mine=mine: t[torch.from_numpy(mine)], rows.values))

    def rows(self, clients: Ints) -> Rows:
        return Rows(clients, self.get(clients) if len(clients) else {})


@dataclass
class Shard:
    """The methods are the calls an actor understands; an error that coterie raises on purpose is sent back as a value."""

    device: str | None = None
    kept: dict[str, Any] = field(default_factory=dict)  # data and settings by name
    engines: dict[str, LocalEngine] = field(default_factory=dict)  # one for each federation
    stores: dict[str, Touched] = field(default_factory=dict)

    def __post_init__(self) -> None:
        torch.set_num_threads(1)  # as many actors as cores: more threads would only wait for one another

    def call(self, name: str, *args: Any) -> Any:
        try:
            return getattr(self, name)(*args)
        except CoterieError as error:
            return Failed(error)

    def ready(self) -> int:
        """The process's number; a missing device is an error at once."""
        checked(self.device)
        return os.getpid()

    # ---- clients at work -----------------------------------------------------------------------------------------------

    def run(self, place: Place, ask: tuple[Any, ...], clients: Ints, each: Tree) -> Share:
        """This shard's share of a reply."""
        question: Ask = replace(fetch(ask), clients=clients, each=each)
        env = self._env(place)
        mine: Share = compact(merged(self._engine(place).shares(question, env)))
        return mine

    def map(self, place: Place, function: tuple[Any, ...], clients: Ints, test: bool) -> Tree:
        called: tuple[Callable[..., Tree], Post | None] = fetch(function)
        out: Tree = compact(self._engine(place).map(called[0], clients, self._env(place), test=test, post=called[1]))
        return out

    def make(self, place: Place, function: tuple[Any, ...], clients: Ints) -> bool:
        """Make first states; returns whether there are any."""
        made = self._engine(place).map(fetch(function), clients, replace(self._env(place), states=ClientStates(0)))
        if made:
            self._store(place).add(clients, made)
        return bool(made)

    # ---- their states ----------------------------------------------------------------------------------------------------

    def put(self, store: str, n_clients: int, rows: Rows | tuple[Any, ...]) -> None:
        self._named(store, n_clients).put(fetch(rows) if isinstance(rows, tuple) else rows)

    def rows(self, store: str, clients: Ints) -> Tree:
        rows: Tree = compact(self.stores[store].get(clients)) if store in self.stores else {}
        return rows

    def commit(self, store: str, everything: bool) -> tuple[int, Rows]:
        """Keep the written rows, and return them (or all states) in case this process dies."""
        if store not in self.stores:
            return 0, Rows(np.zeros(0, np.int64), {})
        states = self.stores[store]
        met = np.flatnonzero(states.row >= 0)
        changed = met if everything else np.unique(np.concatenate([met[:0], *states.touched]))
        states.commit()
        states.touched.clear()
        return len(changed), compact(states.rows(changed))

    def rollback(self, store: str) -> None:
        if store in self.stores:
            self.stores[store].rollback()
            self.stores[store].touched.clear()

    def restore(self, store: str, n_clients: int, saved: list[Any]) -> None:
        """The states this shard had when they were last committed, after another process with them died."""
        self.stores.pop(store, None)
        states = self._named(store, n_clients)
        for ref in saved:
            rows = fetch((ref,))
            if len(rows.clients):
                states.put(rows)
        states.commit()
        states.touched.clear()

    def forget(self, names: list[str]) -> None:
        for name in names:
            for known in [k for k in self.kept if k.endswith(name)]:
                del self.kept[known]
            self.stores.pop(name, None)
            if engine := self.engines.pop(name, None):
                engine.close()

    # ---- inside ----------------------------------------------------------------------------------------------------------

    def _env(self, place: Place) -> Env:
        name = f"{place.setting.name} on {place.data.name}"
        if name not in self.kept:
            federation, present = self._kept(place.data, opened)
            task, initial, seed, channels, private = fetch(place.setting.ref)
            task.prepare(next(leaves(initial)).dtype)  # here, outside of any map
            old = [known for known in self.kept if " on " in known]
            for stale in old[: len(old) + 1 - _SETTINGS]:
                del self.kept[stale]
            self.kept[name] = Env(task, federation, initial, seed, channels=channels, private=private, present=present)
        env: Env = self.kept[name]
        states = ClientStates(len(env.federation)) if place.store is None else self._store(place)
        return replace(env, round=place.round, ask=place.ask, states=states)

    def _kept(self, sent: Sent, opening: Callable[[Any], Any]) -> Any:
        if sent.name not in self.kept:
            self.kept[sent.name] = opening(fetch(sent.ref))
        return self.kept[sent.name]

    def _engine(self, place: Place) -> LocalEngine:
        return self.engines.setdefault(place.data.name, LocalEngine(workers=1, device=self.device))

    def _store(self, place: Place) -> Touched:
        assert place.store is not None
        return self._named(place.store, len(self._kept(place.data, opened)[0]))

    def _named(self, store: str, n_clients: int) -> Touched:
        if store not in self.stores:
            self.stores[store] = Touched(n_clients)
        return self.stores[store]


@dataclass(frozen=True)
class Failed:
    """An error on its way to the driver."""

    error: CoterieError


def fetch(ref: tuple[Any, ...]) -> Any:
    """The object of a reference. The reference is in a tuple, so that Ray does not fetch an object that is already here.

    Without Ray the value itself is in the tuple."""
    if type(ref[0]).__name__ != "ObjectRef":
        return ref[0]
    import ray

    return ray.get(ref[0])


def cut(federation: Federation, bounds: Ints, i: int) -> dict[str, Any]:
    """Shard i: the sizes and ids of all clients (they decide padding and randomness), and the rows of its own clients.

    The clients `bounds[i]` … `bounds[i + 1] − 1` are consecutive, so their rows are one block."""
    first, last = (int(federation.offsets[b]) for b in bounds[i : i + 2])
    lean = replace(
        federation, x=federation.x[:0], y=federation.y[:0], offsets=federation.offsets - first, weights=None,
        order=None, preprocessing=None, notes=None,
    )  # fmt: skip
    own = slice(first, last)
    arrays = {"x": federation.features(own).numpy(), "y": federation.y[own].numpy()}
    if federation.weights is not None:
        arrays["weights"] = federation.weights[own].numpy()
    return {"about": lean, "arrays": arrays, "present": int(bounds[i + 1] - bounds[i])}


def opened(shard: dict[str, Any]) -> tuple[Federation, int]:
    """The shard as a federation over the object store's own memory, and how many clients are in it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the memory is read-only; nothing writes into a federation
        rows = {name: torch.from_numpy(a) for name, a in shard["arrays"].items()}
    return replace(shard["about"], **rows), shard["present"]


def compact(tree: Any) -> Any:
    """Copies of tensors that are a part of a larger block, because a block is sent as a whole."""
    if isinstance(tree, Rows):
        return Rows(tree.clients, compact(tree.values))

    def own(t: Any) -> Any:
        part = isinstance(t, torch.Tensor) and t.untyped_storage().nbytes() > t.numel() * t.element_size()
        return t.clone() if part else t

    return tree_map(own, tree)
