"""What engines share: gathering clients' data and keeping their private states.

A client is padded to a size that depends only on the federation, so its numbers do not depend on the other clients in its
chunk or cohort. In a run with a privacy receipt a client is not padded at all (`Env.apart`): there its numbers may
not depend on the federation either.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from coterie.base import randomness
from coterie.base.tree import Params, Tree, flatten, leaves, take, tree_map
from coterie.data.federation import Federation, as_numbers
from coterie.errors import ClientError
from coterie.exchange.channels.base import Channel, Where
from coterie.exchange.messages import Algorithm, Ask, Context, Exchange, Ints, Reply, Up
from coterie.learning.rows_task import rows_task
from coterie.learning.task import Task

if TYPE_CHECKING:
    from coterie.engines.private import Releases

_FEW = 64  # fewer clients than this are worth padding together
Split = Literal["train", "test"]
Post = Callable[[Tree], Tree]


@dataclass
class ClientStates:
    """Private states of the clients that have been asked so far, stacked; a row is made at first contact.

    `rollback` undoes the rows written since the last `commit`, so a failed round leaves no trace."""

    n_clients: int
    row: Ints = field(init=False)
    values: Tree = field(default_factory=dict)
    used: int = 0
    nothing: bool = False  # the algorithm keeps no state on clients
    _journal: list[tuple[Tensor, Tree]] = field(default_factory=list)
    _added: list[Ints] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.row = np.full(self.n_clients, -1, np.int64)

    def missing(self, clients: Ints) -> Ints:
        return clients[self.row[clients] < 0]

    def add(self, clients: Ints, values: Tree) -> None:
        self._added.append(clients)
        rows = np.arange(self.used, self.used + len(clients))
        capacity = len(next(leaves(self.values))) if self.values else 0
        if rows[-1] >= capacity:
            size = max(rows[-1] + 1, min(2 * capacity, self.n_clients), 16)
            bigger: Tree = tree_map(lambda t: t.new_zeros((size, *t.shape[1:])), values)
            if self.values:
                tree_map(lambda new, old: new[: self.used].copy_(old[: self.used]), bigger, self.values)
            self.values = bigger
        self.row[clients], self.used = rows, self.used + len(clients)
        self._put(torch.from_numpy(rows), values)

    def get(self, clients: Ints) -> Tree:
        if not self.values or (self.row[clients] < 0).any():
            return {}  # first contact: the state is about to be made
        rows: Tree = take(self.values, torch.from_numpy(self.row[clients]))
        return rows

    def set(self, clients: Ints, values: Tree) -> None:
        rows = torch.from_numpy(self.row[clients])
        self._journal.append((rows, take(self.values, rows)))
        self._put(rows, values)

    def _put(self, rows: Tensor, values: Tree) -> None:
        kept, given = flatten(self.values), flatten(values)
        if kept.keys() != given.keys():  # matched by name: their order differs after a resume
            raise ClientError(
                f"A client's new state needs the entries of its first one, {sorted(kept)}; got {sorted(given)}. "
                "Return all of them in Up(state=…)."
            )
        for name, store in kept.items():
            store[rows] = given[name].to(store.dtype)

    def make(self, function: Callable[..., Tree], clients: Ints, env: Env, engine: Engine) -> None:
        """Give clients their first state, `function(ctx)`; it is empty if the algorithm's clients keep no state."""
        made = engine.map(function, clients, env, test=False)
        if made:
            self.add(clients, made)
        else:
            self.nothing = True

    def load(self, row: Ints, values: Tree) -> None:
        """Take over the states of a checkpoint: client i has row `row[i]`, or none where that is −1."""
        self.row, self.values, self.used = row, values, int((row >= 0).sum())

    def packed(self) -> tuple[Ints, Tree]:
        """The states in the form that `load` takes."""
        return self.row, tree_map(lambda t: t[: self.used], self.values)

    def commit(self) -> None:
        self._journal.clear()
        self._added.clear()

    def rollback(self) -> None:
        for rows, old in reversed(self._journal):
            self._put(rows, old)
        for clients in self._added:
            self.row[clients], self.used = -1, self.used - len(clients)
        self.commit()


@dataclass
class Env:
    """Everything that an engine needs in addition to the ask."""

    task: Task
    federation: Federation
    initial: Params
    seed: int
    round: int = 0
    states: ClientStates = field(default_factory=lambda: ClientStates(0))
    channels: tuple[Channel, ...] = ()
    ask: int = 0
    private: Releases | None = None  # what replaces plain sums in a differentially private run
    present: int | None = None  # how many clients' data are in this process; None: all
    _padded: dict[tuple[Split, bool], Ints] = field(default_factory=dict)

    def padded(self, split: Split) -> Ints:
        """Every client's padded number of samples."""
        own = self.task.alone or self.apart
        if (split, own) not in self._padded:
            sizes = self.federation.sizes(split)
            self._padded[split, own] = np.maximum(sizes, 1) if own else padded_sizes(sizes)
        return self._padded[split, own]

    @property
    def apart(self) -> bool:
        """Whether a client's message must be a function of only its own data and public values, to the last bit."""
        return self.private is not None and self.private.exact

    @property
    def whole(self) -> bool:
        """Whether a channel must see all messages of an ask at once."""
        return any(channel.whole for channel in self.channels)

    @property
    def where(self) -> Where:
        return Where(self.federation, self.seed, self.round, self.ask)

    def keys(self, clients: Ints) -> Tensor:
        """Random keys of (seed, client, round), one per client."""
        keys = randomness.client_keys(self.federation.keys[clients], self.seed)
        return randomness.fold(keys, "client", self.round)


def rows_env(federation: Federation, seed: int) -> Env:
    """Where clients answer one by one, from their rows as they are."""
    task = rows_task(federation)
    return Env(task, federation, task.init(seed, federation.x.dtype), seed, states=ClientStates(len(federation)))


class Engine(Protocol):
    """What runs the client functions of an ask: `LocalEngine`, `LoopEngine` or `RayEngine`."""

    def run(self, ask: Ask, env: Env) -> Reply:
        """Put the question to its clients and reduce their answers."""
        ...

    def map(
        self, function: Callable[..., Tree], clients: Ints, env: Env, *, test: bool, post: Post | None = None
    ) -> Tree:
        """Apply `function(ctx)` (with `test`: `function(ctx, test_ctx)`) to every client; stacked, in the order given.

        `post` turns a chunk's stacked results into something smaller before the next chunk runs."""
        ...


def padded_sizes(n: Ints) -> Ints:
    """A padded size for every client: clients of similar size share the largest of them.

    At most a fifth is padding, or a half where that joins clients that would otherwise run almost alone."""
    order = np.argsort(-n, kind="stable")
    down = -n[order]  # ascending
    sizes = np.empty_like(n)
    start = 0
    while start < len(n):
        top = -down[start]
        end = int(np.searchsorted(down, -0.8 * top, side="right"))
        if end - start < _FEW:
            close = int(np.searchsorted(down, -min(0.5 * top, top - 1) if top > _FEW else 0, side="right"))
            end = max(end, min(close, start + _FEW))
            end = int(np.searchsorted(down, down[end - 1], side="right"))  # equal sizes stay together
        sizes[order[start:end]] = max(top, 1)
        start = end
    return sizes


def gather(env: Env, clients: Ints, size: int, split: Split) -> dict[str, Tensor]:
    """Data of some clients, padded to `size` samples and stacked."""
    fed = env.federation
    start = fed.starts(split)[clients]
    n = torch.from_numpy(fed.sizes(split)[clients])
    position = torch.arange(size)
    real = position < n.unsqueeze(-1)
    rows = torch.from_numpy(start).unsqueeze(-1) + torch.where(real, position, 0)
    rows = rows.clamp(max=len(fed.y) - 1)  # a client without test rows at the very end
    x = as_numbers(fed.features(rows))
    dtype = x.dtype if x.is_floating_point() else torch.float32
    mask = real.to(dtype) if fed.weights is None else fed.weights[rows] * real
    return {"x": x, "y": fed.y[rows], "mask": mask, "n": n.to(dtype), "index": torch.from_numpy(clients)}


def in_round(env: Env, data: dict[str, Tensor], clients: Ints, split: Split) -> dict[str, Tensor]:
    """The same data with this round's random keys, after the channels that tamper with training data."""
    x, y = data["x"], data["y"]
    for channel in env.channels if split == "train" else ():
        x, y = channel.data(x, y, clients, env.where)
    return data | {"x": x, "y": y, "key": env.keys(clients)}


def context(env: Env, data: dict[str, Tensor], state: Tree) -> Context:
    return Context(task=env.task, round=env.round, initial=env.initial, state=state, training=False, **data)


def unpack(up: Up, ctx: Context, phase: str) -> dict[str, Any]:
    """An `Up` as nested dicts of tensors, the form `vmap` can return."""
    if not isinstance(up, Up):
        raise ClientError(
            f"A client function returns Up(send=…); '{phase}' returned a {type(up).__name__}. Wrap it in Up."
        )
    out: dict[str, Any] = {
        "send": up.send,
        "weight": torch.as_tensor(up.weight, dtype=ctx.mask.dtype),
        "group": torch.as_tensor(up.group, dtype=torch.int64),
        "info": {k: torch.as_tensor(v, dtype=torch.float64) for k, v in up.info.items()},
    }
    if up.state is not None:
        out["state"] = up.state
    return out


def first_contact(algorithm: Algorithm, clients: Ints, env: Env, engine: Engine) -> None:
    """Make the private states of the clients that have none yet."""
    new = env.states.missing(clients)
    if env.states.nothing or not len(new):
        return
    blank = replace(env, round=0, states=ClientStates(0))  # the state does not depend on when the first contact is
    env.states.make(algorithm.client, new, blank, engine)


def fresh_states(engine: Any, federation: Federation) -> ClientStates:
    """A store for the private states of a run's clients: the engine's own store, if it has one, else one in this process."""
    made: ClientStates = getattr(engine, "states", lambda fed: ClientStates(len(fed)))(federation)
    return made


def answered(exchange: Exchange[Any], run: Callable[[Ask, Env], Reply], env: Env) -> Any:
    """The result of an exchange whose questions `run` puts to clients."""
    reply: Any = None
    try:
        while True:
            ask = exchange.send(reply)
            reply = run(ask, env)
            env = replace(env, ask=env.ask + 1)
    except StopIteration as done:
        return done.value
