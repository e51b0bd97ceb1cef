"""A study on sites: one exchange of questions whose answers are sums, a page at the server, and each site's own numbers.

What is asked and what is made of it comes with the job (`Ends`); here are the sites, the messages, and who is lost."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from coterie.base.disk import add_lines, locked, write_text
from coterie.base.tree import Tree, n_bytes
from coterie.data.federation import Federation
from coterie.engines.base import Env, answered
from coterie.errors import ConfigError, EngineError
from coterie.exchange.messages import Ask, Ints, Reply
from coterie.flower import wire
from coterie.flower.engine import Failure, SitesEngine
from coterie.flower.job import Job
from coterie.flower.nodes import Nodes
from coterie.flower.server import EVENTS, RESULT, ROUNDS, Server
from coterie.flower.trials import Trials

FEWEST = 2  # sites of a study


class Ends(Protocol):
    """The two ends of a study."""

    algorithms: tuple[str, ...]
    """What is trained in it."""

    def exchange(self, job: Job, federation: Federation) -> Generator[Ask, Reply, Any]: ...

    def decide(self, found: Any, job: Job, federation: Federation, trials: Trials, tell: Callable[[str], None]) -> Any:
        """The decision from what was found, with what is trained."""
        ...

    def conclude(self, made: Any, folder: Path) -> dict[str, Any]:
        """Write the server's page; returns what is logged."""
        ...

    def share(self, found: Any, made: Any, federation: Federation, own: Ints) -> tuple[dict[str, Any], Tree]:
        """What a site with these clients receives."""
        ...

    def keep(
        self, told: dict[str, Any], tensors: Tree, job: Job, federation: Federation, own: Ints, folder: Path
    ) -> None:
        """Write a site's own page and models."""
        ...


def serve_study(
    job: Job,
    nodes: Nodes,
    out: str | Path,
    *,
    sites: int,
    patience: float = 300.0,
    tell: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Wait for so many sites, agree on columns, ask, decide, and tell every site its own numbers."""
    folder, ends = Path(out), job.ends
    assert ends is not None
    with locked(folder):
        if (folder / RESULT).exists():
            raise ConfigError(f"{folder} holds a result already. Choose another folder, or empty it.")
        began = time.monotonic()
        while len(list(nodes.connected())) < sites and time.monotonic() - began < patience:
            time.sleep(0.2)
        there = min(len(list(nodes.connected())), sites)
        fewest = FEWEST if job.secure is None else job.secure.threshold
        if there < fewest:
            raise EngineError(f"A study needs {fewest} sites; {there} joined within {patience:g} s. Start the others.")
        if there < sites:
            tell(f"{there} of {sites} sites joined; the study is of these")
        server = Server.met(job, nodes, folder, there, tell)
        federation = server.federation()
        task = job.task(federation)
        send = partial(server.sites.exchange, soon=True)
        engine = SitesEngine(job.algorithm, send, server.places(), server.sites.run, number=int(time.time()) << 32)
        engine.sums = server.sums(engine)
        env = Env(task, federation, task.init(job.seed, federation.x.dtype), job.seed, states=engine.states(federation))
        exchange, up, asked = ends.exchange(job, federation), 0, 0
        lost: set[int] = set()

        def run(ask: Ask, env: Env) -> Reply:
            nonlocal up, asked
            reply = engine.run(ask, env)
            line = {"round": asked + 1, "ask": ask.name, "time": round(time.time(), 1), "lost": len(reply.lost)}
            add_lines(folder / ROUNDS, [json.dumps(line)])
            up, asked = up + n_bytes(reply.values), asked + 1
            new = set(reply.lost.tolist()) - lost
            for client in sorted(new):
                tell(f"{wire.one_line(federation.clients[client])} did not answer '{ask.name}' and is left out")
            lost.update(new)
            return reply

        try:
            found = answered(exchange, run, env)
            trials = Trials(engine, federation, run)
            made = ends.decide(found, job, federation, trials, tell)
            told = ends.conclude(made, folder)
            _share(ends, found, made, federation, engine, server.sites, lost)
        finally:
            add_lines(folder / EVENTS, map(json.dumps, engine.events))
        result: dict[str, Any] = {
            "finished": True, "rounds": asked, "sites": len(server.clients), "clients": len(federation),
            "scores": {}, "exchanges": asked, "bytes_up": up, "seconds": round(time.monotonic() - began, 1),
            "lost": [str(federation.clients[i]) for i in sorted(lost)],
        } | told  # fmt: skip
        if ends.algorithms:
            result["training"] = {"exchanges": trials.asked, "bytes_up": trials.bytes_up}
        write_text(folder / RESULT, json.dumps(result, indent=1, default=str))
        return result


def _share(
    ends: Ends, found: Any, made: Any, federation: Federation, engine: SitesEngine, sites: Any, lost: set[int]
) -> None:
    messages: dict[str, bytes] = {}
    engine.count()
    for site, own in engine.places.items():
        if not lost.intersection(own.tolist()):
            plain, tensors = ends.share(found, made, federation, own)
            head = {"do": "finish", "run": sites.run, "round": 0, "have": engine.tag(site), "plain": plain}
            messages[site] = wire.pack(head | {"number": engine.number}, {"state": tensors})
    for site, answer in sites.exchange(messages).items():
        if isinstance(answer, Failure):
            engine.note(None, site, "finish", answer.reason)
