"""What a private run released, as its receipt says it."""

from __future__ import annotations

from markupsafe import Markup

from coterie.privacy.receipt import Receipt
from coterie.report.parts import section


def receipt(name: str, found: Receipt) -> Markup:
    first, _, rest = found.to_text().partition("\n")
    return section(f"Privacy receipt of {name}", first + ".", pre=rest.strip("\n"))
