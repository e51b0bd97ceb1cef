"""A site's side: it signs keys, deals shares, masks its numbers, and helps to open a sum once.

What protects the site, whatever the server sends:

- A slot (the keys of one sum) is used once, for one question. This is written down before the answer leaves.
- Of one question, which the caller numbers, at most one sum is ever opened. A site that helped to open one refuses every
  other attempt; a site that answered a newer attempt does not open an older one. Any two sets of `least` sites have more
  sites in common than collude, so at least one honest site would have to do both.
- A site helps only if at least `least` members answered. Of each member it gives one of two shares: of the member's own
  mask if that member answered, of its key for shared masks if not. For the same reason no server gets enough of both.
"""

from __future__ import annotations

import base64
import binascii
import secrets
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.secure import shamir
from coterie.secure.identity import Identity
from coterie.secure.masks import VERSION, Masked, Refused, add_pairs, derived, expanded, public_half
from coterie.secure.roster import MOST_SLOTS, Roster, checked_roster, known_sites, places, signed, terms, token
from coterie.secure.secret import KINDS, MASKING, OWN, PAIR, Secrets, promise
from coterie.secure.settings import Secure
from coterie.secure.store import Store

Integers = NDArray[np.int64]
_LAST, _SETUP, _MEMBERS, _SHARES = "last.json", "setup-{}.json", "members-{}.json", "shares-{}.bin"
_MOST_SETUPS = 4


class SecureSite:
    """``run`` names the sums that belong together; ``store`` is this site's memory of them."""

    def __init__(self, identity: Identity, secure: Secure, run: str, store: Store | None = None) -> None:
        self.identity, self.secure, self.run = identity, secure, run
        self.store = store or Store()
        self.known = known_sites(secure)
        if identity.public not in self.known:
            raise Refused("The key of this site is not among those of the run. Add its public half to [secure] sites.")

    def answer(self, told: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to one of the protocol's own messages."""
        steps = {"keys": self._keys, "shares": self._shares, "open": self._open}
        step = told.get("step")
        if not isinstance(step, str) or step not in steps:
            raise Refused("Secure sums have no such step; server and sites need the same version.")
        with self.store.held():
            return steps[step](told)

    # ---- a set-up ----------------------------------------------------------------------------------------------------

    def _keys(self, told: Mapping[str, Any]) -> dict[str, Any]:
        """Fresh keys for a set-up, signed."""
        setup, slots = told.get("setup"), told.get("slots")
        if not token(setup) or type(slots) is not int or not 1 <= slots <= MOST_SLOTS:
            raise Refused(f"A set-up has a name, and keys for 1 to {MOST_SLOTS} sums.")
        kept = self.store.value(_SETUP.format(setup))
        if kept is None:
            others = self._others(str(setup))
            born = max((self._kept(name)["born"] for name in others), default=0) + 1
            for old in others[: max(len(others) + 1 - _MOST_SETUPS, 0)]:  # so that no server can fill the disk
                self._drop(old)
            kept = {"root": secrets.token_hex(32), "slots": slots, "born": born, "next": 0, "members": None}
            self.store.keep(_SETUP.format(setup), kept)
        if kept["slots"] != slots:
            raise Refused("This set-up was begun with another number of sums.")
        own = Secrets(bytes.fromhex(kept["root"]))
        bundle = {
            "version": VERSION, "run": self.run, "setup": setup, "key": self.identity.public,
            "terms": terms(self.secure), "sealing": public_half(own.sealing),
            "masking": [public_half(own.masking(slot)) for slot in range(slots)],
            "promises": [promise(own.text(OWN, slot)) for slot in range(slots)],
        }  # fmt: skip
        return {"bundle": bundle, "signature": signed(self.identity, "keys", bundle)}

    def _shares(self, told: Mapping[str, Any]) -> dict[str, Any]:
        """A sealed box of shares for every other member, and this site's signature under the list of members."""
        setup = told.get("setup")
        kept = self._kept(setup)
        roster = checked_roster(told.get("bundles"), self.secure, self.known, self.run, str(setup))
        own = Secrets(bytes.fromhex(kept["root"]))
        if self.identity.public not in roster.keys or not own.fits(roster, self._place(roster)):
            raise Refused("The list of members leaves this site out, or shows other keys of it than it has.")
        if kept["members"] not in (None, roster.digest):
            raise Refused("This site has dealt its shares of this set-up to another list of members.")
        if kept["members"] is None:
            self.store.keep(_MEMBERS.format(setup), roster.bundles)
            self.store.keep(_SETUP.format(setup), kept | {"members": roster.digest})
        me, members = self._place(roster), range(len(roster.keys))
        dealt = own.dealt(roster, self.secure.threshold, [i for i in members if i != me])
        boxes = {str(i): _text(own.sealed(roster, me, i, part)) for i, part in dealt.items()}
        return {"boxes": boxes, "signature": roster.signature(self.identity)}

    def _place(self, roster: Roster) -> int:
        return roster.keys.index(self.identity.public)

    def _kept(self, setup: Any) -> dict[str, Any]:
        found = self.store.value(_SETUP.format(setup)) if token(setup) else None
        if found is None:
            raise Refused("This site has no keys of this set-up; its folder was removed, or newer set-ups came since.")
        kept: dict[str, Any] = found
        return kept

    def _others(self, setup: str) -> list[str]:
        """The names of other set-ups, the oldest first."""
        head, tail = _SETUP.split("{}")
        found = (name[len(head) : -len(tail)] for name in self.store.names() if name.startswith(head))
        return sorted((name for name in found if name != setup), key=lambda name: int(self._kept(name)["born"]))

    def _drop(self, setup: str) -> None:
        for name in (_SETUP, _MEMBERS, _SHARES):
            self.store.drop(name.format(setup))

    def _received(self, setup: str, roster: Roster, own: Secrets, told: Any) -> bytes:
        """All members' shares for this site, in their order. They are kept when every member has signed the list."""
        if (kept := self.store.read(_SHARES.format(setup))) is not None:
            return kept
        me, members = self._place(roster), range(len(roster.keys))
        if not isinstance(told, dict) or not all(isinstance(told.get(k), dict) for k in ("boxes", "signatures")):
            raise Refused("This site has not got the others' shares of this set-up.")
        for i in members:
            if i != me and not roster.signed_by(i, told["signatures"].get(str(i))):
                raise Refused(f"{self.known[roster.keys[i]]} has not signed this list of members.")
        found = own.dealt(roster, self.secure.threshold, [me])
        found |= {i: own.opened(roster, me, i, _bytes(told["boxes"], i)) for i in members if i != me}
        shares = b"".join(found[i] for i in members)
        self.store.write(_SHARES.format(setup), shares)
        return shares

    # ---- a sum -------------------------------------------------------------------------------------------------------

    def admit(self, order: Mapping[str, Any], ask: int) -> None:
        """Refuse, before any work, a question that this site must not answer. ``ask`` numbers questions; it grows."""
        with self.store.held():
            self._admitted(order, ask)

    def _admitted(self, order: Mapping[str, Any], ask: int) -> tuple[dict[str, Any], Roster, list[int]]:
        if not isinstance(order, dict) or type(ask) is not int or ask < 0:
            raise Refused("A question for a secure sum has an order and a number.")
        setup, slot = order.get("setup"), order.get("slot")
        kept = self._kept(setup)
        if kept["members"] is None:
            raise Refused("This site has not seen the members of this set-up.")
        roster = Roster(tuple(self.store.value(_MEMBERS.format(setup))), kept["members"])
        if type(slot) is not int or not kept["next"] <= slot < roster.slots:
            raise Refused(
                "The keys of a sum are used once; the server asks to use some again, or there are no such keys."
            )
        members = places(order.get("members"), range(len(roster.keys)))
        if len(members) < self.secure.threshold or self._place(roster) not in members:
            raise Refused(f"A sum has at least {self.secure.threshold} members, this site among them.")
        last = self.store.value(_LAST)
        if last is not None and (ask < last["ask"] or (ask == last["ask"] and last["opened"] is not None)):
            raise Refused("This site has helped to open the sum of this question, or answered a later one.")
        self._received(str(setup), roster, Secrets(bytes.fromhex(kept["root"])), order.get("dealt"))
        return kept, roster, members

    def mask(self, order: Mapping[str, Any], ask: int, about: str, numbers: Integers) -> dict[str, Any]:
        """Integers hidden behind masks: {"masked": int64 numbers, one more than given, "context": a checksum}.

        ``about`` says what the numbers mean. It must be equal at all sites, or the masks do not cancel."""
        with self.store.held():
            kept, roster, members = self._admitted(order, ask)
            setup, slot, me = str(order["setup"]), int(order["slot"]), self._place(roster)
            bound = roster.context(self.run, slot, members, ask, about, len(numbers))
            self.store.keep(_SETUP.format(setup), kept | {"next": slot + 1})
            last = {"ask": ask, "setup": setup, "slot": slot, "members": members, "opened": None}
            self.store.keep(_LAST, last)
            for old in self._others(setup):
                self._drop(old)
        own = Secrets(bytes.fromhex(kept["root"]))
        total: Masked = expanded(derived(own.text(OWN, slot), bound, "own"), len(numbers) + 1)
        total += np.append(numbers, 1).astype(np.int64).view(np.uint64)  # the last number counts sites
        shown = roster.masking(slot)
        add_pairs(total, own.masking(slot), me, {i: shown[i] for i in members if i != me}, bound)
        return {"masked": total.view(np.int64), "context": bound}

    def _open(self, told: Mapping[str, Any]) -> dict[str, Any]:
        """One share per member: of its own mask if it answered, of its key for shared masks if it did not."""
        last = self.store.value(_LAST)
        if last is None or (told.get("setup"), told.get("slot")) != (last["setup"], last["slot"]):
            raise Refused("This site helps to open the sum that it answered last, and no other.")
        answered = places(told.get("answered"), last["members"])
        if len(answered) < self.secure.threshold:
            raise Refused(f"A sum of {len(answered)} sites is not opened; it needs {self.secure.threshold}.")
        if last["opened"] not in (None, answered):
            raise Refused("This site has helped to open this sum over other sites; it is opened once.")
        shares = self.store.read(_SHARES.format(last["setup"]))
        if shares is None:
            raise Refused("This site has lost the others' shares of this set-up.")
        if last["opened"] is None:
            self.store.keep(_LAST, last | {"opened": answered})
        setup, slot, kinds = last["setup"], last["slot"], {True: OWN, False: MASKING}
        found = {i: _share(shares, i, self._kept(setup)["slots"], slot, kinds[i in answered]) for i in last["members"]}
        return {"shares": {str(i): share.hex() for i, share in found.items()}}


def _share(shares: bytes, member: int, slots: int, slot: int, kind: str) -> bytes:
    """One share out of those of all members, slots and kinds."""
    begin = (member * slots + slot) * PAIR + KINDS.index(kind) * shamir.SIZE
    return shares[begin : begin + shamir.SIZE]


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _bytes(boxes: Mapping[str, Any], i: int) -> bytes:
    try:
        return base64.b64decode(boxes[str(i)], validate=True)
    except (KeyError, TypeError, ValueError, binascii.Error):
        raise Refused("A box of shares is missing, or is no box.") from None
