"""Checking a receipt: do its numbers follow from its releases, and is its signature the ledger's?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.base.text import one_line
from coterie.privacy.accounting import Composition, compose, curve
from coterie.privacy.events import Event
from coterie.privacy.signing import broken, canonical

if TYPE_CHECKING:
    from coterie.privacy.receipt import Receipt

_NUMBER = (int, float)
_MAYBE = (int, float, type(None))
_LINE = {
    "name": str, "kind": str, "sensitivity": _NUMBER, "derivation": str, "sigma": _NUMBER, "noise_multiplier": _NUMBER,
    "pure_epsilon": _MAYBE, "dimension": int, "sampling": _NUMBER, "count": int, "planned": (int, type(None)),
    "share": _MAYBE, "guarantee": str, "adjacency": str, "step": _NUMBER,
    "parts": int, "failure": _NUMBER,
}  # fmt: skip
_FIELDS: dict[str, Any] = {
    "scope": str, "valid": bool, "reasons": [str], "epsilon": _NUMBER, "delta": _NUMBER, "curve": [[_NUMBER]],
    "accountant": str, "cross_check": {"method": str, "epsilon": _MAYBE}, "unit": str, "adjacency": str, "n_users": int,
    "public": [str], "releases": [_LINE], "guarantee": str, "who_sees_what": str, "trust": str, "choices": {...: str},
    "noise": {"mode": str, "source": str, "lattice_steps": [_NUMBER], "lattice_epsilon": _NUMBER, "versions": {...: str}},
    "cumulative": {
        "users": str, "epsilon": _MAYBE, "delta": _NUMBER, "earlier_releases": int, "ledger": (str, type(None)), "note": str,
    },
    "not_covered": [str], "budget": {"epsilon": _NUMBER, "delta": _NUMBER, "total_epsilon": _NUMBER}, "strength": str,
    "signature": {...: (str, int, type(None))},
}  # fmt: skip
_OPTIONAL = {"failure"}  # listed where it is above 0
_LARGEST = 1 << 63  # whole numbers of JSON may be too large for a float
_MOST = 10**6
DIGITS = 2e-3  # numbers are rounded up to four digits, and libraries of other versions differ in the last one


@dataclass(frozen=True)
class Verdict:
    """``fault`` says in one sentence what is wrong, or is empty; ``signature`` says whether a ledger was available."""

    fault: str
    signature: bool

    @property
    def sentence(self) -> str:
        """The result of the check, in one sentence."""
        if self.fault:
            return one_line(f"This receipt cannot be believed: {self.fault}.")
        if self.signature:
            return "Checked: the numbers follow from the releases, and the signature and the bookings are the ledger's."
        return (
            "Checked: the numbers follow from the releases; no ledger is at hand, so only the arithmetic was checked."
        )


def has_form(found: Any, form: Any = None) -> bool:
    """Whether the JSON of a receipt has the fields of this version, each with values of its type."""
    form = _FIELDS if form is None else form
    if isinstance(form, list):
        return isinstance(found, list) and all(has_form(part, form[0]) for part in found)
    if isinstance(form, dict):
        names = form.get(...)
        if not isinstance(found, dict) or (names is None and not set(form) - _OPTIONAL <= set(found) <= set(form)):
            return False
        return all(has_form(part, names or form[name]) for name, part in found.items())
    if isinstance(found, bool) or not isinstance(found, form):
        return form is bool and isinstance(found, bool)
    return not isinstance(found, int) or abs(found) < _LARGEST


def events_of(receipt: Receipt) -> list[Event]:
    """The listed releases in the form that the accountant takes."""
    known = {f.name for f in fields(Event)}
    return [
        Event(**{k: v for k, v in line.items() if k in known and v is not None}, noise=receipt.noise["mode"])
        for line in receipt.releases
    ]


def verify(receipt: Receipt, ledger: Path | None) -> Verdict:
    """The first fault of the receipt, or an empty text."""
    try:
        if fault := next(_faults(receipt), ""):
            return Verdict(fault, False)
        return Verdict(*broken(canonical(asdict(receipt)), receipt.signature, ledger))
    except (LookupError, TypeError, ValueError, ArithmeticError) as error:
        return Verdict(f"its fields cannot be read ({type(error).__name__}: {error})".rstrip("."), False)


def _near(stated: float, found: float) -> bool:
    return math.isclose(stated, found, rel_tol=DIGITS, abs_tol=1e-9)


def _faults(receipt: Receipt) -> Iterator[str]:
    events = events_of(receipt)
    sampled = sum(event.count for event in events if event.sampling < 1)
    if max(sampled, len(events), len(receipt.curve)) > _MOST:  # whoever wrote it chose how long a check takes
        yield f"it lists {max(sampled, len(events), len(receipt.curve))} releases or points, and at most {_MOST} are checked"
    for event in events:
        if event.kind == "gaussian" and not _near(event.sigma, event.noise_multiplier * event.sensitivity):
            yield f"the noise of {event.name!r} is not its σ/Δ times Δ"
    costs = compose(events)
    found = costs.epsilon(receipt.delta)
    if not _near(receipt.epsilon, found):
        yield f"it states ε = {receipt.epsilon:g}, and its releases cost ε = {found:.4g} at δ = {receipt.delta:g}"
    yield from _curve_faults(receipt, costs)
    yield from _claim_faults(receipt, found)


def _curve_faults(receipt: Receipt, costs: Composition) -> Iterator[str]:
    for (e, stated), (_, delta) in zip(receipt.curve, curve(costs, [e for e, _ in receipt.curve]), strict=True):
        if not math.isclose(stated, delta, rel_tol=0.05, abs_tol=1e-15):
            yield f"its curve states δ = {stated:.3g} at ε = {e:g}, and its releases give δ = {delta:.3g}"


def _claim_faults(receipt: Receipt, epsilon: float) -> Iterator[str]:
    total, budget = receipt.cumulative["epsilon"], receipt.budget
    simulated = receipt.noise["mode"] == "simulation"
    if receipt.valid != (not receipt.reasons) or (receipt.valid and simulated):
        yield f"it says valid = {str(receipt.valid).lower()}, and its reasons or its noise say otherwise"
    if receipt.valid and receipt.delta != budget["delta"]:
        yield f"its δ = {receipt.delta:g} is not that of its budget, {budget['delta']:g}"
    if receipt.valid and epsilon > budget["epsilon"] * (1 + DIGITS):
        yield f"its releases cost ε = {epsilon:.4g}, which is more than its budget of {budget['epsilon']:g}"
    if total is not None and total < receipt.epsilon * (1 - DIGITS):
        yield f"it states ε = {total:g} for all runs, which is less than this run's {receipt.epsilon:g}"
    if total is not None and receipt.scope.startswith("this run alone"):
        yield "it speaks for this run alone, and states a total for all runs"
    if receipt.valid and total is not None and total > budget["total_epsilon"] * (1 + DIGITS):
        yield f"all runs cost ε = {total:g}, which is more than their budget of {budget['total_epsilon']:g}"
    if ("weak formal guarantee" in receipt.strength) != (receipt.epsilon > 8):
        yield "its strength is stated wrongly: a guarantee is called weak above ε = 8, and only there"
    if ("δ = " in receipt.strength) != (receipt.delta >= 1 / max(receipt.n_users, 1)):
        yield f"its strength is stated wrongly: δ = {receipt.delta:g} is to be compared with 1/{receipt.n_users}"
    if receipt.adjacency == "replace" and any(line["adjacency"] != "replace" for line in receipt.releases):
        yield "it claims replace adjacency, and a release has the Δ of zero-out"
    if receipt.guarantee == "local" and any(line["guarantee"] != "local" for line in receipt.releases):
        yield "it claims a local guarantee, and a release is not local"
