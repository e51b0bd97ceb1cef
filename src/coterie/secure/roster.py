"""Who takes part in the next sums, with which keys: bundles that sites sign, and the list of all of them, signed by all.

A bundle holds a site's fresh public keys of one set-up: one for sealing shares, and one for masks per sum. A list is worth
nothing until each of its members has signed it. So a server can neither replace a key, nor use an old bundle of a site that
is not there, nor show two sites two lists.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from coterie.errors import ConfigError
from coterie.secure.identity import Identity, name_of, public_key, verified
from coterie.secure.masks import VERSION, Refused, canonical, checksum
from coterie.secure.settings import Secure

MOST_SLOTS = 256
_HEX = re.compile(r"[0-9a-f]{64}", re.ASCII)
_SIGNATURE = re.compile(r"[0-9a-f]{1,512}", re.ASCII)
_TOKEN = re.compile(r"[A-Za-z0-9-]{1,64}", re.ASCII)
_FIELDS = {"version", "run", "setup", "key", "terms", "sealing", "masking", "promises"}


def known_sites(secure: Secure) -> dict[str, str]:
    """The names of the sites by public key, in the order of the settings."""
    if isinstance(secure.sites, int):
        raise ConfigError(
            "Sites on other machines are known by their public keys; got a number of sites. Write [secure] sites as a list "
            "of the lines of their .pub files."
        )
    found: dict[str, str] = {}
    for line in secure.sites:
        key, name, place = public_key(line), name_of(line), f"site {len(found) + 1}"
        if key in found:
            raise ConfigError(f"Every site has a key of its own; that of {found[key]!r} comes twice. Remove one line.")
        found[key] = f"{name} ({place})" if name in found.values() else name or place  # ssh-keygen names all alike
    return found


def terms(secure: Secure) -> list[Any]:
    """The settings on which all sites must agree."""
    return [secure.count, secure.colluding, secure.threshold, secure.noise]


def token(told: Any) -> bool:
    """Whether the value may name a run or a set-up."""
    return isinstance(told, str) and _TOKEN.fullmatch(told) is not None


def signed(identity: Identity, purpose: str, value: Any) -> str:
    return identity.sign(purpose, canonical(value)).hex()


def _verified(key: str, purpose: str, value: Any, signature: Any) -> bool:
    if not isinstance(signature, str) or not _SIGNATURE.fullmatch(signature) or len(signature) % 2:
        return False
    return verified(key, purpose, canonical(value), bytes.fromhex(signature))


@dataclass(frozen=True)
class Roster:
    """The members of a set-up in the order of their keys; a member's place is its number in everything that follows."""

    bundles: tuple[Mapping[str, Any], ...]
    digest: str

    @classmethod
    def of(cls, bundles: Sequence[Mapping[str, Any]]) -> Roster:
        return cls(tuple(bundles), checksum([dict(bundle) for bundle in bundles]))

    @cached_property
    def keys(self) -> list[str]:
        return [str(bundle["key"]) for bundle in self.bundles]

    def masking(self, slot: int) -> dict[int, str]:
        """The public keys for the masks of one sum."""
        return {i: str(bundle["masking"][slot]) for i, bundle in enumerate(self.bundles)}

    @property
    def slots(self) -> int:
        return len(self.bundles[0]["masking"])

    def context(self, run: str, slot: int, members: Sequence[int], ask: int, about: str, count: int) -> str:
        """What every mask of a sum is bound to; the digest holds the set-up."""
        return checksum([run, self.digest, slot, list(members), ask, about, count])

    def signature(self, identity: Identity) -> str:
        return signed(identity, "members", self.digest)

    def signed_by(self, member: int, signature: Any) -> bool:
        return _verified(self.keys[member], "members", self.digest, signature)


def checked_roster(told: Any, secure: Secure, known: Mapping[str, str], run: str, setup: str) -> Roster:
    """The list of signed bundles that a server showed, or a refusal."""
    if not isinstance(told, list) or not secure.threshold <= len(told) <= secure.count:
        many = len(told) if isinstance(told, list) else "no list"
        raise Refused(f"A sum has {secure.threshold} to {secure.count} sites; the server's list has {many}.")
    bundles = [checked_bundle(one, secure, known, run, setup) for one in told]
    keys = [bundle["key"] for bundle in bundles]
    if keys != sorted(set(keys)):
        raise Refused("The list of members names a site twice, or is not in order.")
    if len({len(bundle["masking"]) for bundle in bundles}) > 1:
        raise Refused("The members have prepared different numbers of sums.")
    return Roster.of(bundles)


def checked_bundle(told: Any, secure: Secure, known: Mapping[str, str], run: str, setup: str) -> dict[str, Any]:
    """A site's public keys, if that site has signed them for this set-up."""
    bundle = told.get("bundle") if isinstance(told, dict) else None
    if not isinstance(bundle, dict) or set(bundle) != _FIELDS:
        raise Refused("A bundle of public keys lacks a field, or has one of another version.")
    key = bundle["key"]
    if not isinstance(key, str) or key not in known:
        raise Refused("The list of members has a key that is not among the run's sites.")
    name = known[key]
    if bundle["version"] != VERSION:
        raise Refused(f"{name} speaks version {bundle['version']!r} of secure sums; here it is {VERSION}.")
    if bundle["terms"] != terms(secure):
        raise Refused(
            f"{name} has another number of sites, of colluding or of the least sites, or other noise; give all one file."
        )
    if (bundle["run"], bundle["setup"]) != (run, setup):
        raise Refused(f"The keys of {name} are those of another run or set-up.")
    masking, promises = bundle["masking"], bundle["promises"]
    if not (_keys(masking) and _keys(promises) and len(masking) == len(promises) and _keys([bundle["sealing"]])):
        raise Refused(f"The keys of {name} are not keys.")
    if not _verified(key, "keys", bundle, told.get("signature")):
        raise Refused(f"The keys of {name} do not carry its signature.")
    return bundle


def _keys(told: Any) -> bool:
    return (
        isinstance(told, list)
        and 0 < len(told) <= MOST_SLOTS
        and all(isinstance(key, str) and _HEX.fullmatch(key) for key in told)
    )


def places(told: Any, among: Sequence[int]) -> list[int]:
    """Places of members, in order and each once."""
    if not isinstance(told, list) or not all(type(i) is int for i in told) or told != sorted(set(told) & set(among)):
        raise Refused("Members are named by their places, in order and each once; the server names others.")
    return told
