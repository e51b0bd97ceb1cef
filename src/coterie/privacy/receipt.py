"""The privacy receipt states the guarantee, the protected users, the cost, and what the guarantee does not cover.

``write_receipt`` reads the ledger and the history that the released values carry. A receipt is always written. It is
``valid`` only if every step was accounted for and used exact noise.
"""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from coterie.base.annotations import guarded
from coterie.errors import ConfigError
from coterie.privacy.accounting import compose, cross_check, curve, round_up
from coterie.privacy.events import Event
from coterie.privacy.ledger import Ledger
from coterie.privacy.settings import Privacy
from coterie.privacy.signing import canonical
from coterie.privacy.taint import Released, all_taint, foreign
from coterie.privacy.terms import Guarantee
from coterie.privacy.verification import DIGITS, Verdict, has_form, verify

CURVE = (0.25, 0.5, 0.75, 1, 1.25, 1.5, 2)  # multiples of ε at which the curve is given
WEAK = "weak formal guarantee"
NOT_A_RELEASE = "NOT A DP RELEASE"
NOT_COVERED = (
    "timing, memory and log files",
    "diagnostics of a simulation: losses, histories, labels of other clients, numbers of clipped clients",
    "what a client itself publishes, and what others know about it already",
    "several persons behind one client, and one person behind several clients",
    "traffic: who took part, when, and how much was sent",
)
_UNITS = ("a person behind several units, or behind units of several clients: their budgets add up",)
_SERVER = "the server is trusted to clip, add noise and forget"
_ROWS = "each client is trusted with its own rows: to shorten them and to add noise; server and other clients are not"
WHO_SEES = {
    "central": "the server sees each client's clear message; everybody else sees noisy sums only",
    "joint": "the server sees each client's clear message; other clients see noisy sums only; a client's "
    "own model and own cluster go to that client alone",
    "local": "nobody, not even the server, sees more of a client than its noisy report",
    "rows": "a client sees its own rows; everybody else, the server too, sees its noisy sums only",
}
TRUST = {
    "central": _SERVER,
    "joint": f"{_SERVER}; other clients may collude, except on a client's own model and cluster",
    "local": "each client trusts its own device and nobody else",
}


@dataclass(frozen=True)
class Receipt:
    """All fields are plain values; ``to_json`` and ``from_json`` keep them, ``to_text`` is the readable page."""

    scope: str  # the runs that the cumulative total covers
    valid: bool
    reasons: tuple[str, ...]  # why not
    epsilon: float
    delta: float
    curve: tuple[tuple[float, float], ...]
    accountant: str
    cross_check: dict[str, Any]
    unit: str
    adjacency: str
    n_users: int
    public: tuple[str, ...]
    releases: tuple[dict[str, Any], ...]
    guarantee: str
    who_sees_what: str
    trust: str
    choices: dict[str, str]
    noise: dict[str, Any]
    cumulative: dict[str, Any]
    not_covered: tuple[str, ...]
    budget: dict[str, float]
    strength: str
    signature: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """The receipt as JSON; unknown values are null."""
        return json.dumps(asdict(self), indent=2, ensure_ascii=False, allow_nan=False)

    @classmethod
    @guarded
    def from_json(cls, text: str) -> Receipt:
        """The receipt that ``to_json`` wrote."""
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"this is not JSON: {error}; write the receipt again from the run.") from None
        if not has_form(found) or any(len(point) != 2 for point in found["curve"]):
            raise ConfigError("this is not a privacy receipt of this version; write it again from the run.")
        found["curve"] = tuple((float(e), float(d)) for e, d in found["curve"])
        for name in ("reasons", "public", "releases", "not_covered"):
            found[name] = tuple(found[name])
        return cls(**found)

    def signed(self, ledger: Ledger) -> Receipt:
        """The same receipt with the ledger's signature; to be called after the last change of a field."""
        return replace(self, signature=ledger.signed(canonical(asdict(self))))

    @guarded
    def verify(self, ledger: str | Path | None = None) -> Verdict:
        """Check that the stated numbers follow from the listed releases, and that the signature is the ledger's.

        ``ledger`` is the ledger's file; by default it is looked for at the place that the receipt names."""
        return verify(self, None if ledger is None else Path(ledger))

    def to_text(self) -> str:
        """One readable page."""
        from coterie.privacy.receipt_page import text

        return text(self)

    page = to_text

    def _repr_html_(self) -> str:
        from coterie.privacy.receipt_page import html_page

        return html_page(self)


@guarded
def write_receipt(
    ledger: Ledger,
    values: Sequence[Released[Any]],
    *,
    n_users: int,
    public: Iterable[str] = (),
    choices: Mapping[str, str] | None = None,
    guarantee: Guarantee | None = None,
    who_sees_what: str = "",
    trust: str = "",
    not_covered: Iterable[str] = (),
    noise_source: str = "",
) -> Receipt:
    """The receipt of a run that gave out ``values``.

    ``choices`` names every choice that could depend on data and says how it was paid for: "public", "fixed in advance", or
    "released: NAME" with the name of a booked release. Anything else is unaccounted and voids the receipt."""
    events, earlier, privacy = ledger.events(), ledger.earlier(), ledger.privacy
    if guarantee is None:
        guarantee = "local" if events and all(e.guarantee == "local" for e in events) else "central"
    paid, unpaid = _choices(choices or {}, {event.name for event in events})
    reasons = _reasons(ledger, values, events, guarantee, unpaid)
    costs, joint = compose(events), compose([*events, *earlier])
    delta = privacy.delta
    epsilon = round_up(costs.epsilon(delta), 4)
    if epsilon > privacy.epsilon * (1 + DIGITS):
        reasons = (*reasons, f"its releases cost more than its budget of ε = {privacy.epsilon:g}")
    method, second = cross_check(costs, delta)
    receipt = Receipt(
        scope=ledger.scope,
        valid=not reasons,
        reasons=reasons,
        epsilon=epsilon,
        delta=delta,
        curve=tuple(curve(costs, [round_up(epsilon * f, 4) for f in CURVE])),
        accountant=costs.accountant,
        cross_check={"method": method, "epsilon": round_up(second, 4) if math.isfinite(second) else None},
        unit=privacy.protects,
        adjacency=privacy.adjacency,
        n_users=int(n_users),
        public=(*_count(privacy, int(n_users)), f"the clip, {privacy.clip:g}", *public, *_given(values)),
        releases=tuple(_line(event, ledger) for event in events),
        guarantee=guarantee,
        who_sees_what=who_sees_what or WHO_SEES["rows" if privacy.rows else guarantee],
        trust=trust or (_ROWS if privacy.rows else TRUST[guarantee]),
        choices=paid,
        noise=_noise(events, privacy.noise, noise_source),
        cumulative=_cumulative(ledger, joint.epsilon(delta), earlier),
        not_covered=(*NOT_COVERED, *(_UNITS if privacy.rows else ()), *not_covered),
        budget={"epsilon": privacy.epsilon, "delta": delta, "total_epsilon": privacy.total},
        strength="; ".join(text for text in (WEAK if epsilon > 8 else "", weak_delta(delta, int(n_users))) if text),
    )
    return receipt.signed(ledger)


def _count(privacy: Privacy, n_users: int) -> list[str]:
    """The number of users, which is public; that of rows is not where a row more or less is protected."""
    return [f"about {n_users:,} units"] if privacy.rows else [f"the number of users, {n_users:,}"]


def _given(values: Sequence[Released[Any]]) -> list[str]:
    """Values that come from no release: the user declared that they depend on nobody's data."""
    kinds = [type(v.value).__name__ for v in values if not v.bookings and not isinstance(v.value, str)]
    return [f"declared public by the user: a value ({kind})" for kind in dict.fromkeys(kinds)]


def weak_delta(delta: float, n_users: int) -> str:
    """A warning about a δ so large that it permits publishing one user at random; empty for a smaller δ."""
    if delta < 1 / n_users:
        return ""
    return f"δ = {delta:g} is not smaller than 1/{n_users}: it permits showing everything about one user in {n_users}"


def _reasons(
    ledger: Ledger, values: Sequence[Released[Any]], events: Sequence[Event], guarantee: str, unpaid: tuple[str, ...]
) -> tuple[str, ...]:
    """All reasons why the receipt is not valid."""
    found = [*ledger.taint, *all_taint(values), *unpaid]
    if foreign(ledger):
        found.append(
            f"unaccounted: the ledger, {type(ledger).__name__}, is not this package's, or a method was put into it"
        )
    if ledger.privacy.simulated:
        found.insert(0, f"{NOT_A_RELEASE}: the noise was a simulation")
    if not values:
        found.append("unaccounted: no released value was named")
    known = ledger.numbers()
    for value in values:
        for booking in value.bookings:
            if booking.ledger != ledger.id or booking.number not in known:
                found.append(f"unaccounted: the release {booking.event.name!r} is not booked in this run's ledger")
    if guarantee == "local" and any(event.guarantee != "local" for event in events):
        found.append("a local guarantee was claimed, and a release is not local")
    return tuple(dict.fromkeys(found))


def _choices(choices: Mapping[str, str], names: set[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    paid, unpaid = {}, []
    for what, how in ((what, str(how)) for what, how in choices.items()):
        known = how in ("public", "fixed in advance") or (how.startswith("released: ") and how[10:] in names)
        paid[what] = how if known else f"unaccounted: {how.removeprefix('unaccounted: ')}"
        if not known:
            unpaid.append(f"unaccounted: {what} ({how.removeprefix('unaccounted: ')})")
    return paid, tuple(unpaid)


def _line(event: Event, ledger: Ledger) -> dict[str, Any]:
    """One row of the table of releases, with the planned and the realised count."""
    line = None if ledger.plan is None else ledger.plan.line(event.name)
    row = asdict(event) | {"pure_epsilon": event.pure_epsilon or None}
    row |= {"planned": line.count if line else None, "share": round(line.share, 6) if line else None}
    without = ("noise",) if event.failure else ("noise", "failure")  # the noise is that of the whole receipt
    return {name: value for name, value in row.items() if name not in without}


def _noise(events: Sequence[Event], noise: str, source: str) -> dict[str, Any]:
    from coterie.privacy.mechanisms.noise import ExactNoise, SimulationNoise

    return {
        "mode": noise,
        "source": source or (ExactNoise().source if noise == "exact" else SimulationNoise(0).source),
        "lattice_steps": sorted({event.step for event in events if event.step}),
        "lattice_epsilon": sum(event.slack * event.count for event in events),
        "versions": {
            "coterie": version("coterie"),
            "python": platform.python_version(),
            "numpy": np.__version__,
            "opendp": version("opendp"),
            "dp-accounting": version("dp-accounting"),
        },
    }


def _cumulative(ledger: Ledger, epsilon: float, earlier: Sequence[Event]) -> dict[str, Any]:
    return {
        "users": ledger.privacy.users,
        "epsilon": round_up(epsilon, 4) if ledger.named else None,
        "delta": ledger.privacy.delta,
        "earlier_releases": sum(event.count for event in earlier),
        "ledger": str(ledger.privacy.ledger) if ledger.durable else None,
        "note": ledger.scope,
    }
