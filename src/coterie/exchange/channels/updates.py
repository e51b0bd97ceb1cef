"""A client's updates as the ask declares them, each with the value from which it is measured.

A client sends a model or a gradient. Its contribution to a model is the difference from the model it received. The
ask's `updates` names that model: `From("model")` is the ask's field `model`, either the client's own row of `each` or the
same for all in `down`; `groups` is a field with one row per group. None marks an update by itself, such as a gradient.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from coterie.base.tree import Tree, flatten
from coterie.errors import ConfigError
from coterie.exchange.channels.base import Where
from coterie.exchange.messages import Ask, From, Ints


def references(send: Tree, clients: Ints, ask: Ask, where: Where, who: str) -> dict[str, Tensor]:
    """The value from which every leaf of the declared updates is measured, by path ("model/weight"); one row per client.

    `who` is the part that acts on the updates; an error about a missing or wrong declaration names it."""
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
    """The tensor from which one sent tensor is measured."""
    for name in origin.fields:
        each, down = _leaf(ask.each, name, rest), _leaf(ask.down, name, rest)
        if each is not None and each.shape[1:] == sent.shape[1:]:
            return each[place]
        if down is not None and down.shape == sent.shape[1:]:
            return down.expand_as(sent)
    if origin.groups is not None and where.group is not None:
        rows = _rows(ask, origin.groups, rest)
        if rows is not None and rows.shape[1:] == sent.shape[1:]:
            return rows[where.group]
    raise ConfigError(
        f"The ask '{ask.name}' declares an update that is measured from {origin}, but it gave clients nothing of shape "
        f"{tuple(sent.shape[1:])} there for {rest!r}. Name the field of down or each that the client started from."
    )


def public_references(shapes: Mapping[str, torch.Size], ask: Ask) -> dict[str, Tensor | None]:
    """The values from which updates are measured, if they are equal for all clients of a group, by path: one row per group,
    or one row for all (None: an update by itself). A reference that only the client's own row of `each` holds is refused."""
    found: dict[str, Tensor | None] = {}
    for path, shape in shapes.items():
        name, _, rest = path.partition("/")
        origin = ask.updates[name]
        found[path] = None if origin is None else _public(rest, shape, origin, ask)
    return found


def _public(rest: str, shape: torch.Size, origin: From, ask: Ask) -> Tensor:
    rows = None if origin.groups is None else _rows(ask, origin.groups, rest)
    if rows is not None and rows.shape[1:] == shape:
        return rows
    for name in origin.fields:
        down = _leaf(ask.down, name, rest)
        if down is not None and down.shape == shape:
            return down.unsqueeze(0)
    raise ConfigError(
        f"Privacy needs updates measured from something all clients of a group share; '{ask.name}' measures {rest!r} "
        "from a row that each client gets for itself. Send it in down, or name the server's row per group: "
        "updates={…: From(…, groups='models')}, known={'models': …}."
    )


def expected_shapes(ask: Ask, like: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    """The shapes of updates before any client has sent one: those of the values from which they are measured, of the ask's
    `known` under their own name, or of the model `like`."""
    shapes: dict[str, torch.Size] = {}
    for name, origin in ask.updates.items():
        if origin is None:
            alike = flatten(ask.known[name]) if name in ask.known else like
            shapes |= {_path(name, k): t.shape for k, t in alike.items()}
            continue
        if origin.groups is not None:
            rows = flatten(ask.down.get(origin.groups, ask.known.get(origin.groups, {})))
            shapes |= {_path(name, k): t.shape[1:] for k, t in rows.items()}
        for field in reversed(origin.fields):
            shapes |= {_path(name, k): t.shape for k, t in flatten(ask.down.get(field, {})).items()}
    return shapes


def _path(name: str, rest: str) -> str:
    return f"{name}/{rest}" if rest else name


def _rows(ask: Ask, name: str, rest: str) -> Tensor | None:
    """A tensor with one row per group."""
    rows = _leaf(ask.down, name, rest)
    return rows if rows is not None else _leaf(ask.known, name, rest)


def _leaf(tree: Tree, name: str, rest: str) -> Tensor | None:
    leaf: Tensor | None = flatten(tree.get(name, {})).get(rest)
    return leaf
