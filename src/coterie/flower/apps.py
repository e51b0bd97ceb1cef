"""The server and the sites behind Flower's public interface: `server_app` and `client_app` make the two apps of a project.

A message is one record with one field of bytes. Answers are polled for every fifth of a second. Flower's error codes become
sentences: a SuperNode that died (5), an exception at the site (2), a ClientApp that was killed (8).

A SuperNode that finds no message sleeps for three seconds. Where a question follows soon after another, as the opening of a
secure sum does, an empty message goes with the first: when the SuperNode has answered it, it looks again at once.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from coterie.base.disk import said, write_text
from coterie.errors import ConfigError, CoterieError
from coterie.flower import wire
from coterie.flower.engine import Failure, Interrupted
from coterie.flower.job import Job
from coterie.flower.server import FAILED, serve
from coterie.flower.site import Site
from coterie.flower.studies import serve_study

TYPE = "query.coterie"
_RECORD, _FIELD, _ERROR = "coterie", "block", "error"
_POLL, _CALMER = 0.1, 0.02  # seconds between two polls for an answer, and of the time since the question
_CODES = {2: "an exception at the site", 5: "the SuperNode is gone", 8: "the ClientApp was killed"}


class _OneSentence(logging.Filter):
    """Flower logs an app's exception with its stack; an error that coterie raises on purpose becomes one sentence."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        if isinstance(error, CoterieError):
            record.msg, record.args, record.exc_info = wire.one_line(error), (), None
        return True


_ONE_SENTENCE = _OneSentence()  # a logger has it once


class GridNodes:
    """Flower's Grid as the nodes of a server; a site may work `timeout` seconds on one question. After `deadline` seconds
    the answers of `quorum` sites are enough. names: what the hub calls its nodes."""

    def __init__(
        self, grid: Grid, timeout: float, deadline: float = 0.0, quorum: int = 0, names: Mapping[int, str] | None = None
    ) -> None:
        self.grid, self.timeout, self.names = grid, timeout, names or {}
        self.deadline, self.quorum = (deadline, quorum) if quorum else (timeout, 0)
        self._empty: list[str] = []  # messages whose answers hold nothing

    def connected(self) -> list[int]:
        with _link():
            return list(self.grid.get_node_ids())

    def exchange(
        self, messages: Mapping[int, bytes], timeout: float | None = None, soon: bool = False
    ) -> dict[int, bytes | Failure]:
        """Answers are pulled one by one, so that an unreadable answer is only its own node's failure."""
        seconds = self.timeout if timeout is None else min(timeout, self.timeout)
        sent = [*messages.items(), *((node, b"") for node in messages if soon)]
        there = [Message(_content(block), dst_node_id=n, message_type=TYPE, ttl=seconds + 60) for n, block in sent]
        with _link():
            pushed = list(self.grid.push_messages(there))
        given = [*pushed, *[None] * len(there)]  # in their order; none: it could not be sent
        self._forget_empty([i for i in given[len(messages) : len(sent)] if i])
        ids = dict(zip(messages, given, strict=False))
        answers: dict[int, bytes | Failure] = {n: Failure("it could not be sent") for n, i in ids.items() if not i}
        began = time.monotonic()
        while len(answers) < len(ids):
            past = time.monotonic() - began
            late = past > min(self.deadline, seconds)
            for node, asked in ids.items():
                if node not in answers and (answer := self._pull(asked)) is not None:
                    answers[node] = answer
                elif node not in answers and not late:
                    break  # a request per look, not per site
            enough = late and sum(isinstance(a, bytes) for a in answers.values()) >= self.quorum
            if past > seconds or enough:
                break
            if len(answers) < len(ids):
                time.sleep(min(1.0, max(_POLL, _CALMER * past)))
        return answers

    def _forget_empty(self, new: list[str]) -> None:
        """Take the answers to earlier empty messages off the SuperLink."""
        if self._empty:
            with suppress(Exception):
                list(self.grid.pull_messages(self._empty))
        self._empty = new

    def _pull(self, asked: str) -> bytes | Failure | None:
        try:
            return next((_answer(r) for r in self.grid.pull_messages([asked])), None)
        except Exception as error:
            return Failure(f"the answer could not be read ({wire.one_line(error)})")


@contextmanager
def _link() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise Interrupted(
            f"The SuperLink ended this run, or is gone ({wire.one_line(said(error))}). Start the run again with the same "
            "folder; it goes on after the last finished round."
        ) from None


def _content(block: bytes, error: str = "") -> RecordDict:
    return RecordDict({_RECORD: ConfigRecord({_FIELD: block, _ERROR: error})})


def _answer(reply: Message) -> bytes | Failure:
    if reply.has_error():
        code = reply.error.code
        return Failure(
            f"{_CODES.get(code, 'Flower could not deliver')} (error {code}: {wire.one_line(reply.error.reason)})"
        )
    record = reply.content.get(_RECORD)
    block = record.get(_FIELD) if isinstance(record, ConfigRecord) else None
    told = record.get(_ERROR) if isinstance(record, ConfigRecord) else None
    if told:
        return Failure(wire.one_line(told))
    return block if isinstance(block, bytes) else Failure("the answer holds no bytes")


def server_app(job: Callable[[], Job]) -> ServerApp:
    """The run configuration says `out` (folder of the server), `sites` (how many to wait for), `timeout`, `patience`, and
    maybe `deadline` and `quorum` (after so many seconds so many answers are enough) and `names`, the hub's file of nodes."""
    app = ServerApp()
    logging.getLogger("flwr").addFilter(_ONE_SENTENCE)

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = context.run_config
        work = job()
        out, names = Path(str(config["out"])), str(config.get("names", ""))
        known = json.loads(Path(names).read_text("utf-8")) if names else {}
        limits = (float(config.get("timeout", 600.0)), float(config.get("deadline", 0.0)), int(config.get("quorum", 0)))
        try:
            told = (serve if work.ends is None else serve_study)(
                work,
                GridNodes(grid, *limits, {int(node): str(name) for node, name in known.items()}),
                out,
                sites=int(config["sites"]),
                patience=float(config.get("patience", 300.0)),
                tell=lambda line: print(line, flush=True),
            )
        except Interrupted:
            raise
        except CoterieError as error:
            write_text(out / FAILED, wire.one_line(error) + "\n")
            raise
        print({k: told[k] for k in ("finished", "rounds", "sites", "clients", "scores")}, flush=True)

    return app


def client_app(job: Callable[[], Job]) -> ClientApp:
    """The node configuration says `table` (the site's file), `folder` (where it keeps rows, states and results; left out:
    beside the table), where the table has no client column `client`, and `least`, the rows below which the site does not go
    into detail before a run (5). For secure sums: `key`, the file of the site's private key, and `peers`, a file with the
    public keys of all sites."""
    app = ClientApp()
    sites: dict[Any, Site] = {}

    @app.query("coterie")
    def answer(message: Message, context: Context) -> Message:
        node = {k: context.node_config.get(k) for k in ("table", "folder", "client", "least", "key", "peers")}
        try:
            key, block = tuple(node.values()), message.content[_RECORD][_FIELD]
            if not block:
                return Message(_content(b""), reply_to=message)
            if key not in sites:
                sites[key] = _site(job(), node)
            content = _content(sites[key].answer(block))
        except CoterieError as error:
            content = _content(b"", wire.one_line(said(error, 500)))
        return Message(content, reply_to=message)

    return app


def _site(job: Job, node: Mapping[str, Any]) -> Site:
    table = node["table"]
    if not table:
        raise ConfigError(
            "This site does not say where its table is. Start its SuperNode with --node-config 'table=\"…\"'."
        )
    least = node["least"]
    if least is not None and (type(least) is not int or least < 1):
        raise ConfigError(f"least must be a whole number from 1; the node configuration says {least!r}.")
    folder = Path(str(node["folder"])) if node["folder"] else Path(f"{table}.coterie")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    client, key, peers = (None if node[k] is None else str(node[k]) for k in ("client", "key", "peers"))
    return Site(job, str(table), folder, client, least, key, peers)
