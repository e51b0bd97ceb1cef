"""The engine whose clients are elsewhere: asks become messages to sites, and their answers are added up in `reduce.py`.

An answer is accepted only if it has finite numbers and the names, types and shapes that the same client function gives here
on made-up rows. Any other answer is logged, and its clients are lost in that ask, like the clients of a site that does not
answer.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from coterie.base.tree import Tree, finite_rows, flatten, leaves, n_bytes
from coterie.data.federation import Federation
from coterie.engines.base import ClientStates, Env, Post
from coterie.engines.private import Releases
from coterie.engines.reduce import Share, assemble, only
from coterie.engines.secure import SecureSums, count, number, require_additive
from coterie.engines.trial import trial
from coterie.errors import ConfigError, EngineError
from coterie.exchange.messages import Ask, Ints, MeanBy, Reply
from coterie.flower import answers, heads, wire
from coterie.flower.questions import write_ask
from coterie.privacy.mechanisms.sums import GroupSums
from coterie.secure.server import Answer
from coterie.secure.settings import Secure

log = logging.getLogger("coterie.flower")
_SPARE = 1 << 20  # bytes of a message in addition to its tensors
_POSITION = 24  # bytes of a client's position in JSON
_ROUNDING = 1e-9  # relative, of norms in float64


class Interrupted(EngineError):
    """The network failed, not the run: it goes on after its last finished round when it is started again."""


@dataclass(frozen=True)
class Failure:
    """The reason why there is no answer."""

    reason: str


class Exchange(Protocol):
    """Sends every site its message and returns the answers; a site without an entry did not answer."""

    def __call__(self, messages: Mapping[str, bytes], soon: bool = False) -> Mapping[str, bytes | Failure]: ...


@dataclass
class SitesEngine:
    """`places` are the positions of every site's clients. `tags` name the last answer of each site that was received, and
    `base` the last answers before this round, to which sites return when a round is not finished. `number` grows with every
    message, also over restarts of the server: a site ignores a message that is older than one it already got."""

    evaluates: ClassVar[bool] = False  # the clients' rows are not here

    algorithm: Any
    exchange: Exchange
    places: dict[str, Ints]
    run_name: str
    base: dict[str, str | None] = field(default_factory=dict)
    number: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)
    attempt: str = field(default_factory=lambda: secrets.token_hex(4))
    sums: SecureSums | None = None  # the server sees sums over sites only
    trial: dict[str, Any] | None = None  # what is trained, in a study
    _tags: dict[str, str | None] = field(init=False, repr=False)
    _expected: dict[Any, Share] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self._tags = dict(self.base)

    @property
    def secure(self) -> Secure | None:
        return None if self.sums is None else self.sums.server.secure

    def run(self, ask: Ask, env: Env) -> Reply:
        if self.sums is not None:
            return self._summed(self.sums, ask, env)
        expected = self.expected(ask, env)
        asked = {site: np.flatnonzero(np.isin(ask.clients, own)) for site, own in self.places.items()}
        least = 2 if isinstance(env.private, Releases) and env.private.sampling == 1 else 1  # no sum of one client
        asked = {s: place for s, place in asked.items() if len(place) >= min(least, len(self.places[s])) > 0}
        self.count()
        messages = {site: self._message(ask, env, site, place) for site, place in asked.items()}
        got = self.exchange(messages) if messages else {}
        shares: dict[str, Share] = {}
        for site, place in asked.items():
            share = self._let_in(got.get(site, Failure("no answer in time")), ask, env, site, place, expected)
            if share is not None:
                shares[site] = share
        if not shares and len(asked) == len(self.places):
            raise Interrupted(f"No site answered '{ask.name}' in round {env.round + 1}: {self.events[-1]['why']}")
        if len(shares) < len(self.places) and not any(len(s["clients"]) for s in shares.values()):
            for site in shares:  # a run has diverged if all sites say so; otherwise their clients are lost
                self.note(env, site, ask.name, "no client's answer is a number")
            shares = {}
        found = [np.append(s["clients"], s["dropped"]) for s in shares.values()]
        there = np.concatenate([ask.clients[:0], *found])
        answered = np.isin(ask.clients, there)
        reply = assemble(ask.only(answered), env, list(shares.values()))
        return replace(reply, lost=ask.clients[~answered])

    def _summed(self, sums: SecureSums, ask: Ask, env: Env) -> Reply:
        """The same with secure sums: all sites are asked, also those of which no client takes part."""
        require_additive(ask)
        if not len(ask.clients) and env.private is None:
            return assemble(ask, env, ())
        expected, question = self.expected(ask, env), number(env.round, env.ask)
        length = count(expected, env.private is not None)

        def put(orders: dict[str, dict[str, Any]]) -> dict[str, Answer]:
            self.count()
            where = {site: np.flatnonzero(np.isin(ask.clients, self.places[site])) for site in orders}
            messages = {s: self._message(ask, env, s, place, orders[s]) for s, place in where.items()}
            got = self.exchange(messages, soon=True)
            return masked(got, messages, length, lambda s, why: self.note(env, s, ask.name, why))

        sums.server.forget(number(env.round))
        reply, found = sums.reply(ask, env, question, expected, self.places, put)
        self._tags |= found.kept
        return reply

    def map(
        self, function: Callable[..., Tree], clients: Ints, env: Env, *, test: bool = False, post: Post | None = None
    ) -> Tree:
        raise ConfigError("The clients' rows and models are at their sites; each site keeps the result of its clients.")

    def states(self, federation: Federation) -> ClientStates:
        return StatesElsewhere(len(federation), engine=self)

    def close(self) -> None:
        """This engine holds nothing that must be released."""

    def count(self) -> None:
        """The number of the next message."""
        self.number += 1

    def settle(self) -> None:
        """Keep the states of the finished round."""
        self.base = dict(self._tags)

    def forget(self) -> None:
        """Undo the round."""
        self._tags = dict(self.base)

    def tag(self, site: str) -> str | None:
        return self._tags.get(site)

    def note(self, env: Env | None, site: str, phase: str, why: str) -> None:
        """Log what went wrong with a site."""
        entry = {"round": 0 if env is None else env.round + 1, "phase": phase, "site": wire.one_line(site)}
        entry["why"] = wire.one_line(why)
        self.events.append(entry)
        log.warning("round %(round)s, %(phase)s: %(site)s: %(why)s", entry)

    # ---- inside ----------------------------------------------------------------------------------------------------------

    def _message(self, ask: Ask, env: Env, site: str, place: Ints, order: Any = None) -> bytes:
        keep = np.zeros(len(ask.clients), np.bool_)
        keep[place] = True
        head, tree = write_ask(self.algorithm, ask.only(keep), private=env.private is not None)
        head |= {"do": "ask", "run": self.run_name, "round": env.round, "ask": env.ask, "attempt": self.attempt}
        head |= {"have": self._tags.get(site), "base": self.base.get(site), "number": self.number, "secure": order}
        head["trial"] = self.trial
        if (private := env.private) is not None:
            told = ("noise_multiplier", "n_users", "sampling", "expected")
            head["private"] = {name: getattr(private, name) for name in told}
        return wire.pack(head, tree)

    def _let_in(
        self, answer: bytes | Failure, ask: Ask, env: Env, site: str, place: Ints, expected: Share
    ) -> Share | None:
        try:
            if isinstance(answer, Failure):
                raise wire.Malformed(answer.reason)
            rows = 1 if "sums" in expected else len(place)
            most = (
                _SPARE + _POSITION * len(place) + 2 * rows * n_bytes({k: v for k, v in expected.items() if _tensors(v)})
            )
            share, tag = checked(*wire.unpack(answer, most), ask, ask.clients[place], expected, env)
        except Exception as why:  # any error in an answer is its site's failure
            self.note(env, site, ask.name, str(why) or type(why).__name__)
            return None
        self._tags[site] = tag
        return share

    def expected(self, ask: Ask, env: Env) -> Share:
        """The share that one client would give here on made-up rows."""
        shapes = tuple((k, tuple(t.shape)) for k, t in flatten({"down": ask.down}).items())
        key = (wire.place_of(self.algorithm, ask.phase), ask.reduce, shapes)
        if key not in self._expected:
            self._expected[key] = trial(self.algorithm, ask, env)
        return self._expected[key]


def masked(
    got: Mapping[str, bytes | Failure], asked: Iterable[str], length: int, note: Callable[[str, str], None]
) -> dict[str, Answer]:
    """Sites' answers to a question for a secure sum; an unusable one is noted, and its site is lost in that sum."""
    found = {}
    for site in asked:
        try:
            head, tree = unpacked(got.get(site, Failure("no answer in time")), _SPARE + 8 * length)
            numbers, tag = tree.get("masked"), head.get("tag")
            if not isinstance(numbers, Tensor) or not isinstance(head.get("context"), str):
                raise wire.Malformed("An answer for a secure sum has masked numbers and their context.")
            if tag is not None and not heads.name(tag):
                raise wire.Malformed("The name of an answer has 1 to 64 letters, digits and hyphens.")
            found[site] = Answer(numbers.numpy(), head["context"], tag)
        except wire.Malformed as why:
            note(site, str(why))
    return found


def unpacked(answer: bytes | Failure, most: int) -> tuple[dict[str, Any], Tree]:
    """What a site answered, or the reason why it did not, as an error."""
    if isinstance(answer, Failure):
        raise wire.Malformed(answer.reason)
    return wire.unpack(answer, most)


@dataclass
class StatesElsewhere(ClientStates):
    """What the server knows of states that never leave their clients."""

    engine: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.nothing = True

    def commit(self) -> None:
        self.engine.settle()

    def rollback(self) -> None:
        self.engine.forget()


def checked(
    head: Mapping[str, Any], tree: Tree, ask: Ask, asked: Ints, expected: Share, env: Env
) -> tuple[Share, str | None]:
    """A site's answer as a share; an unusable answer is refused with one sentence."""
    clients, dropped = (_positions(head, name, asked) for name in ("clients", "dropped"))
    if np.isin(clients, dropped).any() or len(clients) + len(dropped) != len(asked):
        raise wire.Malformed("An answer names every client that was asked once.")
    share: Share = {"clients": clients, "dropped": dropped, "bytes": int(expected["bytes"]), "info": {}}
    for name in ("sums", "weights", "counts") if "sums" in expected else ("send", "weight", "group"):
        share[name] = _like(tree.get(name, {}), expected[name], name, None if "sums" in expected else len(clients))
    if "sums" in expected:
        if bool((share["weights"] < 0).any()) or bool((share["counts"] < 0).any()):
            raise wire.Malformed("Weights and numbers of clients are not negative.")
        if env.private is None and int(share["counts"].sum()) != len(clients):
            raise wire.Malformed("The numbers of clients do not add up to the clients that answered.")
        _require_numbers(share, ask, env)
        if isinstance(env.private, Releases) and ask.updates:
            _require_within(share, ask, env.private, len(clients))
    elif bool((share["weight"] < 0).any()):
        raise wire.Malformed("Weights are not negative.")
    if "shapes" in expected:
        share["shapes"] = expected["shapes"]
    share["info"] = _info({} if env.private is not None else head.get("info"), expected["info"], len(clients))
    if "send" in share:
        share |= _without_giants(share, len(env.federation))
    tag = head.get("tag")
    if tag is not None and not heads.name(tag):
        raise wire.Malformed("The name of an answer has 1 to 64 letters, digits and hyphens.")
    return share, tag


def _positions(head: Mapping[str, Any], name: str, asked: Ints) -> Ints:
    told = head.get(name)
    if not isinstance(told, list) or not all(type(i) is int for i in told) or len(set(told)) < len(told):
        raise wire.Malformed(f"{name} must be a list of different positions.")
    if not set(told) <= set(asked.tolist()):
        raise wire.Malformed(f"{name} names clients that were not asked here.")
    return np.array(told, np.int64)


def _like(given: Any, wanted: Any, where: str, rows: int | None) -> Any:
    """The expected tensors, in their order, all of them finite."""
    got = flatten(given, where)

    def one(like: Any, path: str) -> Any:
        if isinstance(like, dict):
            return {name: one(part, f"{path}/{name}") for name, part in like.items()}
        t = got.pop(path, None)
        if not isinstance(t, Tensor):
            raise wire.Malformed(f"{path!r} is missing.")
        shape = tuple(like.shape) if rows is None else (rows, *like.shape[1:])
        if tuple(t.shape) != shape or t.dtype != like.dtype:
            raise wire.Malformed(f"{path!r} must be {like.dtype} of shape {shape}; got {t.dtype} of {tuple(t.shape)}.")
        if not bool(finite_rows({"": t.reshape(1, -1)}).all()):
            raise wire.Malformed(f"{path!r} holds NaN or infinity.")
        return t

    found = one(wanted, where)
    if got:
        raise wire.Malformed(f"{next(iter(got))!r} was not asked for.")
    return found


def _require_numbers(share: Share, ask: Ask, env: Env) -> None:
    """Refuse sums that overflow when the server turns them into means or sums of the model's type."""
    dtype = next(leaves(env.initial)).dtype
    mean = isinstance(ask.reduce, MeanBy) and env.private is None
    for t in (share["weights"], *flatten(share["sums"]).values()):
        if t.is_floating_point() and float(t.abs().amax() if t.numel() else 0.0) > answers.MOST:
            raise wire.Malformed(
                f"Weights and sums are at most {answers.MOST:g}: with those of others they must stay numbers."
            )
    for path, t in flatten(share["sums"], "sums").items():
        if mean:  # groups without weight have no sum
            t = t / share["weights"].reshape(-1, *[1] * (t.dim() - 1)).where(t != 0, 1.0)
        if t.is_floating_point() and not bool(torch.isfinite(t.to(dtype)).all()):
            raise wire.Malformed(f"{path!r} holds numbers too large for {dtype}.")


def _require_within(share: Share, ask: Ask, private: Releases, n: int) -> None:
    """Refuse sums that so many clipped clients cannot have: each client adds 1 to one group's count and at most the clip.

    Norms are taken in float64, in which no whole number of 64 bits overflows."""
    assert ask.reduce is not None
    groups, tensors = ask.reduce.groups, list(flatten(share["sums"]).values())
    if private.exact:
        whole = tensors[0].double().reshape(groups, -1)
        mechanism = private.mechanism(groups, whole.shape[1] - (groups > 1))
        counts, sums = torch.full((1,), float(n), dtype=torch.float64), whole
        if isinstance(mechanism, GroupSums):
            counts, sums = whole[:, 0] / mechanism.weight, whole[:, 1:]
        radius = mechanism.lattice.radius
    else:
        sums = torch.cat([t.reshape(groups, -1) for t in tensors], 1).double()
        counts, radius = share["counts"].double(), private.privacy.clip
    if bool((counts < 0).any()) or bool((counts != counts.round()).any()) or float(counts.sum()) > n:
        raise wire.Malformed(f"The groups of a private answer count the {n} clients that answered, each at most once.")
    if bool((sums.norm(dim=1) > counts * radius * (1 + _ROUNDING)).any()):
        raise wire.Malformed(f"A private sum is longer than {n} clipped updates can be.")


def _without_giants(share: Share, n: int) -> Share:
    """Rows of clients with which the server can reckon: squares of all clients' numbers, added up, stay numbers. A client
    whose row is larger is dropped, as one whose row is no number."""
    good = torch.ones(len(share["clients"]), dtype=torch.bool)
    for t in (t for t in (share["weight"], *flatten(share["send"]).values()) if t.is_floating_point()):
        squares = t.double().reshape(len(t), math.prod(t.shape[1:])).norm(dim=1) ** 2
        good &= squares <= torch.finfo(t.dtype).max / (4 * n)  # 4: of the difference of two
    left = share["clients"][good.numpy()]
    dropped = np.append(share["dropped"], share["clients"][~good.numpy()])
    return only({k: share[k] for k in ("send", "weight", "group")}, good) | {"clients": left, "dropped": dropped}


def _info(told: Any, expected: Mapping[str, Any], most: int) -> dict[str, tuple[float, int]]:
    """The expected sums over clients, each with its number of clients."""
    if not isinstance(told, dict):
        raise wire.Malformed("info must be a dictionary.")
    return {k: answers.total(told[k], k, most) if k in told else (0.0, 0) for k in expected}


def _tensors(value: Any) -> bool:
    return isinstance(value, Tensor | dict) and all(isinstance(t, Tensor) for t in flatten(value).values())
