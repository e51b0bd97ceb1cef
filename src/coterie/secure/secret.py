"""A site's secrets of one set-up, all derived from one random number that stays in its folder."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from coterie.secure import shamir
from coterie.secure.masks import Refused, agreed, checksum, derived, expanded, public_half
from coterie.secure.roster import Roster

MASKING, OWN = "masking", "own"  # of a slot: the key of masks shared with others, and the seed of the site's own mask
KINDS = (MASKING, OWN)
PAIR = len(KINDS) * shamir.SIZE  # bytes of the shares of one slot


def promise(secret: bytes) -> str:
    """What a site signs of the seed of its own mask, so that a false one is noticed."""
    return checksum(["promise", secret.hex()])


class Secrets:
    """``root``: 32 random bytes."""

    def __init__(self, root: bytes) -> None:
        self._root = root

    @cached_property
    def sealing(self) -> X25519PrivateKey:
        """The key with which boxes of shares are sealed."""
        return X25519PrivateKey.from_private_bytes(derived(self._root, "", "sealing"))

    def number(self, kind: str, slot: int) -> int:
        """A secret of a slot, as the number that is shared."""
        return int.from_bytes(derived(self._root, "", kind, slot)) % shamir.PRIME

    def text(self, kind: str, slot: int) -> bytes:
        return self.number(kind, slot).to_bytes(shamir.SIZE)

    def masking(self, slot: int) -> X25519PrivateKey:
        return X25519PrivateKey.from_private_bytes(self.text(MASKING, slot))

    def dealt(self, roster: Roster, threshold: int, members: Iterable[int]) -> dict[int, bytes]:
        """These members' shares of both secrets of all slots. The polynomials depend on the list of members."""
        parts = {member: bytearray() for member in members}
        for slot in range(roster.slots):
            for kind in KINDS:
                seed = derived(self._root, roster.digest, "coefficients", kind, slot)
                stream = expanded(seed, (threshold - 1) * shamir.SIZE // 8).tobytes()
                drawn = [stream[i : i + shamir.SIZE] for i in range(0, len(stream), shamir.SIZE)]
                polynomial = [int.from_bytes(part) % shamir.PRIME for part in drawn] + [self.number(kind, slot)]
                for member, part in parts.items():
                    part += shamir.value_at(polynomial, member).to_bytes(shamir.SIZE)
        return {member: bytes(part) for member, part in parts.items()}

    def sealed(self, roster: Roster, mine: int, other: int, content: bytes) -> bytes:
        """A box that only the other member can open."""
        return self._box(roster, mine, other, (mine, other)).encrypt(bytes(12), content, None)

    def opened(self, roster: Roster, mine: int, other: int, box: bytes) -> bytes:
        """What the other member put into a box for this one."""
        try:
            content = self._box(roster, mine, other, (other, mine)).decrypt(bytes(12), box, None)
        except InvalidTag:
            content = b""
        if len(content) != roster.slots * PAIR:
            raise Refused("A box of shares was not made for this list of members, or was changed on the way.")
        return content

    def _box(self, roster: Roster, mine: int, other: int, way: tuple[int, int]) -> ChaCha20Poly1305:
        """The cipher of one box: its key is used for this box alone, so its nonce may be zero."""
        secret = agreed(self.sealing, str(roster.bundles[other]["sealing"]))
        return ChaCha20Poly1305(derived(secret, roster.digest, "box", *way))

    def fits(self, roster: Roster, mine: int) -> bool:
        """Whether the list shows this site's own keys."""
        return bool(roster.bundles[mine]["sealing"] == public_half(self.sealing))
