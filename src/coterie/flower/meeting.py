"""The first questions of a run: every site joins, all agree on columns, and what differs between sites is said.

A site refuses a server whose settings are not those of its own copy of the run; another version of coterie may have other
defaults, which are among the settings.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.base.text import listed
from coterie.data.digits import LEVELS
from coterie.errors import DataError, EngineError
from coterie.flower import answers, wire
from coterie.flower.agreement import Agreement, Columns, agreed_classes
from coterie.flower.engine import Failure
from coterie.flower.job import Job
from coterie.flower.nodes import Nodes, Sites
from coterie.secure.roster import known_sites

_MOST_OF_ALL = 0.75  # the share of all rows from which one site is named


@dataclass(frozen=True)
class Met:
    """The sites of a run, their clients, what is known of all clients' rows, public keys, and what is odd."""

    sites: Sites
    clients: dict[str, list[str]]
    blind: dict[str, Any]
    keys: dict[str, str]
    odd: list[str]


def joining(job: Job) -> dict[str, Any]:
    """The first message, by which a site sees whether it would work on the same run."""
    from coterie import __version__

    return {"do": "join", "settings": job.settings, "version": __version__}


def meet(job: Job, nodes: Nodes, count: int, tell: Callable[[str], None]) -> Met:
    """All sites join and agree; the first questions, before any training."""
    there = _named(nodes, count)
    for site, node in there.items():
        tell(f"{site} is node {node}")
    ask = _asking(nodes, there)
    keys: dict[str, str] = {}

    def joined(site: str, told: dict[str, Any]) -> dict[str, Any]:
        if told.get("settings") != job.settings:
            raise wire.Malformed("It has another version of coterie. Install the server's.")
        if job.secure is not None:
            keys[site] = answers.key(told, known_sites(job.secure), keys)
        found = answers.joined(told, job.data, private=job.privacy is not None)
        return found | {"changed": told.get("table") == "changed"}

    summaries = ask(joining(job), joined)
    _require_apart(summaries)
    clients = {s: list(told["clients"]) for s, told in summaries.items()}
    columns = Columns(summaries, job.data.get("max_categories", 50))
    _medians(columns, summaries, ask)
    rows = {
        s: {c: t["columns"][c]["present"] + t["columns"][c]["missing"] for c in columns.numeric}
        for s, t in summaries.items()
    }
    spreads = {}
    if columns.numeric:
        spreads = ask({"do": "spread", "fills": columns.fills()}, lambda site, told: answers.spread(told, rows[site]))
    plan = columns.plan(list(spreads.values()))
    agreement = Agreement(plan, list(job.data.get("classes") or ()) or agreed_classes(summaries))
    sites = Sites(nodes, secrets.token_hex(8), where=dict(there))
    position = {c: i for i, c in enumerate(sorted(c for own in clients.values() for c in own))}
    sites.tickets = {s: secrets.token_hex(16) for s in clients}
    begin = {"do": "begin", "run": sites.run, "agreement": agreement.to_json(), "n_clients": len(position)}
    each = {
        s: begin | {"places": {c: position[c] for c in own}, "ticket": sites.tickets[s]} for s, own in clients.items()
    }
    ask(each, lambda _, told: told)
    odd = list(oddities(summaries))
    for line in odd:
        tell(line)
    return Met(sites, clients, _blind(job, summaries, agreement, columns), keys, odd)


def _named(nodes: Nodes, count: int) -> dict[str, int]:
    """The sites by name: those that a hub has registered, or numbers in the order of the nodes."""
    names: Mapping[int, str] = getattr(nodes, "names", {})
    there = sorted(nodes.connected(), key=lambda node: (node not in names, names.get(node, ""), node))[:count]
    return {names.get(node, f"site {i + 1}"): node for i, node in enumerate(there)}


def _require_apart(summaries: Mapping[str, Any]) -> None:
    owners: dict[str, str] = {}
    for site, told in summaries.items():
        for client in told["clients"]:
            if client in owners:
                raise DataError(
                    f"Client {wire.one_line(client)!r} is at {owners[client]} and at {site}; every client has one site. "
                    "Rename one."
                )
            owners[client] = site


def oddities(summaries: Mapping[str, Any]) -> Iterator[str]:
    """Sentences on what differs between sites and would otherwise go unnoticed."""
    for site, told in summaries.items():
        if told.get("changed"):
            yield f"{site}'s table has changed since its last run: other rows are held out now, so scores do not compare"
    rows = {s: sum(t["sizes"]) for s, t in summaries.items() if "sizes" in t}
    most = max(rows, key=rows.__getitem__, default="")
    if len(rows) > 2 and rows[most] > _MOST_OF_ALL * sum(rows.values()):
        yield f"{most} has {rows[most] / sum(rows.values()):.0%} of all rows, and weighs as much in a mean over rows"
    for column in next(iter(summaries.values()))["columns"]:
        found = {s: set(t["columns"][column].get("counts", ())) for s, t in summaries.items()}
        for site, mine in found.items():
            alone = mine - set().union(*(other for s, other in found.items() if s != site))
            if alone and len([s for s in found if found[s]]) > 1:
                yield f"only {site} has {listed(sorted(alone))} in column {wire.one_line(column)}; check its spelling"


def _medians(columns: Columns, summaries: Mapping[str, Any], ask: Any) -> None:
    """The medians of all sites' values, found byte by byte."""
    if not columns.with_holes:
        return
    most = {s: {c: t["columns"][c]["present"] for c in columns.with_holes} for s, t in summaries.items()}
    for level in range(LEVELS):
        heads = columns.prefixes()
        asked = {c: len(h) for c, h in heads.items()}
        found = ask(
            {"do": "digits", "level": level, "prefixes": heads},
            lambda site, told: answers.digits(told, asked, most[site]),  # noqa: B023
        )
        columns.narrow(list(found.values()))


def _blind(job: Job, summaries: Mapping[str, Any], agreement: Agreement, columns: Columns) -> dict[str, Any]:
    outputs = [row["column"] for row in agreement.plan if row["kind"] != "dropped"]
    named = job.data.get("categories") or {}
    own = [c for c, kind in columns.kinds.items() if kind == "own"]
    outputs += [name for c in own for name in ([f"{c}={value}" for value in named[c]] if c in named else [c])]
    told: dict[str, Any] = {"columns": outputs, "classes": agreement.classes, "dtype": job.data.get("dtype", "float32")}
    sizes: dict[str, int] = {}
    labels: dict[str, str] = {}
    for one in summaries.values():
        if "sizes" in one:
            train = np.array(one["sizes"]) - np.array(one["n_valid"]) - np.array(one["n_test"])
            sizes |= dict(zip(one["clients"], train.tolist(), strict=True))
        else:
            sizes |= dict.fromkeys(one["clients"], 1)
        labels |= dict(zip(one["clients"], one.get("clusters", []), strict=False))
    if labels:
        names = sorted(set(labels.values()))
        told["clusters"] = {c: names.index(label) for c, label in labels.items()}
    return told | {"n_train": sizes}


def _asking(nodes: Nodes, where: Mapping[str, int]) -> Callable[..., dict[str, Any]]:
    """A question that all sites must answer; `check(site, answer)` returns the checked answer."""

    def ask(head: dict[str, Any], check: Callable[[str, dict[str, Any]], Any]) -> dict[str, Any]:
        each = head if "do" not in head else dict.fromkeys(where, head)
        got = nodes.exchange({node: wire.pack(each[site]) for site, node in where.items()})
        told = {}
        for site, node in where.items():
            answer = got.get(node, Failure("no answer in time"))
            try:
                if isinstance(answer, Failure):
                    raise wire.Malformed(answer.reason)
                told[site] = check(site, wire.unpack(answer, 64 << 20)[0])
            except wire.Malformed as why:
                raise EngineError(f"{site} (node {node}) cannot take part: {wire.one_line(why)}") from None
        return told

    return ask
