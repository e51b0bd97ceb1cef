"""A receipt as one readable page: plain text, and HTML for notebooks."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from coterie.base.text import one_line

if TYPE_CHECKING:
    from coterie.privacy.receipt import Receipt


def verdict(receipt: Receipt) -> str:
    """The first line."""
    claim = f"ε = {receipt.epsilon:g}, δ = {receipt.delta:g}"
    if receipt.valid:
        weak = f" ({receipt.strength})" if receipt.strength else ""
        total = receipt.cumulative["epsilon"]
        scope = receipt.scope if total is None else f"ε = {total:g} for {receipt.scope}"
        return f"PRIVACY RECEIPT: {claim}, {receipt.guarantee} differential privacy{weak}; {scope}"
    if receipt.noise["mode"] == "simulation":
        return f"NOT A DP RELEASE: simulated noise, as if {claim}; {receipt.scope}"
    return f"NO PRIVACY CLAIM: this receipt is not valid; {receipt.scope}"


def _number(value: float | None, form: str = "{:.5g}") -> str:
    return "–" if value is None else form.format(value)


def _release(line: dict[str, Any]) -> list[str]:
    planned = "" if line["planned"] is None else f" of {line['planned']} planned"
    share = "" if line["share"] is None else f", {line['share']:.1%} of the budget"
    sampling = "everybody" if line["sampling"] == 1 else f"Poisson sampling {line['sampling']:g}"
    size = f"σ = {line['sigma']:.5g}, σ/Δ = {line['noise_multiplier']:.5g}"
    if line["pure_epsilon"]:
        size = f"randomised response with ε = {line['pure_epsilon']:g}"
    return [
        f"  {line['name']}: {line['count']}{planned}{share}; {line['dimension']} numbers, {sampling}, {line['guarantee']}",
        f"    Δ = {line['sensitivity']:.6g} = {line['derivation']}",
        f"    {size}",
    ]


def _all_runs(total: dict[str, Any]) -> str:
    known = (
        f"ε = {total['epsilon']:g}, {total['earlier_releases']} earlier releases; "
        if total["epsilon"] is not None
        else ""
    )
    return known + str(total["note"])


def text(receipt: Receipt) -> str:
    """The page."""
    lines = [verdict(receipt)]
    if not receipt.valid:
        lines += ["why not:", *(f"  - {reason}" for reason in receipt.reasons)]
    check, total = receipt.cross_check, receipt.cumulative
    lines += [
        "",
        f"protected    {receipt.unit}; adjacency {receipt.adjacency}; {receipt.n_users:,} users",
        f"accountant   {receipt.accountant}; cross-check ε = {_number(check['epsilon'])} ({check['method']})",
        "δ(ε)         " + ", ".join(f"{e:g}: {d:.3g}" for e, d in receipt.curve),
        f"budget       ε = {receipt.budget['epsilon']:g} for this run, {receipt.budget['total_epsilon']:g} for all runs",
        f"all runs     {_all_runs(total)}",
        "public       " + "; ".join(receipt.public),
        f"who sees     {receipt.who_sees_what}",
        f"trust        {receipt.trust}",
        f"noise        {receipt.noise['source']}; lattice steps {receipt.noise['lattice_steps']}, which cost "
        f"ε {receipt.noise['lattice_epsilon']:.2g}",
        "versions     " + ", ".join(f"{name} {number}" for name, number in receipt.noise["versions"].items()),
        "",
        "releases",
    ]
    for line in receipt.releases:
        lines += _release(line)
    lines += ["", "choices that could depend on data", *(f"  {what}: {how}" for what, how in receipt.choices.items())]
    if not receipt.choices:
        lines.append("  none was named")
    lines += ["", "not covered", *(f"  - {what}" for what in receipt.not_covered)]
    return "\n".join(map(one_line, lines))  # a text of the receipt cannot pass for a line of this page


def html_page(receipt: Receipt) -> str:
    """The same page for a notebook, in green for a valid receipt and in red for any other."""
    colour = "#1a7f37" if receipt.valid else "#b42318"
    head, _, rest = text(receipt).partition("\n")
    return (
        f'<div style="border-left:4px solid {colour};padding:.5em 1em"><strong style="color:{colour}">{html.escape(head)}'
        f'</strong><pre style="white-space:pre-wrap;margin:.5em 0 0">{html.escape(rest)}</pre></div>'
    )
