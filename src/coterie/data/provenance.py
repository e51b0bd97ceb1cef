"""Which facts about the shape of a federation were declared public, and which were read from clients' data.

A class that only one client has adds an output to the model, so the model's shape reveals something about that client. So a
private run needs such facts from the user (`federation.declare_public("classes")`, `classes=public([...])`), or its receipt
is void. Sample weights need no declaration: every client divides its own weights by its own smallest.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from coterie.base.text import listed
from coterie.errors import ConfigError

if TYPE_CHECKING:
    from coterie.data.federation import Federation

FACTS = {
    "classes": "the classes",
    "kind": "whether classes or numbers are predicted",
    "clusters": "the groups of clients",
    "clients": "which clients take part",
    "inputs": "what the columns hold, and the names of categories or characters,",
}

_FILE = ", or in a run's file: public = [{!r}] under [data]"
_BEFORE = {
    "clients": _FILE.format("clients"),
    "clusters": _FILE.format("clusters"),
    "classes": ", or name them in advance: classes=privacy.public([...])",
    "inputs": ", or say it in advance: categories=privacy.public({column: [...]}), {} where all columns hold numbers",
}


def checked_facts(facts: Iterable[str]) -> frozenset[str]:
    """The names of facts; an unknown name is refused."""
    found = frozenset(facts)
    for odd in sorted(found - set(FACTS)):
        raise ConfigError(f"Facts to declare public are {', '.join(FACTS)}; got {odd!r}. Name some of these.")
    return found


def shape_facts(federation: Federation, *, groups: bool) -> list[str]:
    """The facts that matter for a run: those of its target, its groups if it uses them, and what chose its clients."""
    found = ["kind"]
    if federation.classes is not None:
        found.append("classes")
    if groups and federation.clusters is not None:
        found.append("clusters")
    if federation.filtered:
        found.append("clients")
    if federation.encoded:
        found.append("inputs")
    return found


def undeclared(federation: Federation, *, groups: bool) -> list[str]:
    """A sentence for every fact that was read from clients' data."""
    return [
        f"unaccounted: {FACTS[fact]} came from the clients' data; if this is known without them, call "
        f"federation.declare_public({fact!r}){_BEFORE.get(fact, '')}"
        for fact in shape_facts(federation, groups=groups)
        if fact not in federation.declared
    ]


def declared(federation: Federation, *, groups: bool) -> list[str]:
    """The declarations of the user that a receipt lists."""
    facts = [f for f in shape_facts(federation, groups=groups) if f in federation.declared]
    told = {
        "classes": f"the classes {', '.join(map(repr, federation.classes or ()))}",
        "inputs": f"the inputs {listed(federation.columns or (), 50)}".strip(),
    }
    return [f"declared public by the user: {told.get(f, FACTS[f])}" for f in facts] + [
        f"public schema: {federation.n_features} feature{'s' * (federation.n_features != 1)}"
    ]
