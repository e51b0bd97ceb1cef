"""Values that carry their own history.

``Released`` holds a value that a mechanism gave out, with the bookings of all releases it derives from and the reasons (if
any) why no receipt may cover it. Post-processing keeps both: ``released.map(f)`` for one value, ``combine(f, a, b)`` for
several. Anything that is neither ``Released`` nor ``public(...)`` is of unknown origin and taints the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Generic, TypeVar

from coterie.base.annotations import guarded
from coterie.privacy.events import Event

Value = TypeVar("Value")
Other = TypeVar("Other")


def patched(value: Any) -> bool:
    """Whether something put into an object stands in the place of a method of its class."""
    own = {f.name for f in fields(value)} if is_dataclass(value) else set()
    held = getattr(value, "__dict__", {})
    return any(callable(getattr(type(value), name, None)) for name in held if name not in own)


def foreign(value: Any) -> bool:
    """Whether an object's class is not this package's, or a method was put into it."""
    return type(value).__module__.split(".", 1)[0] != "coterie" or patched(value)


@dataclass(frozen=True)
class Booking:
    """An event as a ledger wrote it down. ``ledger`` is empty where no ledger took part."""

    event: Event
    ledger: str = ""
    number: int = 0


@dataclass(frozen=True)
class Released(Generic[Value]):
    """A value that may be shown, and its history."""

    value: Value
    bookings: tuple[Booking, ...] = ()
    taint: tuple[str, ...] = ()

    def map(self, function: Callable[[Value], Other]) -> Released[Other]:
        """Post-process the value: this costs nothing and keeps the history. The function must not look at data."""
        return Released(function(self.value), self.bookings, self.taint)

    @property
    def clean(self) -> bool:
        """Whether nothing in the history forbids a receipt."""
        return not self.taint

    @property
    def free(self) -> bool:
        """Whether the value depends on nobody's data: it was declared public and comes from no release."""
        return not self.taint and not self.bookings

    @property
    def events(self) -> tuple[Event, ...]:
        """The events behind the value."""
        return tuple(booking.event for booking in self.bookings)


@guarded
def public(value: Value) -> Released[Value]:
    """A value that does not depend on anybody's data. One that has a history already keeps it."""
    return value if isinstance(value, Released) else Released(value)


@guarded
def non_private(value: Value, reason: str) -> Released[Value]:
    """A value that was computed from clear data; nothing that derives from it gets a valid receipt."""
    return Released(value, (), (f"unaccounted: {reason}",))


@guarded
def combine(function: Callable[..., Other], *values: Any) -> Released[Other]:
    """``function(*plain values)`` with the joint history of all arguments."""
    bookings: dict[Booking, None] = {}
    reasons: dict[str, None] = {}
    plain = []
    for position, value in enumerate(values):
        if isinstance(value, Released):
            bookings.update(dict.fromkeys(value.bookings))
            reasons.update(dict.fromkeys(value.taint))
            plain.append(value.value)
        else:
            reasons[f"unaccounted: argument {position + 1} of a combination is of unknown origin"] = None
            plain.append(value)
    return Released(function(*plain), tuple(bookings), tuple(reasons))


def all_taint(values: Iterable[Released[Any]]) -> tuple[str, ...]:
    """Every reason, once, in order."""
    return tuple(dict.fromkeys(reason for value in values for reason in value.taint))
