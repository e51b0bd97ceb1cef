"""Asks and states as messages: plain values and tensors, and what a site makes of them again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pandas as pd
import torch

from coterie.base.tree import Tree, flatten, unflatten
from coterie.data.client_rows import as_numbers
from coterie.data.federation import Federation
from coterie.engines.base import Env
from coterie.engines.private import Releases, check_private
from coterie.errors import ConfigError
from coterie.exchange.messages import Ask, From, Ints, MeanBy, SumBy
from coterie.flower import wire
from coterie.flower.job import Job


def write_ask(algorithm: Any, ask: Ask, *, private: bool) -> tuple[dict[str, Any], Tree]:
    """An ask as plain values and tensors, with the values from which a private run measures updates."""
    reduce = None if ask.reduce is None else [type(ask.reduce).__name__, ask.reduce.groups, *[True] * ask.reduce.soft]
    updates = {k: None if f is None else [list(f.fields), f.groups] for k, f in ask.updates.items()}
    head = {
        "phase": wire.place_of(algorithm, ask.phase), "clients": ask.clients.tolist(), "reduce": reduce, "test": ask.test,
        "updates": updates, "auxiliary": list(ask.auxiliary),
        "given": {k: list(getattr(ask, k)) for k in ("down", "each")},
    }  # fmt: skip
    return head, {"down": ask.down, "each": ask.each} | ({"known": ask.known} if private else {})


def read_ask(algorithm: Any, head: Mapping[str, Any], tree: Tree) -> Ask:
    reduce = None
    if head["reduce"] is not None:
        reduce = (MeanBy if head["reduce"][0] == "MeanBy" else SumBy)(int(head["reduce"][1]), len(head["reduce"]) == 3)
    updates = {k: None if f is None else From(*f[0], groups=f[1]) for k, f in head["updates"].items()}
    down, each = ({n: tree.get(k, {}).get(n, {}) for n in head["given"][k]} for k in ("down", "each"))
    return Ask(
        wire.function_at(algorithm, head["phase"]), np.array(head["clients"], np.int64), down, each, reduce, updates,
        tuple(head["auxiliary"]), test=bool(head["test"]), optional=True, known=tree.get("known", {}),
    )  # fmt: skip


def releases(job: Job, ask: Ask, told: Mapping[str, Any] | None, plan: Mapping[str, Any]) -> Releases | None:
    """How a private run clips and rounds, by this site's own plan; the server has the ledger and adds the noise. The site
    itself knows whether there is a budget, and a server cannot avoid it."""
    if (job.privacy is None) != (told is None):
        raise ConfigError("Server and site differ in whether there is a privacy budget. Give both the same project.")
    if job.privacy is None or told is None:
        return None
    check_private(ask)
    return Releases(job.privacy, None, secure=job.secure, **plan)  # type: ignore[arg-type]


def environment(task: Any, federation: Federation, seed: int, present: int) -> Env:
    dtype = federation.x.dtype if federation.x.is_floating_point() else torch.float32
    return Env(task, federation, task.init(seed, dtype), seed, present=present)


def among_all(rows: Federation, own: Ints, n_clients: int) -> Federation:
    """A federation of all clients in which only these have rows."""
    counts: dict[str, Any] = {
        name: np.zeros(n_clients, np.int64) for name in ("n_samples", "n_train", "n_valid", "keys")
    }
    for name, values in counts.items():
        values[own] = getattr(rows, name)
    names = [f"client {i} elsewhere" for i in range(n_clients)]
    for place, name in zip(own, rows.clients, strict=True):
        names[place] = name
    offsets = np.concatenate([[0], np.cumsum(counts.pop("n_samples"))]).astype(np.int64)
    return replace(rows, offsets=offsets, clients=pd.Index(names), clusters=None, **counts)


def server_state(job: Job, env: Env, tensors: Tree, plain: Mapping[str, Any]) -> Any:
    """The server's state as it was sent: its type is that of a fresh one."""
    from coterie.exchange.messages import Population

    n, classes = len(env.federation), env.federation.classes
    sample = as_numbers(env.federation.x.new_zeros(1, *env.federation.x.shape[1:]))
    population = Population(n, np.ones(n, np.int64), np.zeros(n, np.int64), classes, sample)
    fresh = job.algorithm.init(job.task(env.federation), population, job.seed, env.initial)
    tree = unflatten(flatten(tensors) | dict(plain))
    return type(fresh)(**{f.name: tree.get(f.name, {}) for f in fields(fresh)})
