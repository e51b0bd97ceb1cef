"""fit: the only training loop. Rounds, progress, checkpoints, resuming, and a clear end when a run diverges."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coterie.algorithms.local import Local
from coterie.data.federation import Federation
from coterie.disk import locked
from coterie.engines import ENGINES
from coterie.engines.base import ClientStates, Env, first_contact
from coterie.errors import ConfigError, Diverged
from coterie.exchange.channels import Channel
from coterie.exchange.messages import Algorithm, Ask, Cohort, Population, Reply
from coterie.learning.local_steps import LocalSteps
from coterie.learning.task import Task
from coterie.settings import setting, with_setting
from coterie.training import checkpoint, cohorts
from coterie.training.contract import conversation, finite, require_ask, require_state
from coterie.training.evaluation import Evaluation
from coterie.training.explosion import explosion
from coterie.training.fingerprint import Fingerprint, fingerprint
from coterie.training.progress import bar, finish_on_interrupt
from coterie.training.result import FILES, Result

_CHOICE_ROUNDS = 30  # rounds of each trial when the number of clusters is chosen

Callback = Callable[[dict[str, Any], Any], None]
"""Called after every round with its history row and the server state."""


def fit(
    algorithm: Algorithm,
    federation: Federation,
    task: Task | None = None,
    *,
    rounds: int = 10,
    seed: int = 0,
    cohort: cohorts.Sampler | int | float | None = None,
    channels: Sequence[Channel] = (),
    engine: str | Any = "local",
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    checkpoint_every: int = 10,
    evaluate_every: int = 0,
    alone: bool | Result = True,
    progress: bool | None = None,
    callbacks: Sequence[Callback] = (),
    start: Any = None,
) -> Result:
    """Train with an algorithm and return what every client gets.

    cohort: None (everyone), a number of clients, a probability (Poisson) or a sampler. out: folder for checkpoints and the
    result; `resume=True` continues the run found there, bit-identically. alone: also train every client alone when the
    result is evaluated or saved, to tell each what it gains (a Result of `Local` may be passed instead).
    Ctrl-C (or SIGTERM) finishes the round, saves and returns the result so far. One process at a time may use `out`.
    start: a model (parameter dictionary) everyone starts from, or a whole server state. An algorithm with clusters=None gets
    the number of clusters chosen on held-out training data first (`choose_clusters`, 1 to 6); `result.about["choice"]`
    shows the evidence, `"choice_note"` its limit, if any. `result.about["warnings"]` says when the loss exploded.
    """
    task = task if task is not None else Task.default(federation)
    how: dict[str, Any] = {"seed": seed, "cohort": cohort, "channels": channels, "engine": engine}
    algorithm, about = _choose(algorithm, federation, task, min(rounds, _CHOICE_ROUNDS), **how)
    run = Run(
        algorithm,
        federation,
        task,
        seed,
        cohorts.sampler(cohort),
        tuple(channels),
        _engine(engine),
        None if out is None else Path(out),
        start=start,
        about=about,
    )
    if rounds < 0 or checkpoint_every < 1:
        raise ConfigError(f"rounds must be ≥ 0 and checkpoint_every ≥ 1; got {rounds} and {checkpoint_every}.")
    if resume:
        checkpoint.require(run.out)
    with locked(run.out):  # also shows, before the first round, that files can be written there
        run.begin(resume=resume, overwrite=overwrite)
        return _train(run, rounds, checkpoint_every, evaluate_every, alone, progress, callbacks)


def _train(
    run: Run,
    rounds: int,
    checkpoint_every: int,
    evaluate_every: int,
    alone: bool | Result,
    progress: bool | None,
    callbacks: Sequence[Callback],
) -> Result:
    """All rounds, and what they end with."""
    with bar(progress, rounds, run.done) as tick, finish_on_interrupt(run.out is not None) as interrupted:
        saved = run.done
        while run.done < rounds and not interrupted:
            row = run.one_round()
            if evaluate_every and (run.done % evaluate_every == 0 or run.done == rounds):
                row |= run.evaluation().test_means()
            for callback in callbacks:
                callback(row, run.state)
            tick(row)
            if run.out is not None and run.done % checkpoint_every == 0:
                run.save()
                saved = run.done
        if run.out is not None and run.done > saved:
            run.save()
    result = run.result(rounds, alone)
    if run.out is not None:  # whoever pressed Ctrl-C does not wait for the clients to be trained alone
        (run.result(rounds, alone=False) if interrupted else result).save(run.out)
    return result


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
    dropped: list[dict[str, Any]] = field(default_factory=list)  # whose replies were no numbers: round, phase, client

    def begin(self, *, resume: bool, overwrite: bool) -> None:
        self.task.check(self.federation)
        dtype = self.federation.x.dtype if self.federation.x.is_floating_point() else torch.float32
        self.env = Env(
            self.task,
            self.federation,
            self.start if isinstance(self.start, dict) else self.task.init(self.seed, dtype),
            self.seed,
            states=ClientStates(len(self.federation)),
            channels=self.channels,
        )
        fed = self.federation
        population = Population(len(fed), fed.n_train, fed.clusters)
        self.state = self.algorithm.init(self.task, population, self.seed, self.env.initial)
        if self.start is not None and not isinstance(self.start, dict):
            self.state = self.start
        require_state(self.algorithm, "init", self.state)
        self.fingerprint = self._fingerprint()
        if resume and self.out is not None:
            self._load(self.out / checkpoint.FILE)
        elif self.out is not None:
            there = [self.out / name for name in (checkpoint.FILE, *FILES) if (self.out / name).exists()]
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
        who = np.sort(self.sampler.sample(self.federation, self.seed, self.done))
        row: dict[str, Any] = {"round": self.done + 1, "loss": float("nan"), "clients": len(who), "lost": 0}
        row |= {"bytes_down": 0, "bytes_up": 0}
        info: dict[str, tuple[float, int]] = {}
        answered, dropped = 0, np.zeros(0, np.int64)
        try:
            rounds = conversation(self.algorithm, self.state, Cohort(who, self.done, self.seed))
            reply: Reply | None = None
            while True:
                try:
                    ask = rounds.send(reply)  # type: ignore[arg-type]  # None starts a generator
                except StopIteration as end:
                    state = end.value
                    break
                reply = self._exchange(require_ask(self.algorithm, ask))
                row["lost"] = max(row["lost"], len(reply.lost))
                answered, dropped = answered + len(reply.clients), np.append(dropped, reply.dropped)
                row["bytes_down"] += reply.bytes_down
                row["bytes_up"] += reply.bytes_up
                for name, (total, count) in reply.info.items():
                    before = info.get(name, (0.0, 0))
                    info[name] = (before[0] + total, before[1] + count)
            if len(dropped) and not answered:
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
        row |= {name: total / count for name, (total, count) in info.items() if count}
        row["seconds"] = time.perf_counter() - began
        self.state, self.done = state, self.done + 1
        self.history.append(row)  # here, so that it has as many rows as there are rounds, whatever fails next
        return row

    def _exchange(self, ask: Ask) -> Reply:
        asked = ask.clients
        for channel in self.channels:
            ask = channel.ask(ask, self.env.where)
        first_contact(self.algorithm, ask.clients, self.env, self.engine)
        reply: Reply = self.engine.run(ask, self.env)
        for channel in reversed(self.channels):
            reply = channel.reply(reply, ask, self.env.where)
        self.env.ask += 1
        if len(ask.clients) < len(asked) or len(reply.dropped):
            reply = replace(reply, lost=asked[~np.isin(asked, ask.clients) | np.isin(asked, reply.dropped)])
        self._note_dropped(ask, reply)
        return reply

    def _note_dropped(self, ask: Ask, reply: Reply) -> None:
        """Whose answer was no number: once a round and phase."""
        for client in reply.dropped:
            entry = {"round": self.done + 1, "phase": ask.name, "client": _plain(self.federation.clients[client])}
            if entry not in self.dropped[-len(self.federation) :]:
                self.dropped.append(entry)

    # ---- ends --------------------------------------------------------------------------------------------------------

    def evaluation(self) -> Evaluation:
        """The run as it stands."""
        env = replace(self.env, round=self.done, ask=0)  # the same whether the run was resumed or has just failed
        return Evaluation(self.algorithm, self.federation, self.task, self.state, env, self.engine)

    def result(self, rounds: int, alone: bool | Result) -> Result:
        return Result.from_evaluation(
            self.evaluation(),
            self.history,
            self.about
            | {
                "algorithm": repr(self.algorithm),
                "seed": self.seed,
                "rounds": self.done,
                "finished": self.done >= rounds,
                "fingerprint": self.fingerprint.text,
            }
            | explosion([row["loss"] for row in self.history], self.fingerprint.start_loss)
            | ({"dropped": list(self.dropped)} if self.dropped else {}),
            self._alone(alone),
            self._again(),
        )

    def _alone(self, alone: bool | Result) -> Callable[[], Result] | None:
        """How to get the result of training alone, when it is asked for."""
        if isinstance(alone, Result):
            return lambda: alone
        local = getattr(self.algorithm, "local", None)
        if not alone or not isinstance(local, LocalSteps):
            return None
        options: dict[str, Any] = {"seed": self.seed, "engine": self.engine, "alone": False, "progress": False}
        rounds = self.done

        def train() -> Result:
            baseline = fit(Local(local), self.federation, self.task, rounds=rounds, **options)  # type: ignore[arg-type]
            if not baseline.about["finished"]:  # a yardstick of fewer rounds would flatter every gain
                raise KeyboardInterrupt
            return baseline

        return train

    def _again(self) -> Callable[[Federation], Result]:
        """How to run the same with other clients: same settings, seed and rounds, nobody trained alone."""
        start = self.start if isinstance(self.start, dict) else None  # a server state is of the clients it was made for
        rounds = self.done

        def train(federation: Federation) -> Result:
            sampler = self.sampler
            if isinstance(sampler, cohorts.FixedSize):
                sampler = cohorts.FixedSize(min(sampler.size, len(federation)))
            options: dict[str, Any] = {"seed": self.seed, "channels": self.channels, "engine": self.engine}
            again = fit(
                self.algorithm, federation, self.task, rounds=rounds, cohort=sampler, alone=False, progress=False,
                start=start, **options,
            )  # fmt: skip
            if not again.about["finished"]:
                raise KeyboardInterrupt
            return again

        return train

    def save(self) -> None:
        assert self.out is not None
        tensors, plain = checkpoint.pack(self.state, self.env.states)
        about = {"done": self.done, "plain": plain, "history": self.history, **self.fingerprint.about()}
        about["dropped"] = self.dropped
        checkpoint.write(self.out / checkpoint.FILE, tensors | self.fingerprint.tensors(), about)

    def _load(self, file: Path) -> None:
        tensors, about = checkpoint.read(file)
        self.fingerprint.require(about, tensors, file.parent)
        checkpoint.check(about, file)
        self.state = checkpoint.unpack(self.state, tensors, about["plain"], self.env.states)
        self.done, self.history = about["done"], about["history"]
        self.dropped = about.get("dropped", [])

    def _fingerprint(self) -> Fingerprint:
        """Changes when the run would: hyper-parameters, data, network, loss, start, seed, sampling, channels."""
        given = None if isinstance(self.start, dict) else self.start
        settings = (self.algorithm, self.seed, self.sampler, self.channels)
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
        failure.result = self.result(self.done, alone=False)
        return failure


def best_of(
    restarts: int,
    algorithm: Algorithm | Sequence[Algorithm],
    federation: Federation,
    task: Task | None = None,
    *,
    seed: int = 0,
    **options: Any,
) -> Result:
    """Several independent runs with seeds seed, seed + 1, … of an algorithm, or of each of several (a grid of step sizes);
    the one of smallest mean training loss of the clients' own models is returned (C-1r: the truth, which no server knows,
    cannot select). `about["restarts"]` lists all losses, algorithm by algorithm; a run that diverged has an infinite one."""
    candidates = list(algorithm) if isinstance(algorithm, Sequence) else [algorithm]
    if restarts < 1 or not candidates:
        raise ConfigError(f"best_of needs at least one run and algorithm; got {restarts} and {len(candidates)}.")
    best: Result | None = None
    failure: Diverged | None = None
    losses: list[float] = []
    for candidate, r in product(candidates, range(restarts)):
        try:
            run = fit(candidate, federation, task, seed=seed + r, **options)
            loss = float(np.mean(run.evaluation.train_losses()))
        except Diverged as error:
            failure, loss = error, math.inf
        if loss < min(losses, default=math.inf):
            best = run
        losses.append(loss)
    if best is None:
        raise failure or Diverged(None, "best_of", "Every run of best_of ended with an infinite training loss.")
    return replace(best, about=best.about | {"restarts": losses})


def _choose(
    algorithm: Any, federation: Federation, task: Task, rounds: int, **options: Any
) -> tuple[Any, dict[str, Any]]:
    """Fill in clusters=None; the evidence goes into the result."""
    from coterie.training.number_of_clusters import choose_clusters

    if setting(algorithm, "clusters", 0) is not None:
        return algorithm, {}
    choice = choose_clusters(algorithm, federation, task, rounds=rounds, progress=False, **options)
    about = {"choice": choice.table.reset_index().to_dict("records"), "clusters": choice.clusters}
    algorithm = with_setting(algorithm, "clusters", choice.clusters)
    return algorithm, about | ({"choice_note": choice.note} if choice.note else {})


def _plain(client: Any) -> Any:
    """A client's id as JSON can hold it."""
    return client.item() if isinstance(client, np.generic) else client


def _engine(engine: str | Any) -> Any:
    if not isinstance(engine, str):
        return engine
    if engine not in ENGINES:
        raise ConfigError(f"engine must be one of {sorted(ENGINES)}; got {engine!r}.")
    return ENGINES[engine]()
