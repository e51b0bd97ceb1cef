"""Secure sums below every additive ask: a site's share of a reply becomes integers, and the server learns their sum.

In a run with a privacy budget they are the integers of the lattice, with the site's part of the noise. Other sums,
weights, numbers of clients and diagnostics are rounded to multiples of 2⁻³². All groups are sent, so a site's
groups are hidden too. What the integers mean (`about`) binds the masks: function, round, groups, and every value that all
clients get. Sites that were sent different models therefore hide their numbers even from each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.base.disk import digest
from coterie.base.tree import Tree, flatten, tree_map, unflatten
from coterie.engines.base import Env
from coterie.engines.reduce import Share, assemble
from coterie.errors import ConfigError, EngineError
from coterie.exchange.messages import Ask, Ints, Reply
from coterie.privacy.mechanisms.lattice import ROOM
from coterie.secure.masks import canonical
from coterie.secure.server import Put, SecureServer, Sum
from coterie.secure.site import Integers

_BITS = 32  # after the point
_MOST_INFO = 1e6  # diagnostics that are larger are left out
_ASKS = 20  # bits for the asks of a round


def needs_sums(what: str) -> str:
    """Why something whose server sees single replies is refused."""
    return (
        f"Secure sums show the server sums only, and {what} shows it every client's reply. Use an algorithm whose asks are "
        "additive, such as FedAvg, IFCA, Ditto or FineTuned, or leave out [secure]."
    )


def additive(algorithm: Any) -> Any:
    """The form of an algorithm whose asks are all additive, or a refusal before anybody is asked."""
    if getattr(algorithm, "individual", False):
        raise ConfigError(needs_sums(type(algorithm).__name__))
    return algorithm.private() if hasattr(algorithm, "private") else algorithm


def require_additive(ask: Ask) -> None:
    """Refuse an ask that secure sums cannot carry."""
    if ask.reduce is None:
        raise ConfigError(needs_sums(f"the ask '{ask.name}'"))


def number(round: int, ask: int = 0) -> int:
    """Questions are numbered in the order in which they are asked, over restarts too."""
    return round << _ASKS | ask


def about(ask: Ask, env: Env) -> str:
    """A checksum of what all clients are asked."""
    plain = [getattr(ask.phase, "__qualname__", ask.name), type(ask.reduce).__name__, getattr(ask.reduce, "groups", 0)]
    updates = {k: None if f is None else [list(f.fields), f.groups] for k, f in ask.updates.items()}
    private: Any = env.private
    budget = () if private is None else (private.noise_multiplier, private.n_users, private.parts, private.privacy.clip)
    parts: list[Any] = [canonical([*plain, env.round, env.ask, ask.test, updates, list(ask.auxiliary), budget])]
    given = {"down": ask.down} | ({"known": ask.known} if env.private is not None else {})
    for name, value in sorted(flatten(given).items()):
        t = torch.as_tensor(value).detach().contiguous()
        content = t.reshape(-1).view(torch.uint8).numpy() if t.numel() else b""
        parts += [canonical([name, str(t.dtype), list(t.shape)]), content]
    return digest(parts)


def _fields(share: Share, private: bool) -> dict[str, Tensor]:
    """Everything in a share that is added up, by place."""
    if private:
        return dict(sorted(flatten({"sums": share["sums"]}).items()))
    info = {k: v if abs(v[0]) < _MOST_INFO else (0.0, 0) for k, v in share["info"].items()}
    told = {k: torch.tensor(v, dtype=torch.float64) for k, v in info.items()}
    whole = {"sums": share["sums"], "weights": share["weights"], "counts": share["counts"], "info": told}
    return dict(sorted(flatten(whole).items()))


def count(expected: Share, private: bool) -> int:
    """How many integers a share becomes."""
    return sum(t.numel() for t in _fields(expected, private).values())


def integers(share: Share, ask: Ask, env: Env, sites: int) -> Integers:
    """What a site's clients contribute to a sum, before it is masked."""
    parts = _fields(share, env.private is not None).values()
    fields = [t.reshape(-1).numpy() if t.dtype == torch.int64 else encoded(t.double().numpy(), sites) for t in parts]
    found = np.concatenate([np.zeros(0, np.int64), *fields])
    private: Any = env.private
    return found if private is None else private.part(ask, share.get("shapes"), found)


def nothing(expected: Share) -> Share:
    """The share of a site of which nobody is asked."""
    zeros = {k: tree_map(torch.zeros_like, expected[k]) for k in ("sums", "weights", "counts")}
    return expected | zeros | {"info": dict.fromkeys(expected["info"], (0.0, 0))}


def encoded(numbers: Any, sites: int) -> Integers:
    """Numbers as multiples of 2⁻³², so small that the sum over all sites fits."""
    x = np.rint(np.asarray(numbers, np.float64).reshape(-1) * 2.0**_BITS)
    if x.size and not float(np.abs(x).max()) < ROOM / sites:
        raise ConfigError(
            f"A number does not fit into a secure sum: over {sites} sites those of each site must stay below "
            f"{ROOM / sites / 2.0**_BITS:.3g}. Scale the features, or give the site fewer rows."
        )
    return x.astype(np.int64)


def decoded(total: Integers) -> Any:
    """The numbers of a sum."""
    return total.astype(np.float64) / 2.0**_BITS


def _share(total: Integers, expected: Share, private: bool) -> Share:
    """The sum as a share."""
    found, at = {}, 0
    for path, t in _fields(expected, private).items():
        part = total[at : at + t.numel()].copy()
        whole = t.dtype == torch.int64
        found[path] = torch.from_numpy(part if whole else decoded(part)).to(t.dtype).reshape(t.shape)
        at += t.numel()
    tree: Tree = unflatten(found)
    share: Share = {k: tree.get(k, expected[k]) for k in ("sums", "weights", "counts")}
    share["info"] = {k: (float(v[0]), round(float(v[1]))) for k, v in tree.get("info", {}).items()}
    return share | {k: expected[k] for k in ("bytes", "shapes") if k in expected}


@dataclass
class SecureSums:
    """Answers an additive ask with the sum over sites that a server's side of the protocol has opened."""

    server: SecureServer

    def reply(
        self, ask: Ask, env: Env, question: int, expected: Share, places: Mapping[str, Ints], put: Put
    ) -> tuple[Reply, Sum]:
        """`question` is the ask's number, `places` are the positions of each site's clients; `put` sends every site its
        question."""
        private: Any = env.private
        found = self.server.add(
            question, about(ask, env), count(expected, private is not None), put,
            lambda: None if private is None else private.book_ahead(ask, expected.get("shapes")),
            None if private is not None else self._with_clients(ask, places),
        )  # fmt: skip
        there = np.sort(np.concatenate([ask.clients[:0], *(places[site] for site in found.sites)]))
        there = there[np.isin(there, ask.clients)]
        share = _share(found.numbers, expected, private is not None) | {"booked": found.paid, "sites": len(found.sites)}
        nobody = private is None and not bool(share["counts"].any())
        share |= {"clients": there[:0] if nobody else there, "dropped": there if nobody else there[:0]}
        answered = np.isin(ask.clients, there)
        return replace(assemble(ask.only(answered), env, [share]), lost=ask.clients[~answered]), found

    def _with_clients(self, ask: Ask, places: Mapping[str, Ints]) -> list[str]:
        """The sites that take part in a sum without noise: those of which clients are asked. The zeros of others would hide
        nothing, so there must be as many as a sum needs."""
        found = [site for site, own in places.items() if np.isin(own, ask.clients).any()]
        if len(found) < (least := self.server.secure.threshold):
            raise EngineError(
                f"The clients of the ask '{ask.name}' are at {len(found)} sites, and without a privacy budget a secure sum "
                f"needs clients of {least} sites. Let more clients take part (cohort), or set [privacy]."
            )
        return found
