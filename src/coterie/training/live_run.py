"""A run in progress: its rounds, its checkpoints, and a clear error when it diverges.

Everything that may change between two rounds is read here from top to bottom.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from coterie.data.client_rows import as_numbers
from coterie.data.federation import Federation
from coterie.engines.base import Env, first_contact, fresh_states
from coterie.engines.private import check_private
from coterie.errors import ConfigError, CoterieWarning, Diverged
from coterie.exchange.channels import Channel
from coterie.exchange.channels.attacks import Attack
from coterie.exchange.messages import Algorithm, Ask, Cohort, Ints, Population, Reply
from coterie.learning.local_steps import LocalSteps
from coterie.learning.task import Task
from coterie.privacy.receipt import NOT_A_RELEASE
from coterie.privacy.settings import Privacy
from coterie.training import checkpoint, cohorts
from coterie.training.contract import (
    conversation,
    finite,
    require_ask,
    require_optimiser,
    require_start,
    require_state,
    require_statistics,
)
from coterie.training.evaluation import Evaluation
from coterie.training.explosion import explosion
from coterie.training.fingerprint import Fingerprint, fingerprint
from coterie.training.later_runs import clients_alone, same_run
from coterie.training.private_run import SIMULATION_ONLY, Session, reads_clusters, unwrapped
from coterie.training.result import FILES, RECEIPT, Result
from coterie.training.validity import Declared, copied, unchanged

Callback = Callable[["Run"], None] | Callable[[dict[str, Any], Any], None]
"""Called after every round: with the live run if it takes one argument; with the round's history row and the server's state
if it takes two. Of a run it may read `done`, `history`, `state` and `evaluation()` (groups, scores, models), and it may call
`stop(reason)`."""


@dataclass
class Run:
    """A run in progress: everything between two rounds is `state`, `env.states` and `history`."""

    algorithm: Algorithm
    federation: Federation
    task: Task
    seed: int
    sampler: cohorts.Sampler
    channels: tuple[Channel, ...]
    engine: Any
    out: Path | None
    done: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    state: Any = None
    fingerprint: Fingerprint = field(init=False)
    start: Any = None
    about: dict[str, Any] = field(default_factory=dict)
    dropped: list[dict[str, Any]] = field(default_factory=list)  # round, phase and client of NaN replies
    privacy: Privacy | None = None
    rounds: int = 0
    choices: dict[str, str] = field(default_factory=dict)  # for a private run's receipt
    declared: Declared = field(default_factory=Declared)  # what its user wrapped in privacy.public(…)
    callbacks: Sequence[Callback] = ()
    session: Session | None = None
    met: npt.NDArray[np.bool_] = field(init=False)  # which clients have answered in a round

    def begin(self, *, resume: bool, overwrite: bool) -> None:
        self.engine = getattr(self.engine, "begun", lambda run: self.engine)(self)
        self.task.check(self.federation, look=self.privacy is None)
        require_statistics(self.algorithm, self.task)
        require_optimiser(self.algorithm)
        self.start, origin = unwrapped(self.start)
        if isinstance(self.start, dict):
            require_start(self.task, self.start)
        dtype = self.federation.x.dtype if self.federation.x.is_floating_point() else torch.float32
        self.env = Env(
            self.task,
            self.federation,
            self.start if isinstance(self.start, dict) else self.task.init(self.seed, dtype),
            self.seed,
            states=fresh_states(self.engine, self.federation),
            channels=self.channels,
        )
        fed = self.federation
        self.met = np.zeros(len(fed), np.bool_)
        sizes = fed.n_train if self.privacy is None else np.ones_like(fed.n_train)  # which are no one's business
        groups = fed.clusters if self.privacy is None or reads_clusters(self.algorithm) else None
        classes = fed.classes if self.privacy is None or "classes" in fed.declared else None
        sample = as_numbers(fed.x.new_zeros(1, *fed.x.shape[1:]))
        population = Population(len(fed), sizes, groups, classes, sample)
        self.state = self.algorithm.init(self.task, population, self.seed, self.env.initial)
        if self.start is not None and not isinstance(self.start, dict):
            self.state = self.start
        require_state(self.algorithm, "init", self.state)
        file = None if self.out is None else self.out / checkpoint.FILE
        if not resume:
            self._clear(overwrite)
        stored = checkpoint.read(file) if resume and file is not None else None
        self.session = Session.of(self, None if stored is None else stored[1], origin)
        self.env.private = None if self.session is None else self.session.releases
        self.fingerprint = self._fingerprint()
        if stored is not None and file is not None:
            self._load(file, *stored)
        if self.session is not None and self.out is not None:
            self.save()  # a private run that dies in its first round can be resumed: its releases are booked
            self.session.ledger.settle()  # and no other copy of the folder can continue it

    def _clear(self, overwrite: bool) -> None:
        """Remove the files of an older run, except its ledger, because releases cannot be undone."""
        if self.out is None:
            return
        there = [self.out / name for name in (checkpoint.FILE, *FILES, RECEIPT) if (self.out / name).exists()]
        if there and not overwrite:
            raise ConfigError(
                f"{self.out} already holds a run. Pass resume=True to continue it, overwrite=True to replace it, "
                "or another folder."
            )
        for old in there:
            old.unlink()

    def one_round(self) -> dict[str, Any]:
        """One round; on failure everything is as it was before it."""
        began = time.perf_counter()
        self.env.round, self.env.ask = self.done, 0
        draw = self.sampler.sample if self.session is None else self.session.drawn
        who = cohorts.checked(draw(self.federation, self.seed, self.done), self.sampler, len(self.federation))
        row: dict[str, Any] = {"round": self.done + 1, "loss": float("nan"), "clients": len(who), "lost": 0}
        row |= {"bytes_down": 0, "bytes_up": 0}
        info: dict[str, tuple[float, int]] = {}
        asks: list[Ask] = []
        answered, dropped = [np.zeros(0, np.int64)], np.zeros(0, np.int64)
        try:
            told = who if self.session is None else self.session.told(who)
            rounds = conversation(self.algorithm, self.state, Cohort(told, self.done, self.seed))
            reply: Reply | None = None
            while True:
                try:
                    ask = rounds.send(reply)  # type: ignore[arg-type]  # None starts a generator
                except StopIteration as end:
                    state = end.value
                    break
                asks.append(require_ask(self.algorithm, ask))
                reply = self._exchange(ask, who)
                row["lost"] = max(row["lost"], len(reply.lost))
                answered, dropped = [*answered, reply.clients], np.append(dropped, reply.dropped)
                row["bytes_down"] += reply.bytes_down
                row["bytes_up"] += reply.bytes_up
                for name, (total, count) in reply.info.items():
                    before = info.get(name, (0.0, 0))
                    info[name] = (before[0] + total, before[1] + count)
                reply = reply if self.session is None else self.session.shown(reply)
            if len(dropped) and not any(map(len, answered)):
                raise Diverged(int(dropped.min()), ask.name)
            require_state(self.algorithm, "round", state)
            if not finite(state):
                raise Diverged(None, "the server's update")
        except Diverged as error:
            self.env.states.rollback()
            raise self._explain(error) from None
        except BaseException:
            self.env.states.rollback()
            raise
        self.env.states.commit()
        self.met[np.concatenate(answered)] = True
        _warn_idle(self.channels, asks)
        row |= {name: total / count for name, (total, count) in info.items() if count}
        row["seconds"] = time.perf_counter() - began
        self.state, self.done = state, self.done + 1
        self.history.append(row)  # here, so that it has a row per round even if a later step fails
        return row

    def _exchange(self, ask: Ask, who: Ints) -> Reply:
        if self.session is not None:
            check_private(ask)
            ask = self.session.admitted(ask, who)
        asked = ask.clients
        for channel in self.channels:
            ask = channel.ask(ask, self.env.where)
        if self.session is not None:
            check_private(ask)  # a channel may have changed the question
            self.session.require(ask, who)
        first_contact(self.algorithm, ask.clients, self.env, self.engine)
        reply: Reply = self.engine.run(ask, self.env)
        for channel in reversed(self.channels):
            reply = channel.reply(reply, ask, self.env.where)
        self.env.ask += 1
        if len(ask.clients) < len(asked) or len(reply.dropped) or len(reply.lost):
            gone = np.isin(asked, reply.dropped) | np.isin(asked, reply.lost)
            reply = replace(reply, lost=asked[~np.isin(asked, ask.clients) | gone])
        self._note_dropped(ask, reply)
        return reply

    def _note_dropped(self, ask: Ask, reply: Reply) -> None:
        """Note the clients whose answer was NaN or infinite, once per round and phase."""
        for client in reply.dropped:
            entry = {"round": self.done + 1, "phase": ask.name, "client": _plain(self.federation.clients[client])}
            if entry not in self.dropped[-len(self.federation) :]:
                self.dropped.append(entry)

    def call(self, callbacks: Sequence[Callable[[Run], None]]) -> None:
        """Call the callbacks; if one changes the server's state, no receipt covers the run."""
        before = copied(self.state) if self.session is not None and callbacks else None
        for callback in callbacks:
            callback(self)
        if self.session is not None and before is not None and not unchanged(self.state, before):
            self.session.ledger.void("unaccounted: a callback changed the server's state")

    # ---- ends --------------------------------------------------------------------------------------------------------

    def evaluation(self) -> Evaluation:
        """The evaluation of the run in its current state."""
        env = replace(
            self.env, round=self.done, ask=0, private=None
        )  # the same whether the run was resumed or has just failed
        met = self.met if self.session is None else None  # a private run does not tell whom it asked
        kind = getattr(self.engine, "evaluation", Evaluation)
        made: Evaluation = kind(self.algorithm, self.federation, self.task, self.state, env, self.engine, met)
        return made

    def stop(self, reason: str = "a callback asked for it") -> None:
        """End after this round, with the reason in `result.about["stopped"]`."""
        self.about = self.about | {"stopped": reason}

    def result(self, rounds: int, alone: bool | str | Result) -> Result:
        return Result.from_evaluation(
            self.evaluation(),
            self.history,
            self.about
            | {
                "algorithm": repr(self.algorithm),
                "seed": self.seed,
                "rounds": self.done,
                "finished": self.done >= rounds,
                "fingerprint": self.fingerprint.text if self.session is None else self.fingerprint.public,
                "yardstick": _yardstick(alone),
            }
            | explosion([row["loss"] for row in self.history], self._start_loss)
            | ({"dropped": list(self.dropped)} if self.dropped else {})
            | self._notes()
            | ({} if self.session is None else {"simulation_only": list(SIMULATION_ONLY)}),
            clients_alone(self, alone),
            same_run(self),
            None if self.session is None else self.session.receipt(),
        )

    @property
    def _start_loss(self) -> float:
        """The loss of the start; unknown where the rows are elsewhere."""
        return self.fingerprint.start_loss if getattr(self.engine, "evaluates", True) else float("inf")

    def _notes(self) -> dict[str, list[str]]:
        told = self.algorithm.notes(self.state) if self.done and hasattr(self.algorithm, "notes") else []
        if self.session is not None and self.session.privacy.simulated:
            told = [f"{NOT_A_RELEASE}: the noise of this run was a simulation.", *told]
        never = 0 if self.session is not None else int((~self.met).sum())
        if self.done and never:
            told = [*told, f"{never} of {len(self.met)} clients never took part in a round. {self.algorithm.newcomers}"]
        return {"notes": told} if told else {}

    def save(self) -> None:
        assert self.out is not None
        tensors, plain = checkpoint.pack(self.state, self.env.states)
        about = {"done": self.done, "plain": plain, "history": self.history, **self.fingerprint.about()}
        about["dropped"] = self.dropped
        about["privacy"] = None if self.session is None else self.session.stored()
        if self.session is None:
            tensors["clients/met"] = torch.from_numpy(self.met)
        checkpoint.write(self.out / checkpoint.FILE, tensors | self.fingerprint.tensors(), about)

    def _load(self, file: Path, tensors: dict[str, torch.Tensor], about: dict[str, Any]) -> None:
        self.fingerprint.require(about, tensors, file.parent)
        checkpoint.check(about, file)
        self.state = checkpoint.unpack(self.state, tensors, about["plain"], self.env.states)
        self.done, self.history = about["done"], about["history"]
        self.dropped = about.get("dropped", [])
        self.met = tensors["clients/met"].numpy().copy() if "clients/met" in tensors else np.ones_like(self.met)

    def _fingerprint(self) -> Fingerprint:
        """The fingerprint of the run: hyperparameters, data, network, loss, start, seed, sampling, channels, privacy."""
        given = None if isinstance(self.start, dict) else self.start
        private = () if self.session is None else self.session.fingerprint()
        settings = (self.algorithm, self.seed, self.sampler, self.channels, private)
        return fingerprint(self.task, self.federation, self.env.initial, settings, given)

    def _explain(self, error: Diverged) -> Diverged:
        who = "" if error.client is None else f" at client {self.federation.name(error.client)}"
        local = getattr(self.algorithm, "local", None)
        lower = f"the learning rate (now {local.lr})" if isinstance(local, LocalSteps) else "the learning rate"
        kept = "The last good state is kept"
        if self.out is not None and self.done:
            self.save()
            kept += f" in {self.out} (round {self.done})"
        failure = Diverged(
            error.client,
            error.phase,
            f"Round {self.done + 1}: '{error.phase}' gave NaN or infinite numbers{who}. Lower {lower}, or check that "
            f"client's data for extreme values. {kept}.",
        )
        if getattr(self.engine, "evaluates", True):
            failure.result = self.result(self.done, alone=False)
        return failure


def begin_local(algorithm: Algorithm, federation: Federation, task: Task, seed: int, engine: Any) -> Run:
    """A run of everyone, ready for its first round, without files."""
    run = Run(algorithm, federation, task, seed, cohorts.Everyone(), (), engine, None)
    run.begin(resume=False, overwrite=False)
    return run


def _yardstick(alone: bool | str | Result) -> str:
    if isinstance(alone, Result):
        return "given"
    return alone if isinstance(alone, str) else "tuned" if alone else "none"


def _plain(client: Any) -> Any:
    """A client's id as JSON can hold it."""
    return client.item() if isinstance(client, np.generic) else client


def _warn_idle(channels: Iterable[Channel], asks: Iterable[Ask]) -> None:
    """Warn of attacks on updates in a round whose answers have other fields only: they changed nothing."""
    idle = [type(c).__name__ for c in channels if isinstance(c, Attack) and type(c).forge is not Attack.forge]
    asks = list(asks)
    if idle and any(ask.auxiliary for ask in asks) and not any(ask.updates for ask in asks):
        warnings.warn(
            f"{idle[0]} forges updates, and no answer of this round has one: {asks[0].name!r} sends "
            f"{', '.join(asks[0].auxiliary) or 'nothing'}. The attack changed nothing. Declare what is an update: "
            "Ask(…, updates={…}).",
            CoterieWarning,
            stacklevel=2,
        )
