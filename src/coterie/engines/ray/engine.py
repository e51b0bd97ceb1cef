"""The engine for a Ray cluster: actors own shards of clients and run the vectorised engine on them.

A shard's data are sent once, and its clients' private states leave it only to be saved. An additive ask returns one
partial sum per actor, in float64; an individual ask returns a row per client. Sums are added up where all engines add them
up (`reduce.py`), in the actors' order.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from coterie.base.annotations import guarded
from coterie.base.arguments import whole_number
from coterie.base.tree import Tree, concat, take
from coterie.data.federation import Federation
from coterie.engines.base import ClientStates, Env, Post
from coterie.engines.ray.pool import Call, Pool, new_name, pool
from coterie.engines.ray.shard import Place, Sent, compact, cut
from coterie.engines.ray.states import ShardedStates, by_shard
from coterie.engines.reduce import assemble
from coterie.exchange.messages import Ask, Ints, Reply

_SETTINGS = 4  # runs whose settings are kept for the next call


@guarded
@dataclass
class RayEngine:
    """`actors` processes (None: one per core of the cluster) with one torch thread each.

    address: of a running cluster, "auto" for the one on this machine; None starts Ray here, on loopback (or uses what
    RAY_ADDRESS names). device: where client functions run in the actors; with "cuda" every actor takes a GPU. Needs
    `pip install 'coterie[ray]'`."""

    actors: int | None = None
    address: str | None = None
    device: str | None = None
    _pool: Pool = field(init=False, repr=False, compare=False)
    _data: Any = field(default_factory=weakref.WeakKeyDictionary, init=False, repr=False, compare=False)
    _settings: dict[Any, tuple[Any, Sent]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.actors is not None:
            self.actors = whole_number("actors", self.actors)
        self.device = None if self.device == "cpu" else self.device
        self._pool = pool(self.address, self.actors, self.device)

    def __reduce__(self) -> Any:
        """Pickled and copied by its settings; actors and their contents are not copied."""
        return type(self), (self.actors, self.address, self.device)

    def run(self, ask: Ask, env: Env) -> Reply:
        states, given = self._states(env)
        question = self._pool.put(replace(ask, clients=ask.clients[:0], each={}, down=compact(ask.down)))
        parts = by_shard(self._shards(env.federation)[0], ask.clients)
        calls = {
            i: Call("run", (self._place(env, i, states), question, ask.clients[place], _rows(ask.each, place)))
            for i, place in parts.items()
        }
        shares = self._pool.call(calls) if states is None else states.write(calls)
        if given is not None and states is not None:  # states of another engine are brought up to date
            met = np.flatnonzero(states.met)
            given.set(met, states.get(met))
        return assemble(ask, env, shares.values())

    def map(
        self, function: Callable[..., Tree], clients: Ints, env: Env, *, test: bool = False, post: Post | None = None
    ) -> Tree:
        states, _ = self._states(env)
        sent = self._pool.put((function, post))
        parts = by_shard(self._shards(env.federation)[0], clients)
        calls = {
            i: Call("map", (self._place(env, i, states), sent, clients[place], test)) for i, place in parts.items()
        }
        back = torch.from_numpy(np.argsort(np.concatenate(list(parts.values())), kind="stable"))
        stacked: Tree = take(concat(list(self._pool.call(calls).values())), back)
        return stacked

    def states(self, federation: Federation) -> ShardedStates:
        """A new store for private states, in the actors."""
        return ShardedStates(self._pool, self._shards(federation)[0])

    def make(self, function: Callable[..., Tree], clients: Ints, env: Env, states: ShardedStates) -> bool:
        """Make clients' first states in their actors; returns whether there are any."""
        sent = self._pool.put(function)
        parts = states.shards(clients)
        calls = {i: Call("make", (self._place(env, i, states), sent, clients[place])) for i, place in parts.items()}
        return any(states.write(calls).values())

    def close(self) -> None:
        """Ends the actors, also for other engines with the same settings; their states are lost."""
        self._pool.close()

    # ---- inside ----------------------------------------------------------------------------------------------------------

    def _states(self, env: Env) -> tuple[ShardedStates | None, ClientStates | None]:
        """The store in the actors, and that in this process if it was made by another engine."""
        if isinstance(env.states, ShardedStates):
            return env.states, None
        if not env.states.used:
            return None, None
        moved = self.states(env.federation)
        moved.load(*env.states.packed())
        return moved, env.states

    def _place(self, env: Env, i: int, states: ShardedStates | None) -> Place:
        _, shards = self._shards(env.federation)
        return Place(self._setting(env), shards[i], None if states is None else states.name, env.round, env.ask)

    def _shards(self, federation: Federation) -> tuple[Ints, list[Sent]]:
        """Where the shards of a federation begin, and their data, sent once."""
        if federation not in self._data:
            n = len(self._pool.actors)
            rows = federation.n_train
            middle = np.cumsum(rows) - rows / 2  # numbers of rows of all clients: shards get about equally many
            inner = np.searchsorted(middle, rows.sum() * np.arange(1, n) / n)
            bounds = np.array([0, *inner, len(federation)], np.int64)
            name = new_name("data")
            self._data[federation] = bounds, [Sent(name, self._pool.put(cut(federation, bounds, i))) for i in range(n)]
            weakref.finalize(federation, self._pool.forgotten.append, name).atexit = False
        found: tuple[Ints, list[Sent]] = self._data[federation]
        return found

    def _setting(self, env: Env) -> Sent:
        """Task, start and channels of a run, sent once."""
        what = (env.task, env.initial, env.seed, env.channels, env.private)
        key = tuple(part if isinstance(part, int) else id(part) for part in what)
        if key not in self._settings:
            for old in list(self._settings)[: len(self._settings) + 1 - _SETTINGS]:
                del self._settings[old]
            self._settings[key] = (
                what,
                Sent(new_name("setting"), self._pool.put(what)),
            )  # what is held, so ids stay its own
        return self._settings[key][1]


def _rows(each: Tree, place: Ints) -> Tree:
    return take(each, torch.from_numpy(place)) if each else {}
