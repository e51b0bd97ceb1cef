"""The fast engine: client functions mapped with `torch.func.vmap` over cache-sized chunks of clients.

Clients of one padded size form a chunk; all local steps of a chunk run before the next chunk starts, so its models stay in
the cache. Chunks run on `workers` threads with one intra-op thread each (at these sizes more threads inside an operation
make it slower). Results do not depend on the number of workers.

**Private runs.** The rounding of a batched product may depend on a client's place and on the other clients in the batch, and
unstable training can make a last bit a large difference. So in a run with a receipt (`Env.apart`) a client's numbers depend
only on its own data and public values, by construction: it is not padded, clients of equal size share a chunk, a chunk's
number of places follows from the model and this size, and a client's place follows from its name. Empty places hold
copies of a client, whose results are dropped. Every call then has the same shapes, and every client the same place in
it, whichever other clients take part. Where a client's numbers are indices (`Traits.addresses`, an embedding's ids), clients
run one by one: in a batch, an id out of range would read, and train, another client's model.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.base.annotations import guarded
from coterie.base.arguments import Count, CountFromZero
from coterie.base.cores import usable_cores
from coterie.base.disk import said
from coterie.base.tree import Tree, concat, leaves, n_bytes, take, tree_map
from coterie.data.federation import Federation
from coterie.engines.base import Env, Post, Split, context, gather, in_round, unpack
from coterie.engines.devices import at, checked, fetched, moved, placed
from coterie.engines.error_location import Untouched, line_of
from coterie.engines.reduce import Share, assemble, share
from coterie.errors import ClientError, CoterieError
from coterie.exchange.messages import Ask, Ints, Reply

_MODEL_BYTES = 6 << 20  # models of a chunk: a few MB stay in the second-level cache
_DATA_BYTES = 64 << 20
_MOST_CLIENTS = 512
_KEPT_BYTES = (32 << 20) - (8 << 10)  # the largest block size that changes how the C library frees memory
_PLACES = 64  # the most places of a chunk of a private run
_STEP = 1 << 23  # products that take about as long as a step's calls: empty places may cost as much
_ROWS = 32  # samples of a step, where it does not take all
_CONVOLUTIONS = 24  # clients with hand-written convolutions: so many that calls take little time compared with products


@dataclass(frozen=True)
class Job:
    """A chunk: positions among the asked clients. Only the results at `real` count; None: all of them."""

    places: Ints
    slots: Ints | None = None

    @property
    def real(self) -> Any:
        return slice(None) if self.slots is None else self.slots

    def kept(self, out: Any) -> Any:
        """The results of real places."""
        return out if self.slots is None else take(out, torch.from_numpy(self.slots))


@guarded
@dataclass
class LocalEngine:
    """`chunk` clients at a time (default: sized for the cache); when all clients are asked their gathered data are kept
    for the next round while they fit `cache_bytes`. `device` is where client functions run (None: the CPU)."""

    chunk: Count | None = None
    workers: Count = field(default_factory=usable_cores)
    cache_bytes: CountFromZero = 1 << 30
    device: str | None = None
    _pool: ThreadPoolExecutor | None = field(default=None, repr=False)
    _cache: dict[Any, dict[str, Tensor]] = field(default_factory=dict, repr=False)
    _cached: int = field(default=0, repr=False)
    _owner: Federation | None = field(default=None, repr=False)  # whose data the cache holds
    _lock: Any = field(default_factory=Lock, repr=False)

    def __post_init__(self) -> None:
        self.device = checked(self.device)

    def __getstate__(self) -> dict[str, Any]:
        """Pickled and copied by its settings, without threads and gathered data."""
        names = ("chunk", "workers", "cache_bytes", "device")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, settings: dict[str, Any]) -> None:
        self.__init__(**settings)  # type: ignore[misc]

    def run(self, ask: Ask, env: Env) -> Reply:
        return assemble(ask, env, self.shares(ask, env))

    def shares(self, ask: Ask, env: Env) -> Iterator[Share]:
        """What every chunk of clients contributes to the reply."""
        return (mine for _, mine in self._answers(ask, env, unpack, lambda out, who: share(ask, env, out, who)))

    def map(
        self, function: Callable[..., Tree], clients: Ints, env: Env, *, test: bool = False, post: Post | None = None
    ) -> Tree:
        ask = Ask(function, clients, test=test)  # type: ignore[arg-type]  # its answers are trees
        done = list(self._answers(ask, env, lambda out, *_: out, lambda out, _: out if post is None else post(out)))
        back = torch.from_numpy(np.argsort(np.concatenate([places for places, _ in done]), kind="stable"))
        stacked: Tree = take(concat([out for _, out in done]), back)
        return stacked

    def _answers(
        self, ask: Ask, env: Env, told: Callable[..., Tree], post: Callable[[Tree, Ints], Any]
    ) -> Iterator[tuple[Ints, Any]]:
        """For every chunk the places of its clients in the ask, and `post` of the answers that `told` reads."""
        splits: tuple[Split, ...] = ("train", "test") if ask.test else ("train",)
        (down, there), (phase, _) = (placed(part, env, self.device) for part in (ask.down, ask.phase))

        def work(job: Job) -> tuple[Ints, Any]:
            mine = ask.clients[job.places]
            each = take(ask.each, torch.from_numpy(job.places)) if ask.each else {}
            data = self._data(env, mine, splits, len(ask.clients))

            def one(state: Tree, each: Tree, *data: dict[str, Tensor]) -> Tree:
                ctx, *test = (context(there, d, state) for d in data)
                return told(phase(ctx, *test, **down, **each), ctx, ask.name)

            shared = Untouched(down, {"initial": there.initial}, *data)
            out = self._mapped(one, phase, ask.name, _plain(mine, env), env.states.get(mine), each, *data)
            shared.check(ask.name)
            env.task.require_same_buffers()
            return job.places[job.real], post(job.kept(out), mine[job.real])

        return self._threads(work, list(self._chunks(ask.clients, env, splits)))

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        self._forget(None)

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _mapped(self, *given: Any) -> Any:
        if self.device is None:
            return _mapped(*given)
        there = [moved(stacked, self.device) for stacked in given[4:]]
        with at(self.device):
            out = _mapped(*given[:4], *there)
        return fetched(out, self.device)

    def _threads(self, work: Callable[[Job], Any], jobs: list[Job]) -> Iterator[Any]:
        """Results in the order of the jobs; each is freed as soon as it is taken."""
        if self._pool is None:
            _keep_freed_memory()
            self._pool = ThreadPoolExecutor(self.workers, "coterie", initializer=torch.set_num_threads, initargs=(1,))
        futures = deque(self._pool.submit(work, job) for job in jobs)
        try:
            while futures:
                yield futures.popleft().result()
        except BaseException:
            for future in futures:
                future.cancel()
            for future in futures:
                if not future.cancelled():
                    future.exception()  # wait: nothing may write a state after the round has failed
            raise

    def _forget(self, owner: Federation | None) -> None:
        self._cache.clear()
        self._cached, self._owner = 0, owner

    def _chunks(self, clients: Ints, env: Env, splits: tuple[Split, ...]) -> Iterator[Job]:
        """Positions of clients with equal padded sizes, in federation order, a chunk at a time."""
        sizes = np.stack([env.padded(split)[clients] for split in splits], 1)
        order = np.lexsort((clients, *sizes.T[::-1]))
        edges = np.flatnonzero((np.diff(sizes[order], axis=0) != 0).any(1)) + 1
        for block in np.split(order, edges):
            if len(block) and env.apart:
                keys = env.federation.keys[clients[block]]
                yield from _fixed_places(block, keys, _places(env, int(sizes[block[0]].sum())))
            elif len(block):
                step = self._chunk_size(env, int(sizes[block[0]].sum()), len(block))
                yield from (Job(block[i : i + step]) for i in range(0, len(block), step))

    def _chunk_size(self, env: Env, samples: int, available: int) -> int:
        if env.task.alone:
            return 1
        if self.chunk is not None:
            return self.chunk
        if env.task.convolutional:
            return max(min(_CONVOLUTIONS, -(-available // self.workers)), 1) if _network(env) else 1
        sample = max(env.federation.n_features, max(t.shape[0] if t.dim() else 1 for t in leaves(env.initial))) * 4
        by_model = _MODEL_BYTES // max(n_bytes(env.initial), 1)
        by_data = _DATA_BYTES // max(samples * sample, 1)
        most = int(np.clip(min(by_model, by_data), 1, _MOST_CLIENTS))
        return max(min(most, -(-available // self.workers)), 1)  # a share for every worker

    def _data(self, env: Env, clients: Ints, splits: tuple[Split, ...], asked: int) -> list[dict[str, Tensor]]:
        result = []
        for split in splits:
            size = int(env.padded(split)[clients[0]])
            key = (split, size, clients.tobytes())
            with self._lock:
                if self._owner is not env.federation:
                    self._forget(env.federation)
                data = self._cache.get(key)
            if data is None:
                data = gather(env, clients, size, split)
                held = n_bytes(data)
                with self._lock:
                    mapped = env.federation.mapped  # large data stay on disk
                    here = len(env.federation) if env.present is None else env.present
                    again = asked == here and not mapped  # a random cohort's chunks do not come again
                    if again and self._cached + held <= self.cache_bytes and key not in self._cache:
                        self._cache[key] = data
                        self._cached += held
            result.append(in_round(env, data, clients, split))
        return result


def _keep_freed_memory() -> None:
    """glibc returns freed blocks to the system, unless a block as large was freed before. Every step frees and
    needs the same few megabytes, and getting them from the system again takes longer than a step's arithmetic."""
    torch.empty(_KEPT_BYTES, dtype=torch.uint8)


def _places(env: Env, samples: int) -> int:
    """How many places a chunk of a private run has: a power of two, from public values and the client's own size."""
    task = env.task
    if task.one_by_one or task.traits.addresses or env.federation.weights is not None:
        return 1
    numbers = sum(t.numel() for t in leaves(env.initial))
    most = min(max(_STEP // max(numbers * min(samples, _ROWS), 1), 1), _PLACES)
    return 1 << (most.bit_length() - 1)


def _fixed_places(block: Ints, keys: Ints, places: int) -> Iterator[Job]:
    """Chunks of exactly `places` clients of one size; a client's place in its chunk follows from its key."""
    slot = keys.view(np.uint64) % np.uint64(places)
    waiting = [deque(block[slot == s]) for s in range(places)]
    while any(waiting):
        there = np.array([s for s in range(places) if waiting[s]])
        first = waiting[there[0]][0]
        yield Job(np.array([queue.popleft() if queue else first for queue in waiting], np.int64), there)


def _plain(clients: Ints, env: Env) -> bool:
    return len(clients) == 1 and env.task.one_by_one and not _network(env)


def _network(env: Env) -> bool:
    """Whether clients' steps are written by hand for whole chunks."""
    return env.task.network(tuple(env.initial), env.federation.x.shape[1:]) is not None


def _mapped(function: Callable[..., Any], written: Callable[..., Any], name: str, plain: bool, *stacked: Any) -> Any:
    """`vmap`, or a plain call where batching gains nothing; an error names the line and says how to find the client.

    A fully connected network goes through `vmap` even when its client is alone: batched products do not depend on the
    size of the batch, so a client's numbers do not depend on the other clients in its chunk."""
    with torch.no_grad():
        try:
            if plain:
                return tree_map(lambda t: t.unsqueeze(0), function(*(tree_map(lambda t: t[0], s) for s in stacked)))
            return torch.func.vmap(function, randomness="error")(*stacked)
        except CoterieError:
            raise
        except Exception as error:
            raise ClientError(
                f"The client function '{name}' failed in the vectorised engine at {line_of(error, written)}: {said(error)}. "
                "Run with engine='loop' to see the client."
            ) from error
