"""What a client function would answer, tried on made-up rows: names, types and shapes without anybody's data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from coterie.base.tree import tree_map
from coterie.data.federation import Federation
from coterie.engines.base import ClientStates, Env, first_contact
from coterie.engines.reduce import Share, merged
from coterie.engines.vectorised import LocalEngine
from coterie.exchange.messages import Ask

_ROWS = 8


def trial(algorithm: Any, ask: Ask, env: Env) -> Share:
    """The share that one client would give; only its names, types and shapes count."""
    where = Env(env.task, made_up(env.federation), env.initial, env.seed, env.round, ClientStates(1))
    where.private = env.private
    each = tree_map(lambda t: t[:1] if len(t) else t.new_zeros((1, *t.shape[1:])), ask.each)
    one = replace(ask, clients=np.zeros(1, np.int64), each=each)
    engine = LocalEngine(workers=1)
    first_contact(algorithm, one.clients, where, engine)
    found = merged(engine.shares(one, where))
    engine.close()
    return found


def made_up(federation: Federation) -> Federation:
    """One client with a few rows of the federation's shape."""
    x = torch.linspace(-1, 1, _ROWS).reshape(-1, *[1] * (federation.x.dim() - 1)).expand(_ROWS, *federation.x.shape[1:])
    y = torch.zeros(_ROWS, *federation.y.shape[1:], dtype=federation.y.dtype)
    if federation.classes is not None:
        y = torch.arange(_ROWS) % len(federation.classes)
    return replace(
        federation, x=x.to(federation.x.dtype).contiguous(), y=y.to(federation.y.dtype), weights=None, mapped=False,
        order=None, offsets=np.array([0, _ROWS]), n_train=np.array([_ROWS - 2]), n_valid=np.zeros(1, np.int64),
        clients=federation.clients[:1], keys=federation.keys[:1], clusters=None,
    )  # fmt: skip
