"""The server's side of a deployment: it finds the sites, agrees on columns, and then runs the usual training loop.

Its folder holds a checkpoint after every round, the sites and their last answers, a log, and the ledger of a private run.
A server that is started again with the same folder continues where it stopped.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from coterie.base.disk import add_lines, locked, unlinked, write_text, writing
from coterie.base.tree import unflatten
from coterie.data.federation import Federation
from coterie.engines.secure import SecureSums, decoded, number
from coterie.errors import ConfigError, CoterieWarning, EngineError
from coterie.exchange.messages import shown_to
from coterie.flower import answers, wire
from coterie.flower.engine import Failure, SitesEngine, masked, unpacked
from coterie.flower.job import Job
from coterie.flower.meeting import meet
from coterie.flower.nodes import Nodes, Sites
from coterie.privacy.ledger import BudgetSpent
from coterie.secure.server import Answer, SecureServer
from coterie.secure.store import Store
from coterie.training import checkpoint, cohorts
from coterie.training.result import FILES, RECEIPT
from coterie.training.run import Run

SITES, EVENTS, HISTORY, RESULT = "sites.json", "events.jsonl", "history.parquet", "deployment.json"
FAILED = "failed.txt"  # why a run ended, where starting it again would not help
ROUNDS = "rounds.jsonl"  # a line per round, as it is finished
TRUST = (
    "sites clip their clients' updates; the server is trusted to add them up, add the noise and forget the sums of sites, "
    "which it sees before the noise; clients need not trust one another"
)


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
    with locked(folder, private=job.privacy is not None):
        resume = (folder / checkpoint.FILE).exists() and (folder / SITES).exists()
        if not resume and any((folder / name).exists() for name in (checkpoint.FILE, *FILES, RECEIPT)):
            raise ConfigError(f"{folder} holds a run that has no sites. Choose another folder, or empty it.")
        began = time.monotonic()
        while len(list(nodes.connected())) < sites and time.monotonic() - began < patience:
            time.sleep(0.2)
        found = len(list(nodes.connected()))
        if found < sites and not resume:
            raise EngineError(
                f"{sites} sites were to join within {patience:g} s; {found} did. Start the others, or wait longer."
            )
        server = _again(job, nodes, folder) if resume else Server.met(job, nodes, folder, sites, tell)
        if missing := server.sites.gather(max(0.0, patience - (time.monotonic() - began))) if resume else []:
            tell(f"goes on without {', '.join(missing)}, which did not come back within {patience:g} s")
        run, engine = server.begin(resume)
        if found > sites and not resume:
            tell(f"{found - sites} nodes that are connected were left out: the run is to have {sites} sites")
            engine.note(None, "server", "join", f"{found - sites} of {found} connected nodes were left out")
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
            told = str(spent) if run.session is None else run.session.why_spent(run.done, spent)
            run.stop(told)
            warnings.warn(f"Round {run.done + 1} was not made: {told}", CoterieWarning, stacklevel=3)
            return
        finally:
            server.log(engine)
        epsilon = None if run.session is None else run.session.ledger.costs().epsilon(run.session.privacy.delta)
        line = {"round": run.done, "of": server.job.rounds, "epsilon": epsilon, "time": round(time.time(), 1)} | row
        add_lines(server.folder / ROUNDS, [json.dumps(line, default=str)], private=run.privacy is not None)
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
    """What a server knows of its sites and keeps in its folder."""

    job: Job
    folder: Path
    sites: Sites
    clients: dict[str, list[str]]  # of every site
    blind: dict[str, Any]  # what is known of all clients' rows: columns, classes, sizes
    tags: dict[str, dict[str, str | None]] = field(default_factory=dict)  # by rounds done, the last two
    starts: int = 0  # grows when the server is started again
    keys: dict[str, str] = field(default_factory=dict)  # the public key of every site, in a run with secure sums

    @classmethod
    def met(cls, job: Job, nodes: Nodes, folder: Path, count: int, tell: Callable[[str], None]) -> Server:
        """All sites join and agree, before any training; the log has what is odd about them."""
        found = meet(job, nodes, count, tell)
        lines = [{"site": None, "phase": "join", "why": line} for line in found.odd]
        add_lines(folder / EVENTS, map(json.dumps, lines), private=job.privacy is not None)
        return cls(job, folder, found.sites, found.clients, found.blind, keys=found.keys)

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
        clusters, public = told.get("clusters"), set(self.job.data.get("public", ()))
        return Federation(
            x=x, y=y,
            offsets=np.concatenate([[0], np.cumsum(n_train)]).astype(np.int64), n_train=n_train, clients=pd.Index(order),
            kind=self.job.data["kind"], classes=None if told["classes"] is None else tuple(told["classes"]),
            columns=tuple(told["columns"]), clusters=None if clusters is None else np.array([clusters[c] for c in order]),
            declared=frozenset({"kind"} | public | ({"classes"} if self.job.data.get("classes") else set())),
            filtered=True,  # the clients' names come from the sites' rows
        )  # fmt: skip

    def begin(self, resume: bool) -> tuple[Run, SitesEngine]:
        job, federation = self.job, self.federation()
        done = checkpoint.read(self.folder / checkpoint.FILE)[1]["done"] if resume else 0
        self.starts = max(self.starts + 1, int(time.time()))
        engine = SitesEngine(
            job.algorithm, self.sites.exchange, self.places(), self.sites.run, dict(self.tags.get(str(done), {})),
            number=self.starts << 32,
        )  # fmt: skip
        engine.sums = self.sums(engine)
        self.save(engine, done)  # first: without it a checkpoint is of no use
        run = Run(
            job.algorithm, federation, job.task(federation), job.seed, cohorts.sampler(job.cohort), (), engine, self.folder,
            privacy=job.privacy, rounds=job.rounds, choices=job.choices,
        )  # fmt: skip
        run.begin(resume=resume, overwrite=False)
        if not resume:
            run.save()
        return run, engine

    def sums(self, engine: SitesEngine) -> SecureSums | None:
        """The server's side of secure sums."""
        if self.job.secure is None:
            return None

        def note(site: str, why: str) -> None:
            engine.note(None, site, "secure sums", why)

        def tell(messages: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any] | str]:
            head = {"do": "secure", "run": self.sites.run}
            soon = any(told["step"] != "open" for told in messages.values())
            got = self.sites.exchange(
                {site: wire.pack(head | {"told": told}) for site, told in messages.items()}, soon=soon
            )
            found: dict[str, dict[str, Any] | str] = {}
            for site, answer in got.items():
                try:
                    found[site] = unpacked(answer, 64 << 20)[0]
                except wire.Malformed as why:
                    found[site] = str(why)
            return found

        store = Store(self.folder / "secure")
        present = self.sites.present
        return SecureSums(SecureServer(self.job.secure, self.sites.run, self.keys, tell, store, present, note))

    def save(self, engine: SitesEngine, done: int) -> None:
        self.tags = {k: v for k, v in self.tags.items() if int(k) == done - 1} | {str(done): dict(engine.base)}
        kept: dict[str, Any] = {"run": self.sites.run, "tickets": self.sites.tickets, "clients": self.clients}
        kept |= {"blind": self.blind, "tags": self.tags, "starts": self.starts, "keys": self.keys}
        write_text(self.folder / SITES, json.dumps(kept), private=True)

    def log(self, engine: SitesEngine) -> None:
        """Add what was noted to the log."""
        add_lines(self.folder / EVENTS, map(json.dumps, engine.events), private=self.job.privacy is not None)
        engine.events.clear()

    def finish(self, run: Run, engine: SitesEngine) -> dict[str, Any]:
        """Send every site the part of the server's state that its clients may see; the site keeps their results."""
        with writing(self.folder / HISTORY) as partial:
            pd.DataFrame(run.history).to_parquet(partial)
        if run.session is not None:
            receipt = replace(run.session.receipt(), **self._trust()).signed(run.session.ledger)
            write_text(self.folder / RECEIPT, receipt.to_json())

        def told(orders: Mapping[str, Any]) -> dict[str, bytes | Failure]:
            messages = {}
            engine.number += 1
            for site, own in engine.places.items():
                tensors, plain = checkpoint.pack(shown_to(run.state, own), run.env.states)
                state = {k: t for k, t in tensors.items() if k.startswith("state/")}
                head = {"do": "finish", "run": self.sites.run, "round": run.done, "have": engine.tag(site)}
                head |= {"plain": plain, "number": engine.number, "secure": orders.get(site)}
                messages[site] = wire.pack(head, unflatten(state))
            return self.sites.exchange(messages)

        if engine.sums is not None and self.job.privacy is None:
            scores, stay = self._summed_scores(engine, engine.sums.server, told, run.done, run.task.metrics), {}
        else:
            got = told({})
            scores, stay = self._scores(engine, got, run.task.metrics), self._stay(engine, got)
        result = self._about(run) | {"scores": scores} | stay
        self.log(engine)
        write_text(self.folder / RESULT, json.dumps(result, indent=1, default=str))
        return result

    def _trust(self) -> dict[str, Any]:
        """What a private run's receipt says of server and sites."""
        secure = self.job.secure
        return {"trust": TRUST} if secure is None or secure.noise != "sites" else secure.trust

    def _summed_scores(
        self, engine: SitesEngine, server: SecureServer, told: Any, done: int, metrics: Sequence[str]
    ) -> dict[str, float]:
        """Mean scores over all clients from a secure sum of scores and numbers; the sites keep their results in any case."""

        def put(orders: dict[str, dict[str, Any]]) -> dict[str, Answer]:
            length = 2 * len(metrics)
            return masked(told(orders), orders, length, lambda s, why: engine.note(None, s, "finish", why))

        try:
            found = server.add(number(done), f"scores {' '.join(metrics)}", 2 * len(metrics), put)
        except EngineError as why:
            engine.note(None, "server", "finish", str(why))
            return {}
        sums = decoded(found.numbers).reshape(-1, 2)
        return {name: total / many for name, (total, many) in zip(metrics, sums, strict=True) if many > 0.5}

    def _scores(
        self, engine: SitesEngine, got: Mapping[str, bytes | Failure], metrics: Sequence[str]
    ) -> dict[str, float]:
        """Mean scores over all clients; nothing with a privacy budget."""
        sums: dict[str, tuple[float, int]] = {}
        for site, answer in got.items():
            try:
                if isinstance(answer, Failure):
                    raise wire.Malformed(answer.reason)
                allowed = metrics if self.job.privacy is None else ()
                told = answers.scores(wire.unpack(answer, 1 << 20)[0].get("scores"), allowed, len(engine.places[site]))
            except wire.Malformed as why:
                engine.note(None, site, "finish", str(why))
                continue
            for name, (total, count) in told.items():
                before = sums.get(name, (0.0, 0))
                sums[name] = (before[0] + total, before[1] + count)
        return {name: total / count for name, (total, count) in sums.items() if count}

    def _stay(self, engine: SitesEngine, got: Mapping[str, bytes | Failure]) -> dict[str, Any]:
        """How many clients would stay, and their mean gain over training alone, as sites say; nothing with a budget."""
        sums: dict[str, float] = {}
        for site, answer in got.items() if self.job.privacy is None else ():
            try:
                told = unpacked(answer, 1 << 20)[0].get("participation")
                one = answers.participation(told, len(engine.places[site]))
            except wire.Malformed as why:
                engine.note(None, site, "finish", str(why))
                continue
            sums = {name: sums.get(name, 0) + value for name, value in one.items()} or sums
        if not sums:
            return {}
        known = sums["stay"] + sums["leave"]
        mean = sums.pop("gain") / known if known else None
        return {"participation": sums | {"mean_gain": mean}}

    def _about(self, run: Run) -> dict[str, Any]:
        return run.about | {
            "algorithm": repr(run.algorithm), "seed": run.seed, "rounds": run.done, "finished": run.done >= run.rounds,
            "sites": len(self.clients), "clients": len(self.order), "dropped": run.dropped,
        }  # fmt: skip


def _again(job: Job, nodes: Nodes, folder: Path) -> Server:
    """The sites of a run that was interrupted."""
    try:
        kept = json.loads(unlinked(folder / SITES).read_text("utf-8"))
        sites = Sites(nodes, kept["run"], kept["tickets"])
        clients, blind, starts = kept["clients"], kept["blind"], kept.get("starts", 0)
        server = Server(job, folder, sites, clients, blind, kept["tags"], starts, kept.get("keys", {}))
    except wire.ODD:
        raise ConfigError(
            f"{folder / SITES} is damaged. Bring it back from a copy, or choose another folder."
        ) from None
    return server
