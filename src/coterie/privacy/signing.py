"""Signatures of receipts: a checksum that anybody can check, and a code (HMAC-SHA256) that the ledger can check.

The checksum finds edits by accident. The code also binds the receipt to the bookings of its ledger. Anybody who can read the
ledger's file has the key and can sign any receipt.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

from coterie.privacy.store import LedgerError, Store


def canonical(found: dict[str, Any]) -> bytes:
    """One text for one receipt: keys sorted, no spaces, without its signature."""
    kept = {name: value for name, value in found.items() if name != "signature"}
    return json.dumps(kept, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def seal(text: bytes, head: dict[str, Any], key: bytes) -> dict[str, Any]:
    """The signature: the ledger and the bookings it covers, the checksum, and the code made with the key."""
    about = head | {"checksum": hashlib.sha256(text).hexdigest()}
    return about | {"mac": _code(text, about, key)}


def _code(text: bytes, about: dict[str, Any], key: bytes) -> str:
    head = json.dumps({name: about[name] for name in ("ledger", "bookings", "head")}, sort_keys=True)
    return hmac.new(key, head.encode() + b"\n" + text, hashlib.sha256).hexdigest()


def broken(text: bytes, signature: dict[str, Any], file: Path | None) -> tuple[str, bool]:
    """(the fault, or an empty text; whether the ledger was available)."""
    if signature.get("checksum") != hashlib.sha256(text).hexdigest():
        return "its content does not match its checksum, so it was changed after it was written", False
    place = file or (Path(signature["file"]) if signature.get("file") else None)
    if place is None or not place.is_file():
        if file is not None:
            raise LedgerError(f"there is no ledger {file}; name the file that the receipt's run used.")
        return "", False
    store = Store(place, look=True)
    if store.ledger != signature["ledger"]:
        return f"it was not signed by the ledger {place}", True
    if not hmac.compare_digest(
        _code(text, signature, store.key()).encode(), str(signature["mac"]).encode("utf-8", "replace")
    ):
        return f"its signature is not that of the ledger {place}, so it was changed after it was written", True
    if store.at(int(signature["bookings"])) != signature["head"]:
        return f"the ledger {place} does not hold the bookings it was signed over", True
    return "", True
