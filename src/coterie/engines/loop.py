"""The plain engine: the same client functions, one client at a time, without padding or vmap.

It is a debugging aid that names client, phase and line when a client function fails, and the reference against which the
fast engine is tested."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.base.annotations import guarded
from coterie.base.tree import Tree, concat, tree_map
from coterie.engines.base import Env, Post, Split, context, gather, in_round, unpack
from coterie.engines.devices import at, checked, fetched, moved, placed
from coterie.engines.error_location import Untouched, line_of
from coterie.engines.reduce import assemble, share
from coterie.errors import ClientError, CoterieError
from coterie.exchange.messages import Ask, Context, Ints, Reply


@guarded
@dataclass
class LoopEngine:
    """One client at a time, without padding or vmap: slow, and an error names the client, the phase and your line.

    `device` is where client functions run (None: the CPU)."""

    device: str | None = None

    def __post_init__(self) -> None:
        self.device = checked(self.device)

    def run(self, ask: Ask, env: Env) -> Reply:
        shares = []
        down, there = placed(ask.down, env, self.device)
        for place in np.argsort(ask.clients, kind="stable"):
            i = int(place)
            mine = ask.clients[i : i + 1]
            ctx, *test = self._contexts(env, there, mine, ask.test)
            each = moved(tree_map(lambda t, i=i: t[i], ask.each), self.device)
            with at(self.device):
                up = _call(ask.phase, ask.name, env, mine, ctx, *test, **down, **each)
                out = tree_map(lambda t: t.unsqueeze(0), unpack(up, ctx, ask.name))
            shares.append(share(ask, env, fetched(out, self.device), mine))
        return assemble(ask, env, shares)

    def map(
        self, function: Callable[..., Tree], clients: Ints, env: Env, *, test: bool = False, post: Post | None = None
    ) -> Tree:
        results = []
        function, there = placed(function, env, self.device)
        for i in range(len(clients)):
            mine = clients[i : i + 1]
            contexts = self._contexts(env, there, mine, test)
            with at(self.device):
                out = _call(function, getattr(function, "__name__", "map"), env, mine, *contexts)
            out = fetched(tree_map(lambda t: t.unsqueeze(0), out), self.device)
            results.append(out if post is None else post(out))
        stacked: Tree = concat(results)
        return stacked

    def close(self) -> None:
        """This engine holds nothing that must be released."""

    def _contexts(self, env: Env, there: Env, client: Ints, test: bool) -> list[Context]:
        """One client's data and state; `there` holds what is on the device."""
        splits: tuple[Split, ...] = ("train", "test") if test else ("train",)
        state = moved(tree_map(lambda t: t[0], env.states.get(client)), self.device)
        return [context(there, moved(_one(env, client, split), self.device), state) for split in splits]


def _one(env: Env, client: Ints, split: Split) -> dict[str, Tensor]:
    counts = env.federation.sizes(split)
    data = in_round(env, gather(env, client, max(int(counts[client[0]]), 1), split), client, split)
    return {name: t[0] for name, t in data.items()}


def _call(function: Callable[..., Any], name: str, env: Env, client: Ints, *args: Any, **kwargs: Any) -> Any:
    own, named = _copied(args), _copied(kwargs)  # a client writes only into its own copy
    shared = Untouched(named, *({"initial": c.initial, "state": c.state, "x": c.x, "y": c.y} for c in own))
    with torch.no_grad():
        try:
            answer = function(*own, **named)
        except CoterieError:
            raise
        except Exception as error:
            raise ClientError(
                f"Client {env.federation.name(int(client[0]))} failed in '{name}' at {line_of(error, function)}: "
                f"{type(error).__name__}: {error}"
            ) from error
    shared.check(name)
    env.task.require_same_buffers()
    return answer


def _copied(given: Any) -> Any:
    """Copies of the arguments."""
    if isinstance(given, tuple):
        return tuple(replace(ctx, initial=_copied(ctx.initial), state=_copied(ctx.state)) for ctx in given)
    return tree_map(lambda t: t.clone() if isinstance(t, Tensor) else t, given)
