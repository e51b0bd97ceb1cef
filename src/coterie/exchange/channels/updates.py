"""What is a client's *update*? The part of a message that an attack, a clipper or a quantiser acts on.

A client sends a model or a gradient. A model says nothing by itself; the client's contribution is how far it moved it. So a
field of a reply is measured from the field of the same name in the ask: the client's own row of `each`, else `down`. Where
the ask gave several models to choose from, `models`, the field `model` is measured from the one of the client's group,
and the parameters all of them share from those in `shared`. A field the ask has no counterpart for (`grad`, …) is an
update itself.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from coterie.exchange.channels.base import Where
from coterie.exchange.messages import Ask, Ints
from coterie.tree import Tree, flatten


def references(send: Tree, clients: Ints, ask: Ask, where: Where) -> dict[str, Tensor]:
    """What every leaf of stacked messages is measured from, by path ("model/weight"); one row a client."""
    each, down = flatten(ask.each), flatten(ask.down)
    order = np.argsort(ask.clients, kind="stable")
    place = torch.from_numpy(order[np.searchsorted(ask.clients[order], clients)])
    found = {}
    for path, sent in flatten(send).items():
        name, slash, rest = path.partition("/")
        several, common, shape = f"{name}s{slash}{rest}", f"shared/{rest}", sent.shape[1:]
        if path in each and each[path].shape[1:] == shape:
            found[path] = each[path][place]
        elif path in down and down[path].shape == shape:
            found[path] = down[path].expand_as(sent)
        elif several in down and down[several].shape[1:] == shape and where.group is not None:
            found[path] = down[several][where.group]
        elif name == "model" and common in down and down[common].shape == shape:
            found[path] = down[common].expand_as(sent)
        else:
            found[path] = sent.new_zeros(()).expand_as(sent)
    return found
