"""The server's side of a deployment: who is there, what was agreed, and then the training loop that every run has.

Its folder holds a checkpoint after every round, the sites and what they answered last, a log, and of a private run the
ledger. A server that is started again with the same folder goes on where it stopped.
"""

from __future__ import annotations

import json
import secrets
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd
import torch

from coterie.data.federation import Federation
from coterie.data.sites import LEVELS, Agreement, Columns, agreed_classes
from coterie.disk import locked, write_text, writing
from coterie.errors import CoterieWarning, DataError, EngineError
from coterie.exchange.messages import shown_to
from coterie.flower import wire
from coterie.flower.engine import Failure, SitesEngine
from coterie.flower.job import Job
from coterie.privacy.ledger import BudgetSpent
from coterie.training import checkpoint, cohorts
from coterie.training.result import RECEIPT
from coterie.training.run import Run
from coterie.tree import unflatten

SITES, EVENTS, HISTORY, RESULT = "sites.json", "events.jsonl", "history.parquet", "deployment.json"
TRUST = (
    "sites clip their clients' updates; the server is trusted to add them up, add the noise and forget the sums of sites, "
    "which it sees before the noise; clients need not trust one another"
)
_TRUNCATED = 300  # characters of a site's error that are shown


class Nodes(Protocol):
    """Who can be reached now, and how."""

    def connected(self) -> Iterable[int]: ...

    def exchange(self, messages: Mapping[int, bytes]) -> Mapping[int, bytes | Failure]: ...


@dataclass
class Sites:
    """Which node a site's clients are at; a site is known again by its ticket after a restart."""

    nodes: Nodes
    run: str
    tickets: dict[str, str] = field(default_factory=dict)
    where: dict[str, int] = field(default_factory=dict)
    _strangers: set[int] = field(default_factory=set)

    def exchange(self, messages: Mapping[str, bytes]) -> dict[str, bytes | Failure]:
        self.find()
        there = set(self.nodes.connected())
        sent = {self.where[s]: m for s, m in messages.items() if self.where.get(s) in there}
        got = self.nodes.exchange(sent) if sent else {}
        gone = Failure("the site is not connected")
        late = Failure("no answer in time")
        return {s: got.get(self.where[s], late) if self.where.get(s) in sent else gone for s in messages}

    def find(self) -> None:
        """Ask nodes that are new here whether they are a site that was lost."""
        there = set(self.nodes.connected())
        if all(self.where.get(site) in there for site in self.tickets):
            return
        new = there - set(self.where.values()) - self._strangers
        if not new:
            return
        hello = wire.pack({"do": "hello", "run": self.run})
        for node, answer in self.nodes.exchange(dict.fromkeys(new, hello)).items():
            try:
                ticket = None if isinstance(answer, Failure) else wire.unpack(answer, 1 << 20)[0].get("ticket")
            except wire.Malformed:
                ticket = None
            sites = [
                s
                for s, t in self.tickets.items()
                if isinstance(ticket, str) and secrets.compare_digest(t.encode(), ticket.encode("utf-8", "replace"))
            ]
            for site in sites:
                self.where[site] = node
            if not sites:
                self._strangers.add(node)


def serve(
    job: Job,
    nodes: Nodes,
    out: str | Path,
    *,
    sites: int,
    patience: float = 300.0,
    tell: Callable[[str], None] = print,
    every_round: Callable[[Run], None] | None = None,
) -> dict[str, Any]:
    """Wait for so many sites, agree, train, and let every site keep its clients' results; returns what the server knows."""
    folder = Path(out)
    with locked(folder):
        resume = (folder / checkpoint.FILE).exists() and (folder / SITES).exists()
        began = time.monotonic()
        while len(list(nodes.connected())) < sites and time.monotonic() - began < patience:
            time.sleep(0.2)
        found = len(list(nodes.connected()))
        if found < sites and not resume:
            raise EngineError(
                f"{sites} sites were to join within {patience:g} s; {found} did. Start the others, or wait longer."
            )
        server = _again(job, nodes, folder) if resume else _meet(job, nodes, folder, sites)
        run, engine = server.begin(resume)
        try:
            _rounds(run, engine, server, tell, every_round)
            return server.finish(run, engine)
        finally:
            if run.session is not None:
                run.session.ledger.close()


def _rounds(run: Run, engine: SitesEngine, server: Server, tell: Any, every_round: Any) -> None:
    while run.done < server.job.rounds and "stopped" not in run.about:
        try:
            row = run.one_round()
        except BudgetSpent as spent:
            run.stop(str(spent))
            warnings.warn(f"Round {run.done + 1} was not made: {spent}", CoterieWarning, stacklevel=3)
            return
        finally:
            server.log(engine)
        server.save(engine, run.done)  # before the checkpoint, which may then be of this round or of the one before
        run.save()
        loss = "" if run.privacy is not None else f", loss {row['loss']:.4g}"
        tell(
            f"round {run.done} of {server.job.rounds}: {row['clients'] - row['lost']} of {row['clients']} clients{loss}"
        )
        if every_round is not None:
            every_round(run)


@dataclass
class Server:
    """What a server knows of its sites, and keeps in its folder."""

    job: Job
    folder: Path
    sites: Sites
    clients: dict[str, list[str]]  # of every site
    blind: dict[str, Any]  # what is known of all clients' rows: columns, classes, sizes
    tags: dict[str, dict[str, str | None]] = field(default_factory=dict)  # by rounds done, the last two

    @property
    def order(self) -> list[str]:
        return sorted(c for clients in self.clients.values() for c in clients)

    def places(self) -> dict[str, Any]:
        position = {c: i for i, c in enumerate(self.order)}
        return {s: np.sort(np.array([position[c] for c in clients], np.int64)) for s, clients in self.clients.items()}

    def federation(self) -> Federation:
        """All clients without their rows."""
        told, order = self.blind, self.order
        n_train = np.array([told["n_train"][c] for c in order], np.int64)
        dtype = getattr(torch, told["dtype"])
        y = torch.zeros(1, dtype=dtype if told["classes"] is None else torch.int64).expand(int(n_train.sum()))
        x = torch.zeros(1, len(told["columns"]), dtype=dtype).expand(len(y), -1)
        clusters = told.get("clusters")
        return Federation(
            x=x, y=y,
            offsets=np.concatenate([[0], np.cumsum(n_train)]).astype(np.int64), n_train=n_train, clients=pd.Index(order),
            kind=self.job.data["kind"], classes=None if told["classes"] is None else tuple(told["classes"]),
            columns=tuple(told["columns"]), clusters=None if clusters is None else np.array([clusters[c] for c in order]),
        )  # fmt: skip

    def begin(self, resume: bool) -> tuple[Run, SitesEngine]:
        job, federation = self.job, self.federation()
        if resume:
            done = checkpoint.read(self.folder / checkpoint.FILE)[1]["done"]
            base = self.tags.get(str(done), {})
        else:
            base = {}
        engine = SitesEngine(job.algorithm, self.sites.exchange, self.places(), self.sites.run, dict(base))
        run = Run(
            job.algorithm, federation, job.task(federation), job.seed, cohorts.sampler(job.cohort), (), engine, self.folder,
            privacy=job.privacy, rounds=job.rounds, choices=job.choices,
        )  # fmt: skip
        run.begin(resume=resume, overwrite=False)
        if not resume:
            self.save(engine, 0)
            run.save()
        return run, engine

    def save(self, engine: SitesEngine, done: int) -> None:
        self.tags = {k: v for k, v in self.tags.items() if int(k) == done - 1} | {str(done): dict(engine.base)}
        kept = {"run": self.sites.run, "tickets": self.sites.tickets, "clients": self.clients, "blind": self.blind}
        write_text(self.folder / SITES, json.dumps(kept | {"tags": self.tags}))

    def log(self, engine: SitesEngine) -> None:
        """Add what was noted to the log."""
        with (self.folder / EVENTS).open("a", encoding="utf-8") as file:
            for event in engine.events:
                file.write(json.dumps(event) + "\n")
        engine.events.clear()

    def finish(self, run: Run, engine: SitesEngine) -> dict[str, Any]:
        """Every site is told what its clients may know of the server's state, and keeps their results."""
        messages = {}
        for site, own in engine.places.items():
            tensors, plain = checkpoint.pack(shown_to(run.state, own), run.env.states)
            state = {k: t for k, t in tensors.items() if k.startswith("state/")}
            head = {"do": "finish", "run": self.sites.run, "round": run.done, "have": engine.tag(site), "plain": plain}
            messages[site] = wire.pack(head, unflatten(state))
        sums: dict[str, list[float]] = {}
        for site, answer in self.sites.exchange(messages).items():
            try:
                if isinstance(answer, Failure):
                    raise wire.Malformed(answer.reason)
                told = wire.unpack(answer, 1 << 20)[0].get("scores", {})
                for name, (total, count) in told.items():
                    before = sums.setdefault(str(name), [0.0, 0.0])
                    before[0], before[1] = before[0] + float(total), before[1] + int(count)
            except (wire.Malformed, ValueError, TypeError, AttributeError) as why:
                engine.note(None, site, "finish", str(why))
        self.log(engine)
        result = self._about(run) | {"scores": {m: t / n for m, (t, n) in sums.items() if n}}
        with writing(self.folder / HISTORY) as partial:
            pd.DataFrame(run.history).to_parquet(partial)
        if run.session is not None:
            write_text(self.folder / RECEIPT, replace(run.session.receipt(), trust=TRUST).to_json())
        write_text(self.folder / RESULT, json.dumps(result, indent=1, default=str))
        return result

    def _about(self, run: Run) -> dict[str, Any]:
        return run.about | {
            "algorithm": repr(run.algorithm), "seed": run.seed, "rounds": run.done, "finished": run.done >= run.rounds,
            "sites": len(self.clients), "clients": len(self.order), "dropped": run.dropped,
        }  # fmt: skip


# ---- the start -------------------------------------------------------------------------------------------------------


def _meet(job: Job, nodes: Nodes, folder: Path, count: int) -> Server:
    """All sites join and agree; the first questions, before any training."""
    there = sorted(nodes.connected())[:count]
    ask = _asking(nodes, {f"site {i + 1}": node for i, node in enumerate(there)})
    summaries = ask({"do": "join"})
    owners: dict[str, str] = {}
    for site, told in summaries.items():
        for client in told["clients"]:
            if client in owners:
                raise DataError(
                    f"Client {client!r} is at {owners[client]} and at {site}; every client has one site. Rename one."
                )
            owners[client] = site
    clients = {s: list(told["clients"]) for s, told in summaries.items()}
    columns = Columns(summaries, job.data.get("max_categories", 50))
    if columns.with_holes:
        for level in range(LEVELS):
            answers = ask({"do": "digits", "level": level, "prefixes": columns.prefixes()})
            columns.narrow([a["digits"] for a in answers.values()])
    spreads = ask({"do": "spread", "fills": columns.fills()}) if columns.numeric else {}
    plan = columns.plan([a["spread"] for a in spreads.values()])
    agreement = Agreement(plan, agreed_classes(summaries))
    sites = Sites(nodes, secrets.token_hex(8), where=dict(zip(clients, there, strict=True)))
    server = Server(job, folder, sites, clients, _blind(job, summaries, agreement, columns))
    position = {c: i for i, c in enumerate(server.order)}
    sites.tickets = {s: secrets.token_hex(16) for s in clients}
    begin = {"do": "begin", "run": sites.run, "agreement": agreement.to_json(), "n_clients": len(position)}
    ask(
        {s: begin | {"places": {c: position[c] for c in own}, "ticket": sites.tickets[s]} for s, own in clients.items()}
    )
    return server


def _blind(job: Job, summaries: Mapping[str, Any], agreement: Agreement, columns: Columns) -> dict[str, Any]:
    outputs = [row["column"] for row in agreement.plan if row["kind"] != "dropped"]
    outputs += [c for c, kind in columns.kinds.items() if kind == "own"]
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


def _asking(nodes: Nodes, where: Mapping[str, int]) -> Callable[[dict[str, Any]], dict[str, dict[str, Any]]]:
    """A question to all sites that must be answered by all."""

    def ask(head: dict[str, Any]) -> dict[str, dict[str, Any]]:
        each = head if "do" not in head else dict.fromkeys(where, head)
        answers = nodes.exchange({node: wire.pack(each[site]) for site, node in where.items()})
        told = {}
        for site, node in where.items():
            answer = answers.get(node, Failure("no answer in time"))
            if isinstance(answer, Failure):
                raise EngineError(f"{site} cannot take part: {answer.reason[:_TRUNCATED]}")
            told[site] = wire.unpack(answer, 64 << 20)[0]
        return told

    return ask


def _again(job: Job, nodes: Nodes, folder: Path) -> Server:
    """The sites of a run that was interrupted."""
    kept = json.loads((folder / SITES).read_text("utf-8"))
    sites = Sites(nodes, kept["run"], kept["tickets"])
    sites.find()
    return Server(job, folder, sites, kept["clients"], kept["blind"], kept["tags"])
