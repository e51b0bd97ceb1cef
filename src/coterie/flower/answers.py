"""Checks of sites' answers: each returns only the fields that were asked for, or refuses with one sentence."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from coterie.flower.wire import Malformed
from coterie.learning.metrics import FOR_NUMBERS, METRICS

MOST_ROWS = 10**9  # of a client
MOST = 1e300  # of weights and sums, which are added up in float64
_MANY = 10**15  # rows of a site
_SHARES = frozenset(METRICS) - FOR_NUMBERS - {"log_loss"}  # scores from 0 to 1
_ROUNDING = 1e-6  # relative, of scores in float32


def total(told: Any, name: str, most: int) -> tuple[float, int]:
    """A sum over at most so many clients, and their number."""
    if not (isinstance(told, list) and len(told) == 2 and finite(told[0]) and whole(told[1], most)):
        raise Malformed(f"{name!r} must be a finite sum and a number of clients from 0 to {most}.")
    if abs(told[0]) > MOST:
        raise Malformed(f"{name!r} is at most {MOST:g}: with those of others it must stay a number.")
    return float(told[0]), told[1]


def finite(told: Any) -> bool:
    """Whether the value is a number that a float can hold."""
    try:
        return type(told) in (int, float) and math.isfinite(told)
    except OverflowError:
        return False


def whole(told: Any, most: int) -> bool:
    """Whether the value is a whole number from 0 to `most`."""
    return type(told) is int and 0 <= told <= most


def ticket(told: Mapping[str, Any]) -> bytes:
    """The ticket by which a node shows which site it is; empty if the node is not a site of this run."""
    shown = told.get("ticket")
    if not isinstance(shown, str | None):
        raise Malformed("A ticket is text.")
    return (shown or "").encode("utf-8", "replace")


def key(told: Mapping[str, Any], known: Mapping[str, str], others: Mapping[str, str]) -> str:
    """The public key of a site of a run with secure sums; it is one of the run's, and no other site's."""
    shown = told.get("key")
    if not isinstance(shown, str) or shown not in known:
        raise Malformed("Its key is not among those of [secure] sites. Add the line of its .pub file, at all sites.")
    if (other := next((site for site, one in others.items() if one == shown), None)) is not None:
        raise Malformed(f"It has the key of {other}; every site has a key of its own.")
    return shown


# ---- before a run ----------------------------------------------------------------------------------------------------


def joined(told: Mapping[str, Any], data: Mapping[str, Any], *, private: bool) -> dict[str, Any]:
    """Clients, labels, sizes and columns of a site; `data` are the options that all sites have."""
    clients = _need(told, "clients", _texts, "names of clients, each once")
    if len(set(clients)) < len(clients):
        raise Malformed("'clients' names a client twice.")
    found: dict[str, Any] = {"clients": clients, "labels": None}
    if data["kind"] == "classification" and not data.get("classes"):
        found["labels"] = _need(told, "labels", _labels, "a list of texts or finite numbers")
    if data.get("cluster") is not None:
        found["clusters"] = _need(
            told, "clusters", lambda v: _texts(v) and len(v) == len(clients), "one text per client"
        )
    if not private:
        found |= _sizes(told, clients)
    columns = _need(told, "columns", lambda v: isinstance(v, dict) and set(v) == set(data["features"]), "the features")
    own = data.get("scaling", "all") == "own"
    found["columns"] = {c: _column(columns[c], c, own=own, private=private) for c in data["features"]}
    return found


def digits(told: Mapping[str, Any], asked: Mapping[str, int], most: Mapping[str, int]) -> dict[str, list[list[int]]]:
    """Counts of 256 bytes for each column and each of the prefixes asked for, of at most so many values as the column has.
    Only zeros mean that the site has too few values to send counts."""

    def fits(prefixes: int, many: int, rows: Any) -> bool:
        return isinstance(rows, list) and len(rows) == prefixes and all(counts(row, many) for row in rows)

    def counts(row: Any, many: int) -> bool:
        return isinstance(row, list) and len(row) == 256 and all(whole(n, many) for n in row) and sum(row) <= many

    found: dict[str, list[list[int]]] = _need(told, "digits", lambda v: isinstance(v, dict), "counts of every column")
    for column, prefixes in asked.items():
        _need(found, column, partial(fits, prefixes, most[column]), "counts of bytes, of no more values than there are")
    return {column: found[column] for column in asked}


def spread(told: Mapping[str, Any], rows: Mapping[str, int]) -> dict[str, list[float]]:
    """Number of rows, mean, squares and unit of each column; `rows` is the number of training rows that the site sent
    before. Zero rows mean that the site has too few values to send statistics."""

    def fits(n: int, four: Any) -> bool:
        if not (
            isinstance(four, list) and len(four) == 4 and all(map(finite, four)) and four[0] in (0, n) and four[3] > 0
        ):
            return False
        return bool(abs(four[1]) <= 2 * four[3] and 0 <= four[2] <= 16 * four[0])  # values lie within two units

    found: dict[str, list[float]] = _need(told, "spread", lambda v: isinstance(v, dict), "numbers of every column")
    for column, n in rows.items():
        _need(found, column, partial(fits, n), "rows, a mean, squares and a unit that fit together")
    return {column: found[column] for column in rows}


def _need(told: Any, name: str, fits: Callable[[Any], bool], what: str) -> Any:
    value = told.get(name)
    if not fits(value):
        raise Malformed(f"{name!r} must be {what}; it is missing or something else.")
    return value


def _texts(told: Any) -> bool:
    return isinstance(told, list) and len(told) > 0 and all(map(text, told))


def text(told: Any) -> bool:
    """Whether the value is text that can be written; JSON also allows halves of characters."""
    return isinstance(told, str) and told.encode("utf-8", "ignore").decode() == told


def _labels(told: Any) -> bool:
    return isinstance(told, list) and all(text(v) or isinstance(v, bool) or finite(v) for v in told)


def _sizes(told: Mapping[str, Any], clients: Sequence[str]) -> dict[str, list[int]]:
    """The number of rows of every client, and the number of held-out ones."""

    def counts(rows: Any) -> bool:
        return isinstance(rows, list) and len(rows) == len(clients) and all(whole(n, MOST_ROWS) for n in rows)

    names = ("sizes", "n_valid", "n_test")
    found = {name: _need(told, name, counts, f"a number from 0 to {MOST_ROWS} per client") for name in names}
    for client, size, valid, test in zip(clients, *found.values(), strict=True):
        if valid + test >= size:
            raise Malformed(f"Client {client!r} has no row to train on.")
    return found


def _column(told: Any, name: str, *, own: bool, private: bool) -> dict[str, Any]:
    """What a column holds, by its kind."""
    kind = told.get("kind") if isinstance(told, dict) else None
    if kind == "own" and own:
        return {"kind": kind}
    checks: dict[str, Callable[[Any], bool]] = {"missing": lambda v: whole(v, _MANY)}
    if kind == "numeric" and not private:
        checks |= {"present": checks["missing"], "holes": lambda v: isinstance(v, bool)}
    elif kind == "category" and not private:
        checks |= {"rare": checks["missing"]}
        checks |= {"counts": lambda v: isinstance(v, dict) and all(text(t) and whole(n, _MANY) for t, n in v.items())}
    else:
        raise Malformed(f"Column {name!r} has no kind that this run knows; got {kind!r}.")
    return {"kind": kind} | {k: _need(told, k, fits, f"what a column holds ({name})") for k, fits in checks.items()}


# ---- after it --------------------------------------------------------------------------------------------------------


def scores(told: Any, metrics: Sequence[str], most: int) -> dict[str, tuple[float, int]]:
    """Sums over clients of some of these scores."""
    if not isinstance(told, dict) or not set(told) <= set(metrics):
        raise Malformed(f"scores must be of {', '.join(metrics) or 'nothing'}.")
    found = {name: total(value, name, most) for name, value in told.items()}
    for name, (score, count) in found.items():
        if name in _SHARES and not -_ROUNDING <= score <= count * (1 + _ROUNDING):
            raise Malformed(f"{name!r} is from 0 to 1 per client, so {count} clients have no sum of {score:g}.")
    return found


def participation(told: Any, most: int) -> dict[str, float]:
    """How many clients of a site would stay and leave, and the sum of their gains; nothing where none was trained alone."""
    counts = ("stay", "leave", "unknown")
    if not told:
        return {}
    if not (isinstance(told, dict) and set(told) == {*counts, "gain"} and finite(told["gain"])):
        raise Malformed(
            "participation must be how many clients stay, leave or are unknown, and the sum of their gains."
        )
    if not all(whole(told[k], most) for k in counts) or sum(told[k] for k in counts) > most:
        raise Malformed(f"participation must be of at most {most} clients.")
    return {k: told[k] for k in (*counts, "gain")}
