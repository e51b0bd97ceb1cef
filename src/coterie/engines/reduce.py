"""Replies are added up here, for every engine.

Sums are taken in float64, over clients in federation order within a chunk and over chunks in their order, so they do not
depend on the order of the cohort or the number of workers, and on the chunk size only through float64 rounding.

A client that sends NaN or infinity counts as lost. A client whose own state became NaN or infinite keeps its earlier state
and also counts as lost. The run has diverged only when no client's answer to a question is finite.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.base.tree import Tree, concat, finite_rows, leaves, n_bytes, take, tree_map
from coterie.engines.base import Env
from coterie.errors import ClientError, Diverged
from coterie.exchange.channels.base import Where
from coterie.exchange.messages import Ask, Ints, MeanBy, Reply

_IN_CACHE = 1 << 18  # numbers
Share = dict[str, Any]
"""The contribution of a chunk of clients to a reply."""


def group_sums(send: Tree, weight: Tensor, group: Tensor, groups: int) -> Share:
    """Weighted sums, total weights and numbers of clients of every group. `weight` is one number per client, or
    one per client and group; a client is counted in its `group` alone."""
    if len(group) and (int(group.min()) < 0 or int(group.max()) >= groups):
        wrong = int(group.min()) if int(group.min()) < 0 else int(group.max())
        raise ClientError(f"Up(group=…) must be in 0 … {groups - 1}, the groups of the ask's reduce; got {wrong}.")
    soft = weight.dim() > 1  # a client counts in every group
    present = [(int(g), (group == g).nonzero().squeeze(-1)) for g in torch.unique(group)] if not soft else []

    def add(t: Tensor) -> Tensor:
        flat = t.reshape(len(t), math.prod(t.shape[1:]))
        total = torch.zeros((groups, flat.shape[1]), dtype=torch.float64)
        few = max(_IN_CACHE // max(flat.shape[1], 1), 1)  # clients whose float64 copies stay in the cache
        if soft:
            for part, v in zip(torch.split(flat, few), torch.split(weight.double(), few), strict=True):
                total.addmm_(v.T, part.double())
        for g, rows in present:
            chosen, w = (flat, weight) if len(rows) == len(t) else (flat[rows], weight[rows])
            for part, v in zip(torch.split(chosen, few), torch.split(w.double(), few), strict=True):
                total[g].addmv_(part.double().T, v)
        return total.reshape(groups, *t.shape[1:])

    counts = torch.bincount(group, minlength=groups)
    return {"sums": tree_map(add, send), "weights": add(torch.ones_like(group)), "counts": counts}


def only(out: dict[str, Any], good: Tensor) -> dict[str, Any]:
    """The rows of some clients."""
    if bool(good.all()):
        return out
    rows = good.nonzero().squeeze(-1)
    kept: dict[str, Any] = tree_map(lambda t: t.index_select(0, rows), out)
    return kept


def keep_states(env: Env, out: dict[str, Any], clients: Ints) -> Tensor:
    """Store the new states that are finite; returns (clients,) whether each client's state is."""
    state = out.pop("state", None)
    if state is None or not any(True for _ in leaves(state)):
        return torch.ones(len(clients), dtype=torch.bool)
    good = finite_rows(state)
    if bool(good.any()):
        env.states.set(clients[good.numpy()], only(state, good))
    return good


def share(ask: Ask, env: Env, out: dict[str, Any], clients: Ints) -> Share:
    """A chunk's share of the reply, made where the chunk ran; client-side channels (attacks, …) act here."""
    size = n_bytes(out["send"]) // len(clients)
    good = keep_states(env, out, clients) & finite_rows({k: out[k] for k in ("send", "weight")})
    out, asked, clients = only(out, good), clients, clients[good.numpy()]
    if not env.whole and len(clients):
        where = _claimed(env, out, clients, ask)
        for channel in env.channels:
            out["send"] = channel.up(out["send"], clients, ask, where)
        good = finite_rows(out["send"] | {"": out["weight"]})  # an attack may have sent NaN
        out, clients = only(out, good), clients[good.numpy()]
    mine: Share = {
        "clients": clients,
        "dropped": asked[~np.isin(asked, clients)] if len(clients) < len(asked) else asked[:0],
        "info": {k: (float(t.nansum()), int((~t.isnan()).sum())) for k, t in out["info"].items()},
        "bytes": size,
    }
    if ask.reduce is not None and not env.whole:
        return mine | _sums(ask, env, out)
    return mine | {k: out[k] for k in ("send", "weight", "group")}


def _claimed(env: Env, rows: dict[str, Any], clients: Ints, ask: Ask) -> Where:
    """Where the messages are, after channels may have changed the groups that they are for."""
    for channel in env.channels:
        if hasattr(channel, "claim"):  # channels of users may be older
            rows["group"] = channel.claim(rows["group"], clients, ask, env.where)
    return replace(env.where, group=rows["group"])


def assemble(ask: Ask, env: Env, arriving: Iterable[Share]) -> Reply:
    """All chunks' shares as one reply."""
    shares = _added_up(arriving)
    if not shares:
        return _nothing(ask, ask.clients) if env.private is None else env.private.reply(ask, env, None, {})
    clients = np.concatenate([s["clients"] for s in shares])
    about: dict[str, Any] = {
        "info": _info(shares),
        "bytes_up": shares[0]["bytes"] * len(ask.clients),
        "bytes_down": n_bytes(ask.down) * len(ask.clients) + n_bytes(ask.each),
        "dropped": np.sort(np.concatenate([s["dropped"] for s in shares])),
    }
    if "sums" in shares[0]:
        return _additive(ask, env, shares[0], np.sort(clients), about)
    if not len(clients) and env.private is None:
        return _nothing(ask, clients, **about)
    order = torch.from_numpy(_as_asked(clients, ask.clients))
    clients = clients[order.numpy()]
    rows: dict[str, Any] = {"send": take(concat([s["send"] for s in shares]), order)}
    rows |= {k: torch.cat([s[k] for s in shares])[order] for k in ("weight", "group")}
    if env.whole:
        rows, clients, about["dropped"] = _through(ask, env, rows, clients, about["dropped"])
    if ask.reduce is None:
        if not len(clients):
            return _nothing(ask, clients, **about)
        return Reply(clients, rows["send"], rows["weight"], torch.ones(len(clients), dtype=torch.int64), **about)
    order = torch.from_numpy(np.argsort(clients, kind="stable"))
    return _additive(ask, env, _sums(ask, env, take(rows, order)), clients[order.numpy()], about)


def merged(arriving: Iterable[Share]) -> Share:
    """Several chunks' shares as one: sums are added up, rows are concatenated. `assemble` takes the result like any other
    share."""
    shares = _added_up(arriving)
    one = shares[0]
    for name in ("clients", "dropped"):
        one[name] = np.concatenate([s[name] for s in shares])
    one["info"] = _info(shares)
    if "send" in one:
        one["send"] = concat([s["send"] for s in shares])
        one |= {k: torch.cat([s[k] for s in shares]) for k in ("weight", "group")}
    return one


def _info(shares: list[Share]) -> dict[str, tuple[float, int]]:
    return {k: (sum(s["info"][k][0] for s in shares), sum(s["info"][k][1] for s in shares)) for k in shares[0]["info"]}


def _sums(ask: Ask, env: Env, rows: dict[str, Any]) -> Share:
    """Plain sums over groups, or the sums of a private run."""
    assert ask.reduce is not None
    if env.private is not None:
        return env.private.partial(ask, env, rows)
    if rows["weight"].shape[1:] != ((ask.reduce.groups,) if ask.reduce.soft else ()):
        need = f"{ask.reduce.groups} numbers, one per group" if ask.reduce.soft else "one number"
        raise ClientError(
            f"Up(weight=…) of '{ask.name}' must be {need}, as its reduce says; got the shape "
            f"{tuple(rows['weight'].shape[1:])}. A client counts in several groups with soft=True."
        )
    return group_sums(rows["send"], rows["weight"], rows["group"], ask.reduce.groups)


def _through(
    ask: Ask, env: Env, rows: dict[str, Any], clients: Ints, dropped: Ints
) -> tuple[dict[str, Any], Ints, Ints]:
    """Pass all messages through the channels that must see them at once, and drop those that are NaN or infinite
    afterwards."""
    where = _claimed(env, rows, clients, ask)
    for channel in env.channels:
        rows["send"] = channel.up(rows["send"], clients, ask, where)
    good = finite_rows(rows["send"] | {"": rows["weight"]})
    dropped = np.sort(np.concatenate([dropped, clients[~good.numpy()]]))
    return only(rows, good), clients[good.numpy()], dropped


def _nothing(ask: Ask, clients: Ints, **about: Any) -> Reply:
    """The reply when no client was asked, or when no answer is finite. In the second case the run has diverged, unless the
    ask is `optional`."""
    dropped: Ints = about.get("dropped", clients[:0])
    if len(dropped) and not ask.optional:
        raise Diverged(int(dropped.min()), ask.name)
    groups = 0 if ask.reduce is None else ask.reduce.groups
    return Reply(clients, {}, torch.zeros(groups), torch.zeros(groups, dtype=torch.int64), **about)


def _additive(ask: Ask, env: Env, added: Share, clients: Ints, about: dict[str, Any]) -> Reply:
    if env.private is not None:
        return env.private.reply(ask, env, added, about)
    if not len(clients):
        return _nothing(ask, clients, **about)
    dtype = next(leaves(env.initial)).dtype
    divisor = torch.where(added["weights"] > 0, added["weights"], 1.0) if isinstance(ask.reduce, MeanBy) else None

    def finish(t: Tensor) -> Tensor:
        return (t if divisor is None else t / divisor.reshape(-1, *[1] * (t.dim() - 1))).to(dtype)

    return Reply(clients, tree_map(finish, added["sums"]), added["weights"], added["counts"], **about)


def _added_up(arriving: Iterable[Share]) -> list[Share]:
    """The shares, in their order; sums are added to the first one's as they arrive, so that only one model is held."""
    shares: list[Share] = []
    for share in arriving:
        if shares and "sums" in share:
            for name in ("sums", "weights", "counts"):
                tree_map(lambda total, more: total.add_(more), shares[0][name], share.pop(name))
        shares.append(share)
    return shares


def _as_asked(clients: Ints, asked: Ints) -> Ints:
    """The order that puts `clients` in the order in which they were asked."""
    place = np.empty(int(asked.max()) + 1, np.int64)
    place[asked] = np.arange(len(asked))
    return np.argsort(place[clients], kind="stable")
