"""What a server's message may hold: one table of fields and their checks, applied before a site does anything.

A field that is not in the table of its message is ignored. A message with a missing or wrong field is refused with one
sentence. Names become names of files at a site, so they have letters, digits and hyphens only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from coterie.data.digits import LEVELS
from coterie.data.preprocessing import PLAN_COLUMNS
from coterie.flower.answers import finite, text, whole
from coterie.flower.wire import Malformed
from coterie.learning.metrics import METRICS

MOST_GROUPS = 64  # of an ask, or the clusters of the algorithm if these are more
MOST_CLIENTS = 10**6  # of a run: a site keeps some bytes for each
_MOST_ROUNDS = 10**9
_NAME = re.compile(r"[A-Za-z0-9-]{1,64}", re.ASCII)
_PLACE = re.compile(r"[A-Za-z0-9_.]{1,200}", re.ASCII)
Check = tuple[Callable[[Any], bool], str]


def name(told: Any) -> bool:
    """Whether the text may be a part of a file's name."""
    return isinstance(told, str) and _NAME.fullmatch(told) is not None


def _list(told: Any, fits: Callable[[Any], bool], most: int = MOST_CLIENTS) -> bool:
    return isinstance(told, list) and len(told) <= most and all(map(fits, told))


def _dict(told: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(told, dict) and all(map(text, told)) and all(map(fits, told.values()))


def _positions(told: Any) -> bool:
    return _list(told, lambda i: whole(i, MOST_CLIENTS)) and len(set(told)) == len(told)


def _groups(told: Any) -> bool:
    return whole(told, MOST_CLIENTS) and told > 0


def _reduce(told: Any) -> bool:
    return told is None or (
        isinstance(told, list)
        and told[:1] in (["MeanBy"], ["SumBy"])
        and (len(told) == 2 or told[2:] == [True])  # soft
        and _groups(told[1])
    )


def _from(told: Any) -> bool:
    return told is None or (
        isinstance(told, list) and len(told) == 2 and _list(told[0], text, 1000) and (told[1] is None or text(told[1]))
    )


def _given(told: Any) -> bool:
    return isinstance(told, dict) and set(told) == {"down", "each"} and _dict(told, lambda v: _list(v, text, 1000))


def _private(told: Any) -> bool:
    keys = {"noise_multiplier", "n_users", "sampling", "expected"}
    if told is None:
        return True
    if not (isinstance(told, dict) and set(told) == keys and all(map(finite, told.values()))):
        return False
    return bool(
        told["noise_multiplier"] > 0
        and whole(told["n_users"], MOST_CLIENTS)
        and 0 < told["sampling"] <= 1
        and 0 < told["expected"] <= told["n_users"]
    )


def _plan_row(told: Any) -> bool:
    texts, numbers = ("source", "kind", "note"), ("fill", "mean", "scale")
    return (
        isinstance(told, dict)
        and set(told) == set(PLAN_COLUMNS)
        and all(text(told[k]) for k in texts)
        and all(told[k] is None or text(told[k]) for k in ("column", "category"))
        and all(told[k] is None or finite(told[k]) for k in numbers)
        and told["kind"] in ("numeric", "category", "indicator", "dropped")
    )


def _agreement(told: Any) -> bool:
    if not (isinstance(told, dict) and set(told) == {"plan", "classes"} and _list(told["plan"], _plan_row, 10**6)):
        return False
    return told["classes"] is None or _list(told["classes"], lambda v: text(v) or isinstance(v, bool) or finite(v))


def _plain(told: Any, deep: int = 8) -> bool:
    """Plain values of a server's state."""
    if isinstance(told, dict):
        return deep > 0 and all(text(k) and _plain(v, deep - 1) for k, v in told.items())
    if isinstance(told, list):
        return deep > 0 and all(_plain(v, deep - 1) for v in told)
    return told is None or text(told) or isinstance(told, bool | int | float)


def _steps(told: Any) -> bool:
    """Settings of LocalSGD."""
    return told is None or (
        isinstance(told, dict)
        and set(told) == {"steps", "lr", "batch_size", "momentum", "weight_decay"}
        and all(told[k] is None or (whole(told[k], 10**4) and told[k] > 0) for k in ("steps", "batch_size"))
        and all(finite(told[k]) and told[k] >= 0 for k in ("lr", "momentum", "weight_decay"))
    )


def _held(told: Any) -> bool:
    """Parts of the rows that are held out: shares and seeds."""
    return _list(
        told,
        lambda part: (
            _list(part, lambda v: v is None or finite(v), 2)
            and len(part) == 2
            and finite(part[0])
            and 0 < part[0] < 1
            and (part[1] is None or whole(part[1], _MOST_ROUNDS))
        ),
        4,
    )


_TRIAL: dict[str, Callable[[Any], bool]] = {
    "name": text,
    "local": _steps,
    "lr": lambda v: v is None or (finite(v) and v > 0),
    "clusters": lambda v: v is None or (whole(v, MOST_GROUPS) and v > 0),
    "clients": _positions,
    "held": _held,
    "target": lambda v: v is None or (_list(v, finite, 2) and len(v) == 2 and v[1] >= 0),
    "metrics": lambda v: _list(v, lambda m: m in METRICS, len(METRICS)),
    "seed": lambda v: whole(v, _MOST_ROUNDS),
}


def _trial(told: Any) -> bool:
    """What is trained in a study."""
    return told is None or (
        isinstance(told, dict) and set(told) == set(_TRIAL) and all(fits(told[k]) for k, fits in _TRIAL.items())
    )


_PATTERN = "1 to 64 letters, digits and hyphens"
_ROUND: Check = (lambda v: whole(v, _MOST_ROUNDS), "a whole number from 0")
_RUN: Check = (name, _PATTERN)
_TAG: Check = (lambda v: v is None or name(v), f"{_PATTERN}, or null")
_NUMBER: Check = (lambda v: whole(v, 1 << 80), "a whole number from 0")
_ORDER: Check = (lambda v: v is None or isinstance(v, dict), "null, or an order of a secure sum")
TABLE: dict[str, dict[str, Check]] = {
    "join": {
        "settings": (lambda v: v is None or name(v), "a checksum"),
        "version": (lambda v: v is None or text(v), "a version"),
    },
    "digits": {
        "level": (lambda v: whole(v, LEVELS - 1), f"a whole number from 0 to {LEVELS - 1}"),
        "prefixes": (
            lambda v: _dict(v, lambda p: _list(p, lambda n: whole(n, (1 << 64) - 1), 2) and len(p) > 0),
            "one or two whole numbers per column",
        ),
    },
    "spread": {"fills": (lambda v: _dict(v, finite), "a finite number per column")},
    "hello": {"run": _RUN},
    "begin": {
        "run": _RUN,
        "ticket": _RUN,
        "agreement": (_agreement, "a plan of columns and classes"),
        "n_clients": (_groups, f"a whole number from 1 to {MOST_CLIENTS}"),
        "places": (
            lambda v: isinstance(v, dict) and _positions(list(v.values())),
            "a position per client, each once",
        ),
    },
    "ask": {
        "run": _RUN, "round": _ROUND, "ask": _ROUND, "attempt": _RUN, "have": _TAG, "base": _TAG, "number": _NUMBER,
        "phase": (lambda v: isinstance(v, str) and _PLACE.fullmatch(v) is not None, "the place of a client function"),
        "clients": (_positions, "positions of clients, each once"),
        "reduce": (_reduce, "null, or MeanBy or SumBy with a number of groups, and true if they are soft"),
        "test": (lambda v: isinstance(v, bool), "true or false"),
        "updates": (lambda v: _dict(v, _from), "what each update is measured from"),
        "auxiliary": (lambda v: _list(v, text, 1000), "names"),
        "given": (_given, "the names of down and each"),
        "private": (_private, "null, or the numbers of a private run"), "secure": _ORDER,
        "trial": (_trial, "null, or what is trained in a study"),
    },
    "look": {
        "run": _RUN, "round": _ROUND, "have": _TAG, "number": _NUMBER, "attempt": _RUN,
        "trial": (lambda v: v is not None and _trial(v), "what is trained in a study"),
        "what": (lambda v: v in ("look", "keep", "told", "targets"), "a look at a study's training"),
        "plain": (lambda v: isinstance(v, dict) and _plain(v), "plain values"),
        "method": (lambda v: v is None or name(v), _PATTERN),
        "split": (lambda v: v is None or whole(v, _MOST_ROUNDS), "a seed"),
        "judged": (lambda v: v is None or _list(v, lambda m: m in METRICS, 2), "metrics"),
        "guess": (lambda v: v is None or _list(v, finite, 1000), "numbers"),
        "methods": (lambda v: v is None or (_list(v, name, 100) and len(v) > 0), "names of methods"),
        "splits": (lambda v: v is None or (_list(v, lambda k: whole(k, _MOST_ROUNDS), 100) and len(v) > 0), "seeds"),
    },
    "finish": {
        "run": _RUN, "round": _ROUND, "have": _TAG, "number": _NUMBER,
        "plain": (lambda v: isinstance(v, dict) and _plain(v), "plain values"), "secure": _ORDER,
    },
    "secure": {"run": _RUN, "told": (lambda v: isinstance(v, dict), "a message of the protocol for secure sums")},
}  # fmt: skip
PARTS = {"ask": ("down", "each", "known"), "finish": ("state",), "look": ("state",)}
_MAY_BE_NULL = (
    "settings", "version", "have", "base", "reduce", "private", "secure", "trial", "method", "split", "judged", "guess",
    "methods", "splits",
)  # fmt: skip


def checked_tree(kind: str, tree: dict[str, Any]) -> dict[str, Any]:
    """The tensors of a message, which must all be inside the parts that it may have."""
    if not set(tree) <= set(PARTS.get(kind, ())) or not all(isinstance(part, dict) for part in tree.values()):
        raise Malformed(
            f"The tensors of the message {kind!r} must be inside {', '.join(PARTS.get(kind, ['nothing']))}."
        )
    return tree


def checked_head(head: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The kind of the message and its fields, checked by the table."""
    kind = head.get("do")
    if not isinstance(kind, str) or kind not in TABLE:
        raise Malformed("The site knows no such message; server and site need the same version of coterie.")
    found: dict[str, Any] = {}
    for field, (fits, what) in TABLE[kind].items():
        value = head.get(field)
        if (field not in head and field not in _MAY_BE_NULL) or not fits(value):
            raise Malformed(f"{field!r} of the message {kind!r} must be {what}; it is missing or something else.")
        found[field] = value
    if kind == "ask" and not found["clients"] and found["secure"] is None:
        raise Malformed(
            "'clients' of the message 'ask' must be positions of clients; without a secure sum, of at least one."
        )
    if kind == "begin" and max(found["places"].values(), default=-1) >= found["n_clients"]:
        raise Malformed("'places' of the message 'begin' must be below n_clients; one is not.")
    return kind, found
