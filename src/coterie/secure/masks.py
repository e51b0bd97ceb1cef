"""Masks: a seed becomes as many numbers modulo 2⁶⁴ as a sum has, with ChaCha20 (RFC 8439).

Seeds come from HKDF-SHA256 (RFC 5869) over a secret that two sites share (X25519, RFC 7748), or one site alone has. What
the seed is for is part of its derivation, so no mask is ever used for two purposes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from coterie.errors import ClientError

VERSION = 1
Masked = NDArray[np.uint64]
_LABEL = f"coterie secure sums {VERSION}".encode()


class Refused(ClientError):
    """A message does not follow the protocol; the sentence says how."""


def canonical(value: Any) -> bytes:
    """Plain values as the bytes that are hashed and signed: one text for one value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def checksum(value: Any) -> str:
    """SHA-256 of plain values."""
    return hashlib.sha256(_LABEL + canonical(value)).hexdigest()


def derived(secret: bytes, context: str, *purpose: int | str) -> bytes:
    """A seed of 32 bytes for one purpose in one context."""
    return HKDF(SHA256(), 32, context.encode(), _LABEL + canonical(purpose)).derive(secret)


def expanded(seed: bytes, count: int) -> Masked:
    """The first ``count`` numbers of a seed's stream."""
    numbers = np.zeros(count, "<u8")
    if count:
        block = numbers.view(np.uint8).data
        Cipher(ChaCha20(seed, bytes(16)), None).encryptor().update_into(block, block)
    return numbers


def agreed(private: X25519PrivateKey, public: str) -> bytes:
    """The secret that two key pairs share; ``public`` in hexadecimal digits."""
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(public)))
    except ValueError:  # a point of low order, with which everybody would share the same secret
        raise Refused("A member signed a public key that is no key, so no sum is possible with it.") from None


def public_half(private: X25519PrivateKey) -> str:
    """The public key in hexadecimal digits."""
    return private.public_key().public_bytes_raw().hex()


def add_pairs(total: Masked, private: X25519PrivateKey, mine: int, others: Mapping[int, str], context: str) -> None:
    """Add the masks that one member shares with others to ``total``: of two members the lower adds what the higher
    subtracts, so they cancel in a sum of both."""
    for other, public in others.items():
        mask = expanded(derived(agreed(private, public), context, "pair"), len(total))
        change = np.add if mine < other else np.subtract
        change(total, mask, out=total)
