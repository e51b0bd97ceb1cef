"""Who a site is: an OpenSSH key pair, which signs what it sends to other sites through the server.

The public half is one line, as in a ``.pub`` file: ``ssh-ed25519 AAAA… name`` or ``ecdsa-sha2-nistp384 AAAA… name``. A
signature covers the purpose of the text, so that it cannot pass for one of another purpose or another program.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)

from coterie.base.disk import unlinked
from coterie.errors import ConfigError
from coterie.secure.masks import VERSION

_KINDS = "ssh-ed25519 or ecdsa-sha2-nistp384"


def public_key(line: str) -> str:
    """The key of a line without its name, in its only spelling."""
    return _spelt(_public(line))


def name_of(line: str) -> str:
    """The name at the end of a line; empty without one."""
    parts = str(line).split(None, 2)
    return parts[2].strip() if len(parts) == 3 else ""


def verified(key: str, purpose: str, text: bytes, signature: bytes) -> bool:
    """Whether the owner of a public key has signed a text for this purpose."""
    public, signed = _public(key), _text(purpose, text)
    try:
        if isinstance(public, Ed25519PublicKey):
            public.verify(signature, signed)
        else:
            public.verify(signature, signed, ECDSA(SHA384()))
    except InvalidSignature:
        return False
    return True


class Identity:
    """A site's own key pair."""

    def __init__(self, private: Ed25519PrivateKey | EllipticCurvePrivateKey) -> None:
        self._private = private
        self.public = _spelt(private.public_key())

    @classmethod
    def made(cls) -> Identity:
        """A new key pair, for rehearsals and tests."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def load(cls, path: str | Path) -> Identity:
        """The key pair of an OpenSSH file without a passphrase, as ``ssh-keygen -N ''`` writes it."""
        try:
            private = load_ssh_private_key(unlinked(path).read_bytes(), None)
        except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise ConfigError(
                f"{path} is not an OpenSSH private key without a passphrase ({type(error).__name__}). Make one with "
                "ssh-keygen -t ed25519 -N '' -f FILE."
            ) from None
        if not isinstance(private, Ed25519PrivateKey | EllipticCurvePrivateKey):
            raise ConfigError(f"A site's key must be {_KINDS}; {path} holds another kind. Make one with ssh-keygen.")
        return cls(private)

    def sign(self, purpose: str, text: bytes) -> bytes:
        signed = _text(purpose, text)
        if isinstance(self._private, Ed25519PrivateKey):
            return self._private.sign(signed)
        return self._private.sign(signed, ECDSA(SHA384()))


def _text(purpose: str, text: bytes) -> bytes:
    return f"coterie secure sums {VERSION}: {purpose}\n".encode() + text


def _public(line: str) -> Ed25519PublicKey | EllipticCurvePublicKey:
    found: Any = None
    with suppress(ValueError, UnsupportedAlgorithm):
        found = load_ssh_public_key(" ".join(str(line).split(None, 2)[:2]).encode())
    if not isinstance(found, Ed25519PublicKey | EllipticCurvePublicKey):
        raise ConfigError(
            f"A site's public key is a line that begins with {_KINDS}; got {str(line)[:40]!r}. Copy it from the .pub file."
        )
    return found


def _spelt(public: Ed25519PublicKey | EllipticCurvePublicKey) -> str:
    return public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
