"""Certificates that Python's own TLS accepts, keys that OpenSSH and Flower read, and invitations that are whole."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from coterie.errors import ConfigError
from coterie.flower import wire
from coterie.flower.roles import keys
from coterie.flower.roles.invitation import Invitation, address_parts
from coterie.secure.identity import Identity, public_key


def handshake(folder: Path, authority: Path, name: str) -> None:
    """A TLS connection to a server with the certificate in the folder."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / keys.CERTIFICATE, folder / keys.CERTIFICATE_KEY)
    trusted = ssl.create_default_context(cafile=str(authority))
    trusted.verify_flags |= ssl.VERIFY_X509_STRICT
    ours, theirs = socket.socketpair()

    def answer() -> None:
        try:
            server.wrap_socket(theirs, server_side=True).close()
        except (ssl.SSLError, OSError):
            theirs.close()

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        trusted.wrap_socket(ours, server_hostname=name).close()
    finally:
        ours.close()
        thread.join()


def test_a_certificate_is_good_for_its_names_and_its_authority_alone(tmp_path: Path) -> None:
    for name in ("hub", "other"):
        (tmp_path / name).mkdir()
        keys.make_authority(tmp_path / name, name)
    keys.make_certificate(tmp_path / "hub", "fl.example.org")
    for name in ("fl.example.org", "localhost", "127.0.0.1"):
        handshake(tmp_path / "hub", tmp_path / "hub" / keys.AUTHORITY, name)
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        handshake(tmp_path / "hub", tmp_path / "hub" / keys.AUTHORITY, "example.org")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tmp_path / "hub", tmp_path / "other" / keys.AUTHORITY, "localhost")
    assert (tmp_path / "hub" / keys.AUTHORITY_KEY).stat().st_mode & 0o077 == 0


def test_an_expired_certificate_is_replaced_and_trusted(tmp_path: Path) -> None:
    keys.make_authority(tmp_path, "hub")
    keys.make_certificate(tmp_path, "localhost", years=-0.001)
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        handshake(tmp_path, tmp_path / keys.AUTHORITY, "localhost")
    assert keys.renewed(tmp_path, "localhost")
    handshake(tmp_path, tmp_path / keys.AUTHORITY, "localhost")
    assert not keys.renewed(tmp_path, "localhost")


def test_a_sites_key_is_made_once_and_signs(tmp_path: Path) -> None:
    line = keys.site_key(tmp_path, "basel")
    assert line == keys.site_key(tmp_path, "basel")
    assert line.startswith("ecdsa-sha2-nistp384 ")
    assert public_key(line) == Identity.load(tmp_path / keys.KEY).public
    (tmp_path / keys.KEY).write_text("nothing")
    with pytest.raises(ConfigError, match="no key of OpenSSH"):
        keys.site_key(tmp_path, "basel")


def invitation() -> Invitation:
    return Invitation("basel", "fl.example.org:8443", "PEM", "train", "[run]\nrounds = 3\n", "s", "1.0", wire.PROTOCOL)


def test_a_run_that_would_look_otherwise_on_a_screen_is_refused(tmp_path: Path) -> None:
    """A line separator inside a comment would show a budget that the run does not have."""
    replace(invitation(), run="# ours\u2028[privacy]\u2028epsilon = 0.5\n").save(tmp_path / "i.json")
    with pytest.raises(ConfigError, match="is no invitation"):
        Invitation.load(tmp_path / "i.json")


def test_an_invitation_comes_back_whole(tmp_path: Path) -> None:
    invitation().save(tmp_path / "a.json")
    assert Invitation.load(tmp_path / "a.json") == invitation()
    assert (tmp_path / "a.json").stat().st_mode & 0o077 == 0
    told = json.loads((tmp_path / "a.json").read_text())
    for change in ({"run": "[run]\nrounds = 30\n"}, {"site": "../basel"}, {"secret": None}):
        (tmp_path / "b.json").write_text(json.dumps(told | change))
        with pytest.raises(ConfigError, match="no invitation"):
            Invitation.load(tmp_path / "b.json")
    with pytest.raises(ConfigError, match="There is no invitation"):
        Invitation.load(tmp_path / "nowhere.json")
    replace(invitation(), protocol=1).save(tmp_path / "c.json")
    with pytest.raises(ConfigError, match=r"The hub has coterie 1\.0 \(protocol 1\)"):
        Invitation.load(tmp_path / "c.json")


def test_an_address_has_a_host_and_a_port() -> None:
    assert address_parts("fl.example.org:8443") == ("fl.example.org", 8443)
    assert address_parts("[::1]:8443") == ("::1", 8443)
    for odd in ("fl.example.org", ":8443", "a:b", "a:0", "a:70000", "a b:80"):
        with pytest.raises(ConfigError, match="HOST:PORT"):
            address_parts(odd)
