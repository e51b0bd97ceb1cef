"""The releases of a private run, as its receipt lists them."""

from __future__ import annotations

from markupsafe import Markup

from coterie.comparison.result import Comparison
from coterie.privacy.receipt import Receipt
from coterie.privacy.receipt_page import verdict
from coterie.report.parts import section, with_code


def receipt(c: Comparison) -> Markup:
    """The receipt of a comparison's private release, and what it does not cover."""
    if c.receipt is None:
        return Markup()
    items = [
        f"Covered: {c.covered[0]}.",
        f"Not covered: {c.covered[1]}.",
        *([] if c.receipts else [with_code("The score of `private` is that of simulated runs.")]),
    ]
    return run_receipt("Privacy receipt", c.receipt, items)


def run_receipt(title: str, found: Receipt, items: list[str] | None = None) -> Markup:
    """A receipt as a section."""
    return section(title, f"{verdict(found)}.", items=items, pre=found.to_text())
