"""Sites' key pairs: those that ssh-keygen makes, and what a signature covers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from coterie.errors import ConfigError
from coterie.secure.identity import Identity, name_of, public_key, verified

needs_ssh = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is needed")
KINDS = {"ed25519": (), "ecdsa": ("-b", "384")}


def generated(folder: Path, kind: str, *more: str, phrase: str = "") -> Path:
    file = folder / kind
    subprocess.run(
        ["ssh-keygen", "-q", "-t", kind, *more, "-N", phrase, "-C", "basel", "-f", str(file)], check=True, timeout=60
    )
    return file


@needs_ssh
@pytest.mark.parametrize("kind", KINDS)
def test_the_keys_that_ssh_keygen_makes_sign_and_verify(kind: str, tmp_path: Path) -> None:
    file = generated(tmp_path, kind, *KINDS[kind])
    identity, line = Identity.load(file), file.with_suffix(".pub").read_text()
    assert public_key(line) == identity.public
    assert name_of(line) == "basel"
    signature = identity.sign("keys", b"text")
    assert verified(line, "keys", b"text", signature)
    assert not verified(line, "members", b"text", signature)
    assert not verified(line, "keys", b"text.", signature)
    assert not verified(line, "keys", b"text", signature[:-1] + bytes([signature[-1] ^ 1]))
    assert not verified(line, "keys", b"text", b"")
    assert not verified(Identity.made().public, "keys", b"text", signature)


@needs_ssh
def test_other_keys_are_refused_in_a_sentence(tmp_path: Path) -> None:
    for kind, phrase, why in (("rsa", "", "holds another kind"), ("ed25519", "secret", "without a passphrase")):
        with pytest.raises(ConfigError, match=why):
            Identity.load(generated(tmp_path, kind, phrase=phrase))
    with pytest.raises(ConfigError, match="begins with ssh-ed25519"):
        public_key((tmp_path / "rsa.pub").read_text())


@pytest.mark.parametrize("line", ["", "ssh-ed25519", "ssh-ed25519 AAAA", "nonsense", "a b c", "\x00", "ssh-ed25519 ä"])
def test_a_line_that_is_no_key_is_refused_in_a_sentence(line: str) -> None:
    with pytest.raises(ConfigError, match="begins with ssh-ed25519"):
        public_key(line)


@pytest.mark.parametrize("content", [None, b"", b"nonsense", b"-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n"])
def test_a_file_that_is_no_key_is_refused_in_a_sentence(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "key").write_bytes(content)
    with pytest.raises(ConfigError, match="not an OpenSSH private key"):
        Identity.load(tmp_path / "key")


def test_a_name_may_hold_spaces_or_be_missing() -> None:
    key = Identity.made().public
    assert name_of(f"{key} the hospital of Basel \n") == "the hospital of Basel"
    assert name_of(key) == ""
    assert public_key(f"  {key}   someone") == key
