"""The driver's view of the private states in actors: which clients have one, what was committed, and how to restore it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from coterie.base.tree import Tree, concat, take
from coterie.engines.base import ClientStates, Engine, Env
from coterie.engines.ray.pool import Call, Pool, new_name
from coterie.engines.ray.shard import Rows
from coterie.exchange.messages import Ints

if TYPE_CHECKING:
    from coterie.engines.ray.engine import RayEngine

_SPARE = 2  # saved rows per state, above which all states are saved anew


class ShardedStates(ClientStates):
    """Client i's state is in the actor that has its data.

    An actor answers `commit` with the rows it changed. They stay in the object store, and this process holds the
    references; together they are what a new process starts from when an actor dies. `calls` are those since the commit."""

    def __init__(self, pool: Pool, bounds: Ints) -> None:
        self.n_clients, self.nothing = int(bounds[-1]), False
        self.pool, self.bounds, self.name = pool, bounds, new_name("states")
        self.saved: list[list[tuple[int, Any]]] = [[] for _ in pool.actors]
        self.calls: list[list[Call]] = [[] for _ in pool.actors]
        self.met = np.zeros(self.n_clients, np.bool_)
        self._met_before: Any = None
        self._written = False  # whether actors may hold uncommitted states
        pool.states.add(self)
        weakref.finalize(self, pool.forgotten.append, self.name).atexit = False

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    def __reduce__(self) -> Any:
        """Pickled and copied as a store with all states in one process."""
        return _in_one_process, (self.n_clients, *self.packed(), self.nothing)

    def shards(self, clients: Ints) -> dict[int, Ints]:
        """The places in `clients` of those whose data are in an actor."""
        return by_shard(self.bounds, clients)

    # ---- as any store of states ------------------------------------------------------------------------------------------

    def missing(self, clients: Ints) -> Ints:
        return clients[~self.met[clients]]

    def make(self, function: Callable[..., Tree], clients: Ints, env: Env, engine: Engine) -> None:
        made = _of_ray(engine).make(function, clients, env, self)
        if made:
            self._meet(clients)
        else:
            self.nothing = True

    def add(self, clients: Ints, values: Tree) -> None:
        parts = self.shards(clients)
        rows = {i: Rows(clients[place], take(values, torch.from_numpy(place))) for i, place in parts.items()}
        self.write({i: Call("put", (self.name, self.n_clients, one)) for i, one in rows.items()})
        self._meet(clients)

    set = add

    def get(self, clients: Ints) -> Tree:
        if self.nothing or not len(clients) or not self.met[clients].all():
            return {}
        parts = self.shards(clients)
        got = self.pool.call({i: Call("rows", (self.name, clients[place])) for i, place in parts.items()})
        back = torch.from_numpy(np.argsort(np.concatenate(list(parts.values())), kind="stable"))
        rows: Tree = take(concat(list(got.values())), back)
        return rows

    def load(self, row: Ints, values: Tree) -> None:
        clients = np.flatnonzero(row >= 0)
        if len(clients):
            self.add(clients, take(values, torch.from_numpy(row[clients])))
        self.commit()

    def packed(self) -> tuple[Ints, Tree]:
        return self.row, self.values

    def commit(self) -> None:
        """The actors keep the rows they wrote, and this process keeps the references to them."""
        changed = [i for i, calls in enumerate(self.calls) if calls]
        if changed and not self.nothing and self.met.any():
            everything = {i: self._worn(i) for i in changed}
            calls = {i: Call("commit", (self.name, everything[i])) for i in changed}
            for i, (rows, ref) in self.pool.refs(calls, 2).items():
                kept = [] if everything[i] else self.saved[i]
                self.saved[i] = [*kept, (self.pool.ray.get(rows), ref)]
        self._settled()

    def rollback(self) -> None:
        if self._written:
            self.pool.call({i: Call("rollback", (self.name,)) for i in range(len(self.pool.actors))})
        if self._met_before is not None:
            self.met = self._met_before
        self._settled()

    # ---- for the engine --------------------------------------------------------------------------------------------------

    def write(self, calls: dict[int, Call]) -> dict[int, Any]:
        """Calls that change states; they are remembered until the next commit and repeated if an actor dies."""
        self._written = True
        answers = self.pool.call(calls)
        for i, call in calls.items():
            self.calls[i].append(call)
        return answers

    def since_the_start(self, i: int) -> list[Call]:
        """The calls that give a new process the states of actor i."""
        saved = [ref for _, ref in self.saved[i]]
        return [Call("restore", (self.name, self.n_clients, saved)), *self.calls[i]]

    # ---- inside ----------------------------------------------------------------------------------------------------------

    def _meet(self, clients: Ints) -> None:
        if self._met_before is None:
            self._met_before = self.met.copy()
        self.met[clients] = True

    def _settled(self) -> None:
        self.calls = [[] for _ in self.calls]
        self._met_before, self._written = None, False

    def _worn(self, i: int) -> bool:
        """Whether the saved pieces take more space than all states in one piece."""
        here = int(self.met[self.bounds[i] : self.bounds[i + 1]].sum())
        return sum(rows for rows, _ in self.saved[i]) > _SPARE * here

    @property
    def row(self) -> Ints:  # type: ignore[override]
        """Rows in the clients' order, as a checkpoint has them."""
        return np.where(self.met, np.cumsum(self.met) - 1, -1)

    @property
    def values(self) -> Tree:  # type: ignore[override]
        """All states in one place: for checkpoints and tests."""
        return self.get(np.flatnonzero(self.met))

    @property
    def used(self) -> int:  # type: ignore[override]
        return int(self.met.sum())


def by_shard(bounds: Ints, clients: Ints) -> dict[int, Ints]:
    """For every shard that has some of the clients, their places among them, in federation order."""
    owner = np.searchsorted(bounds, clients, side="right") - 1
    return {int(i): np.flatnonzero(owner == i) for i in np.unique(owner)}


def _of_ray(engine: Engine) -> RayEngine:
    found: Any = engine
    return found  # type: ignore[no-any-return]


def _in_one_process(n_clients: int, row: Ints, values: Tree, nothing: bool) -> ClientStates:
    states = ClientStates(n_clients)
    states.load(row, values)
    states.nothing = nothing
    return states
