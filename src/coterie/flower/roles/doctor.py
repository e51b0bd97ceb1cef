"""A look at a site before a run: versions, clock, certificate, disk, table and columns. Nothing of the table leaves."""

from __future__ import annotations

import datetime
import shutil
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime
from http.client import HTTPSConnection
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from cryptography import x509

from coterie.errors import CoterieError
from coterie.flower.job import Job
from coterie.flower.roles import keys
from coterie.flower.roles.invitation import Invitation, address_parts
from coterie.flower.roles.site import SKEW
from coterie.flower.site import Site

_ROOM = 1 << 30  # bytes of disk that a run should find free
_SOON = 30  # days before its end when a certificate is named
Finding = tuple[str, bool, str]
"""What was looked at, whether it is good, and a sentence."""


def examined(
    folder: Path, invitation: Invitation, job: Callable[[], Job], table: Path, client: str | None
) -> list[Finding]:
    """All findings; one that fails does not keep the others from being made."""
    found: list[Finding] = []
    looks: dict[str, Callable[[], Iterator[Finding]]] = {
        "version": lambda: _versions(invitation),
        "hub": lambda: _hub(invitation),
        "disk": lambda: _disk(folder),
        "run and table": lambda: _table(folder, job, table, client),
    }
    for name, look in looks.items():
        try:
            found += look()
        except (CoterieError, OSError, ssl.SSLError) as error:
            found.append((name, False, str(error)))
    return found


def _versions(invitation: Invitation) -> Iterator[Finding]:
    from coterie import __version__

    same = __version__ == invitation.version
    told = f"coterie {__version__} here, {invitation.version} at the hub" + ("" if same else ": defaults may differ")
    yield "version", True, f"{told}; both speak protocol {invitation.protocol}."
    try:
        yield "Flower", True, f"flwr {version('flwr')} is installed."
    except PackageNotFoundError:
        yield (
            "Flower",
            False,
            "Flower is not installed here: pip install 'coterie[flower]' with constraints-flower.txt.",
        )


def _hub(invitation: Invitation) -> Iterator[Finding]:
    host, port = address_parts(invitation.address)
    trusted = ssl.create_default_context(cadata=invitation.authority)
    with (
        socket.create_connection((host, port), timeout=10) as plain,
        trusted.wrap_socket(plain, server_hostname=host) as s,
    ):
        certificate = x509.load_der_x509_certificate(s.getpeercert(binary_form=True) or b"")
    left = (certificate.not_valid_after_utc - keys.now()) / datetime.timedelta(days=1)
    soon = ": its coordinator starts the hub again soon, which replaces it" if left < _SOON else ""
    yield "certificate", True, f"The hub at {invitation.address} shows a certificate for {left:.0f} more days{soon}."
    connection = HTTPSConnection(host, port, timeout=10, context=trusted)
    try:
        connection.request("GET", "/")
        told = connection.getresponse().getheader("date")
    finally:
        connection.close()
    ahead = 0.0 if told is None else time.time() - parsedate_to_datetime(told).timestamp()
    good = abs(ahead) <= SKEW
    yield "clock", good, f"This clock and the hub's differ by {abs(ahead):.0f} s" + ("." if good else ": set it.")


def _disk(folder: Path) -> Iterator[Finding]:
    there = next(p for p in (folder.resolve(), *folder.resolve().parents) if p.exists())
    free = shutil.disk_usage(there).free
    yield (
        "disk",
        free >= _ROOM,
        f"{free / 1e9:.1f} GB are free at {there}" + ("." if free >= _ROOM else ": free some space."),
    )


def _table(folder: Path, job: Callable[[], Job], table: Path, client: str | None) -> Iterator[Finding]:
    work = job()
    yield "run", True, f"The run's file can be read: {type(work.algorithm).__name__}, {work.rounds} rounds."
    rows = Site(work, table, folder, client).table_here()
    facts = rows.facts(private=work.privacy is not None)
    missing = [c for c, told in facts["columns"].items() if told.get("kind") == "numeric" and not told.get("present")]
    empty = f"; no values in {', '.join(missing)}" if missing else ""
    yield (
        "table",
        True,
        f"{len(rows.frame)} rows of {len(facts['clients'])} clients, {len(facts['columns'])} features{empty}.",
    )
