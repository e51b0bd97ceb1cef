"""A client's updates, as the ask declares them: what each is measured from.

A client sends a model or a gradient. A model says nothing by itself; the client's contribution is how far it moved it. The
ask's `updates` says from what: `From("model")` is the ask's field `model`, the client's own row of `each` or the same for
all in `down`; `groups` is a field with one row per group. None marks an update by itself. Nothing is guessed from names.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from coterie.errors import ConfigError
from coterie.exchange.channels.base import Where
from coterie.exchange.messages import Ask, From, Ints
from coterie.tree import Tree, flatten


def references(send: Tree, clients: Ints, ask: Ask, where: Where, who: str) -> dict[str, Tensor]:
    """What every leaf of the declared updates is measured from, by path ("model/weight"); one row per client.

    `who` acts on the updates; the error names it where the declaration is missing or wrong."""
    ask.check_declared(send, who)
    order = np.argsort(ask.clients, kind="stable")
    place = torch.from_numpy(order[np.searchsorted(ask.clients[order], clients)])
    found: dict[str, Tensor] = {}
    for name, origin in ask.updates.items():
        for path, sent in flatten(send.get(name, {}), name).items():
            if origin is None:
                found[path] = sent.new_zeros(()).expand_as(sent)
            else:
                found[path] = _reference(path.partition("/")[2], sent, origin, ask, where, place)
    return found


def _reference(rest: str, sent: Tensor, origin: From, ask: Ask, where: Where, place: Tensor) -> Tensor:
    """The tensor that one sent tensor is measured from."""
    for name in origin.fields:
        each, down = _leaf(ask.each, name, rest), _leaf(ask.down, name, rest)
        if each is not None and each.shape[1:] == sent.shape[1:]:
            return each[place]
        if down is not None and down.shape == sent.shape[1:]:
            return down.expand_as(sent)
    if origin.groups is not None and where.group is not None:
        rows = _leaf(ask.down, origin.groups, rest)
        if rows is not None and rows.shape[1:] == sent.shape[1:]:
            return rows[where.group]
    raise ConfigError(
        f"The ask '{ask.name}' declares an update that is measured from {origin}, but it gave clients nothing of shape "
        f"{tuple(sent.shape[1:])} there for {rest!r}. Name the field of down or each that the client started from."
    )


def _leaf(tree: Tree, name: str, rest: str) -> Tensor | None:
    leaf: Tensor | None = flatten(tree.get(name, {})).get(rest)
    return leaf
