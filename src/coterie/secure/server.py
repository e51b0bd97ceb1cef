"""The server's side: it collects keys and masked numbers, and learns nothing but sums of at least `least` sites.

    secure = SecureServer(settings, run, {"site 1": KEY, …}, tell, store)
    sum_of_all = secure.add(number, about, count, put)

`put(orders)` is the caller's: it sends every site its question with the order, and returns what the sites made of
`SecureSite.mask`. `tell(messages)` carries the protocol's own messages. A server that is started again goes on with the
sum that it was opening, and does not ask again for sums that were opened since `forget`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from coterie.errors import EngineError
from coterie.secure import shamir
from coterie.secure.masks import Masked, Refused, add_pairs, derived, expanded, public_half
from coterie.secure.roster import Roster, checked_bundle, checked_roster, known_sites
from coterie.secure.secret import promise
from coterie.secure.settings import Secure
from coterie.secure.site import Integers
from coterie.secure.store import Store

_SUM, _TOTAL = "sum-{}.json", "total-{}.npy"
SLOTS = 64
Tell = Callable[[Mapping[str, dict[str, Any]]], Mapping[str, dict[str, Any] | str]]
"""Sends sites messages of the protocol; answers are dictionaries, or sentences that say why there is no answer."""


@dataclass(frozen=True)
class Answer:
    """A site's masked numbers, their context, and whatever else the caller wants to keep of the answer (plain values)."""

    masked: Integers
    context: str
    kept: Any = None


Put = Callable[[dict[str, dict[str, Any]]], Mapping[str, Answer]]


@dataclass(frozen=True)
class Sum:
    """An opened sum. ``kept`` is what the caller kept of the sites in it, ``paid`` what it kept just before opening."""

    numbers: Integers
    kept: dict[str, Any]
    paid: Any = None

    @property
    def sites(self) -> tuple[str, ...]:
        return tuple(self.kept)


@dataclass
class SecureServer:
    """``sites``: the caller's name of every site, and its public key. ``present`` returns the names of those that can be
    reached now. ``note`` receives what went wrong with a site. A site that failed takes part again with new keys: for
    the next sum, and if it fails again after 2, 4, 8, … sums."""

    secure: Secure
    run: str
    sites: Mapping[str, str]
    tell: Tell
    store: Store = field(default_factory=Store)
    present: Callable[[], Iterable[str]] | None = None
    note: Callable[[str, str], None] = lambda site, why: None
    slots: int = SLOTS
    _now: _SetUp | None = field(default=None, init=False, repr=False)
    _sums: int = field(default=0, init=False, repr=False)
    _failed: dict[str, tuple[int, int]] = field(
        default_factory=dict, init=False, repr=False
    )  # how often, until which sum

    def __post_init__(self) -> None:
        self.known = known_sites(self.secure)
        if not set(self.sites.values()) <= set(self.known) or len(set(self.sites.values())) < len(self.sites):
            raise Refused(
                "Every site has a key of its own among those of [secure] sites; two have the same, or others."
            )

    def add(
        self, ask: int, about: str, count: int, put: Put, before: Callable[[], Any] = lambda: None,
        among: Collection[str] | None = None,
    ) -> Sum:  # fmt: skip
        """The sum of what all sites, or those ``among`` them, answer to question number ``ask``: ``count`` integers that
        mean ``about``.

        ``before`` is called once, when enough sites have answered and before their sum is opened; what it returns
        (plain values) comes back as ``paid``."""
        found = self.store.value(_SUM.format(ask))
        if found is None:
            found = self._collected(ask, about, count, put, before, among)
        if not found["opened"]:
            found = self._opened(ask, found)
        return Sum(self._total(ask).view(np.int64)[:-1], found["kept"], found["paid"])

    def forget(self, before: int) -> None:
        """Drop what is kept of the questions below a number."""
        for name in self.store.names():
            kind, _, number = name.partition(".")[0].partition("-")
            if kind in ("sum", "total") and int(number) < before:
                self.store.drop(name)

    # ---- a set-up ----------------------------------------------------------------------------------------------------

    def _ready(self) -> _SetUp:
        """The keys for the next sum. They are made anew when they are used up, and when a site comes (back)."""
        here = set(self.sites) if self.present is None else set(self.present())
        waiting = {name for name, (_, until) in self._failed.items() if until > self._sums}
        there = set() if self._now is None else set(self._now.names) - set(self._failed)
        if self._now is None or self._now.next >= self.slots or here - there - waiting:
            self._now = self._set_up(here)
            for name in here - set(self._now.names):
                self._failure(name)
        return self._now

    def _failure(self, name: str) -> None:
        times, until = self._failed.get(name, (0, 0))
        if until <= self._sums:
            self._failed[name] = times + 1, self._sums + min(2**times, self.slots)

    def _set_up(self, here: set[str]) -> _SetUp:
        """Keys and shares of all who answer both questions. Those who answer the second one sign the list of members, so
        the list has to be made again if one is missing."""
        while True:
            setup = secrets.token_hex(8)
            asked = {name: {"step": "keys", "setup": setup, "slots": self.slots} for name in sorted(here)}
            told = self._told(asked, partial(self._bundle, setup))
            listed = sorted(told.values(), key=lambda one: str(one["bundle"]["key"]))
            roster = checked_roster(listed, self.secure, self.known, self.run, setup)
            made = _SetUp(setup, roster, tuple(self._name(key) for key in roster.keys))
            asked = {name: {"step": "shares", "setup": setup, "bundles": listed} for name in made.names}
            dealt = self._told(asked, made.checked)
            if len(dealt) == len(told):
                made.deal(dealt)
                return made
            here = set(dealt)

    def _told(self, asked: Mapping[str, dict[str, Any]], check: Callable[[str, Any], Any]) -> dict[str, Any]:
        """The checked answers to messages of the protocol; too few end the set-up."""
        found, got = {}, self.tell(asked)
        for name in asked:
            try:
                found[name] = check(name, got.get(name, "no answer in time"))
            except Refused as why:
                self.note(name, str(why))
        self._require(len(found), "took part in the agreement on keys")
        return found

    def _require(self, count: int, what: str) -> None:
        if count < self.secure.threshold:
            raise EngineError(
                f"{count} of {self.secure.count} sites {what}, and a secure sum needs {self.secure.threshold}. Start again "
                "when more are there."
            )

    def _bundle(self, setup: str, name: str, answer: Any) -> dict[str, Any]:
        if isinstance(answer, str):
            raise Refused(answer)
        bundle = checked_bundle(answer, self.secure, self.known, self.run, setup)
        if bundle["key"] != self.sites[name] or len(bundle["masking"]) != self.slots:
            raise Refused(f"{name} answered with keys of another site, or for another number of sums.")
        return {"bundle": bundle, "signature": answer["signature"]}

    def _name(self, key: str) -> str:
        return next(name for name, own in self.sites.items() if own == key)

    # ---- a sum -------------------------------------------------------------------------------------------------------

    def _collected(
        self, ask: int, about: str, count: int, put: Put, before: Callable[[], Any], among: Collection[str] | None
    ) -> dict[str, Any]:
        """Ask, add up what came, and write it down before any site is asked to open it."""
        now = self._ready()
        members = {name: i for i, name in enumerate(now.names) if among is None or name in among}
        self._require(len(members), "are there for this question")
        slot, everyone = now.taken(), list(members.values())
        bound = now.roster.context(self.run, slot, everyone, ask, about, count)
        answers = put({name: now.order(name, slot, everyone) for name in members})
        total, kept = np.zeros(count + 1, np.uint64), {}
        for name in members:
            answer = answers.get(name)
            if answer is not None and _fits(answer, count) and answer.context == bound:
                total += answer.masked.view(np.uint64)
                kept[name] = answer.kept
                now.received.add(name)
                self._failed.pop(name, None)
                continue
            self._failure(name)
            if answer is not None:
                self.note(name, "it masked numbers for another question: is its version or its file another one?")
        self._sums += 1
        self._require(len(kept), "answered")
        self._write(ask, total)
        found = {
            "setup": now.setup, "slot": slot, "bundles": list(now.roster.bundles), "members": everyone, "context": bound,
            "answered": [i for i in everyone if now.names[i] in kept], "kept": kept, "paid": before(), "opened": False,
        }  # fmt: skip
        self.store.keep(_SUM.format(ask), found)
        return found

    def _opened(self, ask: int, found: dict[str, Any]) -> dict[str, Any]:
        """Remove the masks with the shares of those who answered."""
        roster, answered = Roster.of(found["bundles"]), set(found["answered"])
        message = {"step": "open", "setup": found["setup"], "slot": found["slot"], "answered": found["answered"]}
        names = {self._name(roster.keys[i]): i for i in found["answered"]}
        got = self.tell(dict.fromkeys(names, message))
        shares: dict[int, dict[int, int]] = {}
        for name, i in names.items():
            try:
                shares[i] = _shares(got.get(name, "no answer in time"), found["members"])
            except Refused as why:
                self.note(name, str(why))
        self._require(len(shares), "helped to open a sum")
        total = self._total(ask)
        for member, secret in self._secrets(shares, roster, found).items():
            if member in answered:
                total -= expanded(derived(secret, found["context"], "own"), len(total))
            else:
                shown = roster.masking(found["slot"])
                private = X25519PrivateKey.from_private_bytes(secret)
                add_pairs(total, private, member, {i: shown[i] for i in answered}, found["context"])
        if int(total[-1]) != len(answered):
            raise EngineError(
                "The masks of a secure sum do not cancel, so a site has used other keys than it signed. The sum is of no "
                "use; start a new run, without that site if you know which it is."
            )
        self._write(ask, total)
        found |= {"opened": True, "bundles": None}
        self.store.keep(_SUM.format(ask), found)
        return found

    def _secrets(
        self, shares: Mapping[int, Mapping[int, int]], roster: Roster, found: Mapping[str, Any]
    ) -> dict[int, bytes]:
        """Every member's secret that the shares give, checked against what that member signed. With more shares than are
        needed, one site that sends false shares is found."""
        for liar in (None, *shares):
            chosen = [i for i in shares if i != liar][: self.secure.threshold]
            if len(chosen) < self.secure.threshold:
                continue
            weight = shamir.weights(chosen)
            secret = {
                m: shamir.joined({i: shares[i][m] for i in chosen}, weight).to_bytes(shamir.SIZE)
                for m in found["members"]
            }
            if all(_signed(roster, found, m, text) for m, text in secret.items()):
                return secret
        raise EngineError(
            "The shares that sites sent do not fit what was signed, so at least one site sends false ones. The sum stays "
            "closed; it can be opened when more sites help."
        )

    def _total(self, ask: int) -> Masked:
        content = self.store.read(_TOTAL.format(ask))
        return np.frombuffer(content or b"", "<u8").copy()

    def _write(self, ask: int, total: Masked) -> None:
        self.store.write(_TOTAL.format(ask), total.tobytes())


@dataclass
class _SetUp:
    """The members of the next sums, and what each of them has yet to be told of the others."""

    setup: str
    roster: Roster
    names: tuple[str, ...]  # in the order of the list
    next: int = 0
    received: set[str] = field(default_factory=set)  # who has got the shares
    signatures: dict[str, str] = field(default_factory=dict)
    boxes: dict[str, dict[str, str]] = field(default_factory=dict)  # by receiver and sender

    def taken(self) -> int:
        """The keys of the next sum, which are used once."""
        self.next += 1
        return self.next - 1

    def checked(self, name: str, answer: Any) -> dict[str, Any]:
        """A member's boxes for the others, and its signature under the list."""
        me = self.names.index(name)
        others = {str(i) for i in range(len(self.names)) if i != me}
        if isinstance(answer, str):
            raise Refused(answer)
        if not self.roster.signed_by(me, answer.get("signature")):
            raise Refused("It did not sign the list of members.")
        boxes = answer.get("boxes")
        if not isinstance(boxes, dict) or set(boxes) != others or not all(isinstance(b, str) for b in boxes.values()):
            raise Refused("It did not deal shares to all other members.")
        return {"signature": answer["signature"], "boxes": boxes}

    def deal(self, dealt: Mapping[str, dict[str, Any]]) -> None:
        """Sort boxes by receiver."""
        for i, name in enumerate(self.names):
            self.signatures[str(i)] = dealt[name]["signature"]
            self.boxes[name] = {str(j): dealt[n]["boxes"][str(i)] for j, n in enumerate(self.names) if n != name}

    def order(self, name: str, slot: int, members: list[int]) -> dict[str, Any]:
        """What a site needs to mask its numbers; the others' shares until it has them."""
        dealt = None if name in self.received else {"signatures": self.signatures, "boxes": self.boxes[name]}
        return {"setup": self.setup, "slot": slot, "members": members, "dealt": dealt}


def _fits(answer: Answer, count: int) -> bool:
    return (
        isinstance(answer.masked, np.ndarray)
        and answer.masked.dtype == np.int64
        and answer.masked.shape == (count + 1,)
    )


def _shares(answer: Any, members: list[int]) -> dict[int, int]:
    """One share per member."""
    if isinstance(answer, str):
        raise Refused(answer)
    told = answer.get("shares")
    if not isinstance(told, dict) or set(told) != {str(i) for i in members}:
        raise Refused("It did not send one share per member.")
    try:
        return {int(i): int.from_bytes(bytes.fromhex(share)) for i, share in told.items()}
    except (TypeError, ValueError):
        raise Refused("It sent shares that are no numbers.") from None


def _signed(roster: Roster, found: Mapping[str, Any], member: int, secret: bytes) -> bool:
    """Whether a secret is the one of which a member has signed the public half, or the promise."""
    bundle, slot = roster.bundles[member], found["slot"]
    if member in found["answered"]:
        return bool(bundle["promises"][slot] == promise(secret))
    return bool(bundle["masking"][slot] == public_half(X25519PrivateKey.from_private_bytes(secret)))
