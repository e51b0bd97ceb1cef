"""What a site does with the server's messages: its own rows, its own states, the local engine.

    join     say which clients are here and what their columns hold
    digits, spread    statistics of the training rows, for the agreement
    hello    after a restart: show the ticket this site got when the run began
    begin    prepare the rows by the agreement, and keep them for the run
    ask      run a client function of the algorithm and answer as the ask says: sums, or rows
    look     in a study that trains: say how a model does on rows here (`trial_site.py`)
    secure   help with secure sums: sign keys, deal shares, open a sum
    finish   give every client here its model, its group and its scores; all of them stay here

States survive a restart: each answer that changes them writes a new file, and the server's next message says which answers
it received. The states of a lost answer are dropped, as if its clients had not been asked. Several messages may be processed
at the same time; their numbers grow, and a message older than the newest one that came changes nothing.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from coterie.base.disk import locked, private_folder, unlinked, write_text, writing
from coterie.base.tree import Tree, flatten, unflatten
from coterie.data.federation import Federation
from coterie.data.reading import read_table
from coterie.engines.base import ClientStates, Env, first_contact
from coterie.engines.reduce import Share, merged
from coterie.engines.secure import about, encoded, integers, nothing, number, require_additive
from coterie.engines.trial import trial
from coterie.engines.vectorised import LocalEngine
from coterie.errors import ConfigError, CoterieError, DataError
from coterie.exchange.messages import Ask, Ints
from coterie.flower import wire
from coterie.flower.agreement import Agreement
from coterie.flower.finish import keep_results, trained_alone
from coterie.flower.guard import Guard, planned
from coterie.flower.heads import checked_head, checked_tree
from coterie.flower.job import Job
from coterie.flower.questions import among_all, environment, read_ask, releases, server_state
from coterie.flower.site_tables import TABLE, SiteTable, changed
from coterie.secure.identity import Identity, public_key
from coterie.secure.roster import known_sites, terms
from coterie.secure.site import SecureSite
from coterie.secure.store import Store
from coterie.training import checkpoint

log = logging.getLogger("coterie.flower")
_STATE = "state-{}.safetensors"
_NEWEST = "newest.txt"
PEERS = "peers.json"  # the public keys of all sites, as this site first saw them
_PATIENCE = 60.0  # seconds to wait for another message to this site that is being kept


@dataclass
class Site:
    """table: the site's own file, or its rows. folder: where prepared rows, states and results are kept. client: the name of
    the only client here, where the table has no column for it. least: this site sends no statistics of fewer rows, if
    its owner wants another number than the run's. key: the file of its private key, with which it signs in secure sums.
    peers: a file with the public keys of all sites; without one, this folder's first run says them for all others."""

    job: Job
    table: str | Path | pd.DataFrame
    folder: Path
    client: str | None = None
    least: int | None = None
    key: str | Path | None = None
    peers: str | Path | None = None
    _runs: dict[str, SiteRun] = field(default_factory=dict, repr=False)

    def answer(self, block: bytes) -> bytes:
        """The answer to a message, or one sentence of refusal; every field is checked before anything else is done."""
        told, sent = wire.unpack(block)
        kind, head = checked_head(told)
        tree = checked_tree(kind, sent)
        try:
            guard = Guard(self.job, private_folder(self.folder))
            try:
                return guard.note(kind, head, self._fitting(kind, head, tree))
            except CoterieError as error:
                guard.note_refusal(kind, head, self._without_places(error))
                raise
        except CoterieError as error:
            error.args = (self._without_places(error),)
            raise

    def _without_places(self, error: CoterieError) -> str:
        """The sentence that leaves the site: it does not say where its files are."""
        told = str(error)
        places = {"the site's folder": self.folder}
        if not isinstance(self.table, pd.DataFrame):
            places["the site's table"] = Path(self.table)
        places |= {f"the site's {k}": Path(v) for k, v in (("key", self.key), ("peers", self.peers)) if v is not None}
        for name, path in places.items():
            for written in (path.resolve(), path.absolute(), path):
                told = told.replace(str(written), name) if len(written.parts) > 1 else told
        return told

    def _fitting(self, kind: str, head: Mapping[str, Any], tree: Tree) -> bytes:
        """The answer; an error that tensors of another run cause becomes a refusal."""
        try:
            return self._answer(kind, head, tree)
        except CoterieError:
            raise
        except (*wire.ODD, RuntimeError, ArithmeticError, AssertionError, MemoryError) as error:
            log.warning("a message %r could not be worked on", kind, exc_info=error)
            raise wire.Malformed(
                f"The message {kind!r} does not fit this run ({type(error).__name__}); the site's log says more."
            ) from error

    def _answer(self, kind: str, head: Mapping[str, Any], tree: Tree) -> bytes:
        if kind == "join":
            return wire.pack(self._joined(head))
        if kind in ("digits", "spread") and self.job.privacy is not None:
            raise ConfigError("With a privacy budget this site sends no statistics of its rows.")
        if kind in ("digits", "spread"):
            Guard(self.job, self.folder).admit_statistics(kind, head)
            with untold("This site's table has no such statistics"):
                rows = self.table_here()
                told = rows.spread(head["fills"]) if kind == "spread" else rows.digits(head["level"], head["prefixes"])
            return wire.pack({kind: told})
        if kind == "begin":
            return self._begin(head)
        if kind == "hello":
            ticket = self.folder / head["run"] / "ticket.txt"
            return wire.pack({"ticket": unlinked(ticket).read_text() if ticket.exists() else None})
        if kind == "secure":
            return wire.pack(self._secure(head["run"]).answer(head["told"]))
        Guard(self.job, self.folder).admit_round(kind, head)
        secure = None if self.job.secure is None else self._secure(head["run"])
        run = self._run(head["run"])
        if head.get("trial") is not None:
            from coterie.flower.trial_site import TrialRun

            run = TrialRun.of(run, head["trial"])
        if kind == "look":
            return run.look(head, tree)
        if kind == "ask":
            return run.ask(head, tree, secure)
        return run.finish(head, tree, secure)

    def _joined(self, head: Mapping[str, Any]) -> dict[str, Any]:
        """What the site says of itself to a server that has the same run."""
        if head["settings"] != self.job.settings:
            from coterie import __version__

            raise ConfigError(
                "The server has another run than this site, or another version of coterie with other defaults "
                f"({wire.one_line(head['version'])}; {__version__} here). Give both the same file and version."
            )
        rows, told = self.table_here(), {"settings": self.job.settings}
        if self.job.secure is not None:
            told["key"] = self._identity().public
        if self.job.privacy is None:
            told["table"] = changed(rows.frame, self.folder)[0]
        return rows.facts(private=self.job.privacy is not None) | told

    def _identity(self) -> Identity:
        if self.key is None:
            raise ConfigError(
                "This run has secure sums, and this site has no key to sign with. Start its SuperNode with --node-config "
                "'key=\"…\"', the file of its private key."
            )
        return Identity.load(self.key)

    def _secure(self, run: str) -> SecureSite:
        """This site's side of secure sums; the keys of the other sites must be those that it knows."""
        if self.job.secure is None:
            raise ConfigError("This run has no secure sums by this site's file. Give server and site the same project.")
        if not (self.folder / run / "n_clients.txt").exists():
            raise ConfigError(f"This site has not begun the run {run}, or its folder was removed.")
        keys, pinned = sorted(known_sites(self.job.secure)), self.folder / PEERS
        if self.peers is not None:
            lines = unlinked(self.peers).read_text("utf-8").splitlines()
            trusted = sorted(public_key(line) for line in lines if line.strip())
        else:
            if not pinned.exists():
                write_text(pinned, json.dumps([keys, terms(self.job.secure)]), private=True)
            trusted, agreed = json.loads(unlinked(pinned).read_text())
            if trusted == keys and agreed != terms(self.job.secure):
                raise ConfigError(
                    f"{PEERS} of this site has other [secure] settings than the run; its owner may remove it."
                )
        if keys != trusted:
            raise ConfigError(
                "The sites of this run are not those that this site trusts, so the server may play some of them. If its "
                f"owner knows the new list, name it as peers in the node configuration, or remove {PEERS}."
            )
        return SecureSite(self._identity(), self.job.secure, run, Store(self.folder / run / "secure"))

    def table_here(self) -> SiteTable:
        """This site's rows, as the job reads them."""
        options = dict(self.job.data)
        frame = self.table
        if not isinstance(frame, pd.DataFrame):
            given = options["client"] if self.client is None else None
            frame = read_table(frame, client=given, text=self.job.privacy is not None, **self.job.reading)
        if self.client is not None:
            frame = frame.assign(**{options["client"]: self.client})
        least = self.job.least if self.least is None else self.least
        return SiteTable.of(frame, options, least, private=self.job.privacy is not None)

    def _begin(self, head: Mapping[str, Any]) -> bytes:
        """Prepare the rows and put them at the places the server gave these clients."""
        Guard(self.job, self.folder).admit_run(head["run"])
        agreement = Agreement(**head["agreement"])
        declared = list(self.job.data.get("classes") or ())
        if (declared and agreement.classes != declared) or (self.job.privacy is not None and agreement.plan):
            raise ConfigError(
                "The server uses other classes or columns than the run's file. Give both the same project."
            )
        with untold("This site's table does not fit what was agreed on columns and classes"):
            here = self.table_here()
            fed = here.federation(agreement)
        places = [head["places"].get(str(c)) for c in fed.clients]
        if None in places or len(places) != len(head["places"]):
            raise DataError("The clients of this site are not those it named when it joined. Start the run again.")
        folder = private_folder(self.folder / head["run"])
        fed.subset([fed.clients[i] for i in np.argsort(places)]).save(private_folder(folder / "rows"))
        with writing(folder / "places.npy", private=True) as partial, partial.open("wb") as file:
            np.save(file, np.sort(np.array(places, np.int64)))
        write_text(folder / "ticket.txt", head["ticket"], private=True)
        write_text(folder / "n_clients.txt", str(head["n_clients"]), private=True)
        write_text(self.folder / TABLE, changed(here.frame, self.folder)[1], private=True)
        if self.job.privacy is not None:
            plan = json.dumps(planned(self.job, head["n_clients"]))
            write_text(folder / "plan.json", plan, private=True)
        return wire.pack({"ready": len(places)})

    def _run(self, run: str) -> SiteRun:
        if run not in self._runs:
            self._runs = {run: SiteRun(self.job, self.folder / run)}
        return self._runs[run]


class SiteRun:
    """A run at a site: its clients' rows, at their places among all clients; the other clients' rows are elsewhere."""

    def __init__(self, job: Job, folder: Path) -> None:
        if not (folder / "n_clients.txt").exists():
            raise ConfigError(f"This site has not begun the run {folder.name}, or its folder was removed.")
        self.job, self.folder = job, folder
        self.plan: dict[str, Any] = {} if job.privacy is None else json.loads((folder / "plan.json").read_text())
        self.own: Ints = np.load(folder / "places.npy")
        rows = Federation.load(folder / "rows")
        self.task = job.task(rows)
        self.task.check(rows, look=job.privacy is None)
        self.env = environment(self.task, among_all(rows, self.own, self.everyone()), job.seed, len(self.own))
        self.engine = LocalEngine(workers=1)
        self.trial: SiteRun | None = None  # the last training of a study

    def everyone(self) -> int:
        """The number of clients of the run."""
        return int((self.folder / "n_clients.txt").read_text())

    def look(self, head: Mapping[str, Any], tree: Tree) -> bytes:
        """An answer about a training of a study (`trial_site.py`)."""
        raise wire.Malformed("Only a study's trainings are looked at.")

    # ---- a question ------------------------------------------------------------------------------------------------------

    def ask(self, head: Mapping[str, Any], tree: Tree, secure: SecureSite | None) -> bytes:
        ask = read_ask(self.job.algorithm, head, tree)
        if not np.isin(ask.clients, self.own).all():
            raise wire.Malformed("The server asks clients that are not here.")
        if (secure is None) != (head["secure"] is None):
            raise ConfigError("Server and site differ in whether sums are secure. Give both the same project.")
        private = releases(self.job, ask, head["private"], self.plan)
        states = self._states(head.get("have"))
        Guard(self.job, self.folder.parent).admit(head, tree, self.own, states, self.plan)
        with self._newest(head):
            pass
        env = replace(self.env, round=head["round"], ask=head["ask"], states=states, private=private)
        if secure is not None and not len(ask.clients) and private is None:
            raise ConfigError(
                "The zeros of a site that is not asked would hide nobody; this site answers for its clients only."
            )
        if secure is not None:
            require_additive(ask)
            secure.admit(head["secure"], number(env.round, env.ask))
        with untold(f"The question {ask.name!r} could not be worked on") if private is not None else nullcontext():
            share = self._share(ask, env) if secure is None else self._hidden(ask, env)
        tag = self._keep(head, states)
        if secure is not None:
            mine = integers(share, ask, env, secure.secure.count)
            masked = secure.mask(head["secure"], number(env.round, env.ask), about(ask, env), mine)
            return wire.pack({"tag": tag, "context": masked["context"]}, {"masked": torch.from_numpy(masked["masked"])})
        if private is not None:  # only the sum shows whether a client's update was a number
            share |= {"clients": ask.clients, "dropped": ask.clients[:0]}
        answer = {"clients": share["clients"].tolist(), "dropped": share["dropped"].tolist(), "bytes": share["bytes"]}
        told = {} if private is not None else {k: list(v) for k, v in share["info"].items() if math.isfinite(v[0])}
        shapes = {k: list(s) for k, s in share.get("shapes", {}).items()}
        sent: dict[str, Any] = {
            k: share[k] for k in ("sums", "weights", "counts", "send", "weight", "group") if k in share
        }
        return wire.pack({**answer, "info": told, "tag": tag, "shapes": shapes}, sent)

    def _share(self, ask: Ask, env: Env) -> Share:
        """What the clients here give. With a budget, a client whose function fails gives nothing, as one whose update is no
        number does: its rows must not decide whether the other clients of this site are in the sum."""
        try:
            first_contact(self.job.algorithm, ask.clients, env, self.engine)
            return merged(self.engine.shares(ask, env))
        except Exception:
            if env.private is None or len(ask.clients) == 1:
                raise
            env.states.rollback()
        found, why = [], Exception()
        for client in ask.clients:
            try:
                found.append(self._share(ask.only(ask.clients == client), env))
                env.states.commit()
            except Exception as error:
                env.states.rollback()
                log.warning("client %s gives nothing: %s", self.env.federation.name(int(client)), wire.one_line(error))
                why = error
        if not found:
            raise why
        return merged(found)

    def _hidden(self, ask: Ask, env: Env) -> Share:
        """The same for a secure sum. With a budget this site takes part with zeros where nobody here gives anything, since
        it adds its noise."""
        if env.private is None:
            found = self._share(ask, env)
            if not len(found["clients"]):
                raise ConfigError("No client here gives a number, and this site's zeros would hide nobody.")
            return found
        try:
            if len(ask.clients):
                return self._share(ask, env)
        except Exception as error:
            env.states.rollback()
            log.warning("no client gives anything: %s", wire.one_line(error))
        return nothing(trial(self.job.algorithm, ask, env))

    def _states(self, have: str | None) -> ClientStates:
        """The states after the last answer that the server received."""
        states = ClientStates(len(self.env.federation))
        if have is None:
            return states
        file = self.folder / _STATE.format(have)
        if not file.exists():
            raise ConfigError(f"This site has no states of {have}; its folder was removed or is another site's.")
        tensors, _ = checkpoint.read(file)
        values = unflatten({k.removeprefix("values/"): t for k, t in tensors.items() if k.startswith("values/")})
        states.load(tensors["row"].numpy().copy(), values)
        return states

    def _keep(self, head: Mapping[str, Any], states: ClientStates) -> str | None:
        """Write the states, if there are any; of older ones only those are kept to which a server may still return."""
        have: str | None = head.get("have")
        if not states.used:
            return have
        tag = f"{int(head['round'])}-{int(head['ask'])}-{head['attempt']}"
        row, values = states.packed()
        tensors = {"row": torch.from_numpy(row)} | {f"values/{k}": t for k, t in flatten(values).items()}
        with self._newest(head):
            checkpoint.write(self.folder / _STATE.format(tag), tensors, {})
            kept = {_STATE.format(t) for t in (tag, have, head.get("base"))}
            for old in self.folder.glob(_STATE.format("*")):
                if old.name not in kept:
                    old.unlink(missing_ok=True)
        return tag

    @contextmanager
    def _newest(self, head: Mapping[str, Any]) -> Iterator[None]:
        """Hold the folder for a message, unless a newer one has come."""
        number, file = int(head["number"]), self.folder / _NEWEST
        with locked(self.folder, _PATIENCE):
            seen = int(file.read_text()) if file.exists() else -1
            if number < seen:
                raise ConfigError("The server has sent this site a newer message; older messages are ignored.")
            if number > seen:
                write_text(file, str(number))
            yield

    # ---- the end ---------------------------------------------------------------------------------------------------------

    def finish(self, head: Mapping[str, Any], tree: Tree, secure: SecureSite | None) -> bytes:
        with self._newest(head):
            pass
        if self.job.ends is not None:
            folder = private_folder(self.folder / "result")
            with untold("The end of the study could not be worked on"):
                self.job.ends.keep(
                    head["plain"], tree.get("state", {}), self.job, self.env.federation, self.own, folder
                )
            return wire.pack({"scores": {}})
        env = replace(self.env, round=head["round"], states=self._states(head.get("have")))
        state = server_state(self.job, self.env, tree.get("state", {}), head["plain"])
        with untold("The end of the run could not be worked on") if self.job.privacy is not None else nullcontext():
            alone = trained_alone(self.job, env, self.own, self.engine)
            told, stay = keep_results(
                self.job.algorithm, env, state, self.own, self.engine, self.folder / "result", alone
            )
        if self.job.privacy is not None or (secure is not None and head["secure"] is None):
            return wire.pack({"scores": {}})
        if secure is None:
            return wire.pack({"scores": told, "participation": stay})
        sums = encoded([v for m in self.task.metrics for v in told[m]], secure.secure.count)
        masked = secure.mask(head["secure"], number(env.round), f"scores {' '.join(self.task.metrics)}", sums)
        return wire.pack({"context": masked["context"]}, {"masked": torch.from_numpy(masked["masked"])})


@contextmanager
def untold(what: str) -> Iterator[None]:
    """Keep the text of an error at this site: it may quote a cell, and a server with many questions could read many cells.
    Errors about settings quote no cells."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        log.warning("%s: %s", what, wire.one_line(error))
        raise ConfigError(f"{what}; the site's log says why.") from None
