"""fit: the only training loop. Rounds, progress, checkpoints, resuming, and a clear end when a run diverges."""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coterie.algorithms.local import Local
from coterie.data.federation import Federation
from coterie.engines import ENGINES
from coterie.engines.base import ClientStates, Env, first_contact
from coterie.errors import ConfigError, Diverged
from coterie.exchange.channels import Channel
from coterie.exchange.messages import Algorithm, Ask, Cohort, Population, Reply
from coterie.learning.local_steps import LocalSteps
from coterie.learning.task import Task
from coterie.settings import setting, with_setting
from coterie.training import checkpoint, cohorts
from coterie.training.evaluation import Evaluation
from coterie.training.progress import bar, finish_on_interrupt
from coterie.training.result import FILES, Result
from coterie.tree import leaves

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
    Ctrl-C finishes the round, saves and returns the result so far. start: a model (parameter dictionary) everyone starts
    from, or a whole server state. An algorithm with clusters=None gets the number of clusters chosen on held-out training
    data first (`choose_clusters`, 1 to 6); `result.about["choice"]` shows the evidence, `"choice_note"` its limit, if any.
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
    run.begin(resume=resume, overwrite=overwrite)
    with bar(progress, rounds, run.done) as tick, finish_on_interrupt() as interrupted:
        saved = run.done
        while run.done < rounds and not interrupted:
            row = run.one_round()
            if evaluate_every and (run.done % evaluate_every == 0 or run.done == rounds):
                row |= run.evaluation().test_means()
            run.history.append(row)
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
    fingerprint: str = ""
    start: Any = None
    about: dict[str, Any] = field(default_factory=dict)

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
        self.fingerprint = self._fingerprint()
        population = Population(len(fed), fed.n_train, fed.clusters)
        self.state = self.algorithm.init(self.task, population, self.seed, self.env.initial)
        if self.start is not None and not isinstance(self.start, dict):
            self.state = self.start
        file = None if self.out is None else self.out / checkpoint.FILE
        if resume:
            if file is None:
                raise ConfigError("resume needs the folder of the run. Pass out=….")
            self._load(file)
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
        try:
            conversation = self.algorithm.round(self.state, Cohort(who, self.done, self.seed))
            reply: Reply | None = None
            while True:
                try:
                    ask = conversation.send(reply)  # type: ignore[arg-type]  # None starts a generator
                except StopIteration as end:
                    state = end.value
                    break
                reply = self._exchange(ask)
                row["lost"] = max(row["lost"], len(reply.lost))
                row["bytes_down"] += reply.bytes_down
                row["bytes_up"] += reply.bytes_up
                for name, (total, count) in reply.info.items():
                    before = info.get(name, (0.0, 0))
                    info[name] = (before[0] + total, before[1] + count)
            if not all(bool(torch.isfinite(t).all()) for t in _floats(state)):
                raise Diverged(None, "the server's update")
        except Diverged as error:
            self.env.states.rollback()
            raise self._explain(error) from None
        except BaseException:
            self.env.states.rollback()
            raise
        self.env.states.commit()
        self.state, self.done = state, self.done + 1
        row |= {name: total / count for name, (total, count) in info.items() if count}
        row["seconds"] = time.perf_counter() - began
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
        if len(ask.clients) < len(asked):
            reply = replace(reply, lost=asked[~np.isin(asked, ask.clients)])
        return reply

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
                "fingerprint": self.fingerprint,
            },
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
        about = {"done": self.done, "plain": plain, "history": self.history, "fingerprint": self.fingerprint}
        checkpoint.write(self.out / checkpoint.FILE, tensors, about)

    def _load(self, file: Path) -> None:
        tensors, about = checkpoint.read(file)
        if about["fingerprint"] != self.fingerprint:
            raise ConfigError(
                f"The run in {file.parent} was made with other settings or data; resuming would mix two runs. "
                "Call fit with the same algorithm, data, task, seed, cohort and channels, or choose another folder."
            )
        self.state = checkpoint.unpack(self.state, tensors, about["plain"], self.env.states)
        self.done, self.history = about["done"], about["history"]

    def _fingerprint(self) -> str:
        """Changes when the run would: hyper-parameters, data, network, seed, sampling, channels."""
        fed = self.federation
        some = fed.x[:: max(len(fed.x) // 997, 1)].contiguous().numpy()
        data = (hashlib.sha256(some.tobytes()).hexdigest(), hashlib.sha256(fed.y.numpy().tobytes()).hexdigest())
        parts = (
            self.algorithm,
            self.seed,
            self.sampler,
            self.channels,
            self.task.metrics,
            self.task.loss if isinstance(self.task.loss, str) else getattr(self.task.loss, "__qualname__", "loss"),
            self.task.skeleton,
            {k: tuple(t.shape) for k, t in self.env.initial.items()},
            (tuple(fed.x.shape), data, fed.offsets.tobytes(), fed.n_train.tobytes(), fed.keys.tobytes()),
        )
        text = re.sub(r" at 0x[0-9a-f]+", "", repr(parts))  # where an object lies in memory
        return hashlib.sha256(text.encode()).hexdigest()[:16]

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


def _floats(state: Any) -> Iterator[torch.Tensor]:
    for t in leaves(vars(state)):
        if isinstance(t, torch.Tensor) and t.is_floating_point():
            yield t


def _engine(engine: str | Any) -> Any:
    if not isinstance(engine, str):
        return engine
    if engine not in ENGINES:
        raise ConfigError(f"engine must be one of {sorted(ENGINES)}; got {engine!r}.")
    return ENGINES[engine]()
