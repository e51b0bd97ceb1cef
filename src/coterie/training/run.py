"""`fit`: a run from its settings to its result, with progress, checkpoints and resuming. `live_run.py` has its rounds."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from coterie.base.arguments import check_arguments, shown, whole_number
from coterie.base.disk import locked
from coterie.data.federation import Federation
from coterie.engines import ENGINES
from coterie.engines.devices import checked
from coterie.errors import ConfigError, CoterieWarning
from coterie.exchange.channels import Channel
from coterie.exchange.messages import Algorithm
from coterie.learning.task import Task
from coterie.privacy.ledger import BudgetSpent
from coterie.privacy.settings import Privacy
from coterie.privacy.taint import Released
from coterie.training import checkpoint, cohorts
from coterie.training.contract import (
    require_steps,
)
from coterie.training.later_clients import kept_apart
from coterie.training.live_run import Callback
from coterie.training.live_run import Run as Run
from coterie.training.live_run import begin_local as begin_local
from coterie.training.private_run import private_form
from coterie.training.progress import bar, finish_on_interrupt
from coterie.training.result import Result
from coterie.training.validity import opened
from coterie.training.yardstick import Yardstick

_CHOICE_ROUNDS = 30  # rounds of each trial when the number of clusters is chosen


def fit(
    algorithm: Algorithm | Released[Any],
    federation: Federation,
    task: Task | Released[Task] | None = None,
    *,
    rounds: int = 10,
    seed: int = 0,
    cohort: cohorts.Sampler | int | float | None = None,
    channels: Sequence[Channel | Released[Any]] = (),
    engine: str | Any = "local",
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    checkpoint_every: int = 10,
    evaluate_every: int = 0,
    evaluate_clients: int | None = None,
    alone: bool | Yardstick | Result = True,
    progress: bool | None = None,
    callbacks: Sequence[Callback | Released[Any]] = (),
    start: Any = None,
    privacy: Privacy | None = None,
    device: str | None = None,
    newcomers: float | None = None,
) -> Result:
    """Train with an algorithm and return what every client gets.

    cohort: None (everyone), a number of clients, a probability (Poisson) or a sampler. out: folder for checkpoints and the
    result; `resume=True` continues the run found there, bit-identically. alone: also train every client alone when the
    result is evaluated or saved, to measure its gain: True or "tuned" (learning rate and stopping time chosen on
    its own validation rows), "equal budget" (as the run), False, or a Result of `Local`.
    evaluate_every: every so many rounds the history gets the mean test scores of all clients, or of `evaluate_clients` drawn
    at random, with standard errors.
    Ctrl-C (or SIGTERM) finishes the round, saves and returns the result so far. One process at a time may use `out`.
    start: a model (parameter dictionary) everyone starts from, or a whole server state. An algorithm with clusters=None gets
    the number of clusters chosen on held-out training data first (`choose_clusters`); `result.about["choice"]` shows the
    evidence, `"choice_note"` its limit, if any. `result.about["warnings"]` says when the loss exploded, `"notes"` what the
    algorithm says about the end of the run.
    A client that sends NaN or infinity is lost in that round; `result.about["dropped"]` names it. callbacks: called after
    every round with the live run, for example to log the groups, `run.evaluation().clusters()`, or to end it,
    `run.stop("reason")`; `TensorBoard` is one.

    privacy: a budget, `Privacy(epsilon=3, delta=1e-6, clip=1.0)`; every additive ask then releases noisy sums of clipped
    updates, and `result.receipt` lists the releases. The run stops before a release that would overspend, and
    `result.about["stopped"]` says so. With `Privacy(unit="row")` every row is protected instead: FedAvg's LocalSGD steps use
    clipped gradients of single rows with noise, and each client adds its own noise. Your own classes, networks with
    weights, channels and callbacks may hold clients' data and void the receipt, unless `privacy.public(…)` around them
    states that they do not.

    device: where client functions run, such as "cpu" or "cuda"; an engine object is made with its own,
    `LocalEngine(device="cuda")`.

    newcomers: a share of the clients, drawn by the seed, that training never sees; `result.evaluate_new()`
    tells what they get.

    An estimator (`GaussianMeans`, `MixtureMeans`, `BernoulliRates`) is fitted to sums that clients tell of their training
    rows, and returned; of the options only `engine` and `device` apply to it.
    """
    if hasattr(algorithm, "get_params") and not hasattr(algorithm, "round"):
        from coterie.training.estimators import estimated

        return cast(Result, estimated(algorithm, federation, engine_of(engine, device), int(seed)))
    given, declared = opened(algorithm=algorithm, task=task, channels=channels, callbacks=callbacks)
    check_arguments(locals() | given)
    rounds, seed = int(rounds), int(seed)
    method = given["algorithm"]
    work: Task = given["task"] if task is not None else Task.default(federation)
    later = None
    if newcomers is not None:
        federation, later = kept_apart(federation, newcomers, seed, privacy)
    from coterie.training.number_of_clusters import fill_in_clusters

    require_steps(method)
    choices: dict[str, str] = {}
    engine = engine_of(engine, device)
    rows, plain = None, method
    if privacy is not None and privacy.rows:
        from coterie.training.protected_rows import Protected, refuse_options, trained_numbers

        refuse_options(engine, cohort, channels, out)
        size = trained_numbers(work, seed, federation.x.dtype)
        rows = Protected.open(method, federation, work, rounds, privacy, seed, size, start)
        method, privacy, alone = rows.algorithm, None, False
    if privacy is not None:
        method, privacy, choices = private_form(method, privacy)
    how: dict[str, Any] = {"seed": seed, "cohort": cohort, "channels": given["channels"], "engine": engine}
    method, about = fill_in_clusters(method, federation, work, min(rounds, _CHOICE_ROUNDS), **how)
    run = Run(
        method,
        federation,
        work,
        seed,
        cohorts.sampler(cohort),
        tuple(given["channels"]),
        engine,
        None if out is None else Path(out),
        start=start,
        about=about,
        privacy=privacy,
        rounds=rounds,
        choices=choices | ({"number of clusters": "chosen on the clients' data"} if about else {}),
        declared=declared,
        callbacks=given["callbacks"],
    )
    if evaluate_clients is not None:
        whole_number("evaluate_clients", evaluate_clients, 1)
    if rounds < 0 or checkpoint_every < 1:
        raise ConfigError(f"rounds must be ≥ 0 and checkpoint_every ≥ 1; got {rounds} and {checkpoint_every}.")
    if privacy is not None and not privacy.simulated:
        checkpoint_every = 1  # releases that were not saved are lost
    if resume:
        checkpoint.require(run.out)
    try:
        # this also shows, before the first round, that files can be written there
        with locked(run.out, private=privacy is not None):
            run.begin(resume=resume, overwrite=overwrite)
            result = _train(run, rounds, checkpoint_every, (evaluate_every, evaluate_clients), alone, progress, later)
            return result if rows is None else replace(result, receipt=rows.receipt(run, plain), _again=None)
    finally:
        if run.session is not None:
            run.session.ledger.close()


def _train(
    run: Run,
    rounds: int,
    checkpoint_every: int,
    evaluate_every: tuple[int, int | None],
    alone: bool | Yardstick | Result,
    progress: bool | None,
    later: Federation | None = None,
) -> Result:
    """All rounds, and what they end with. evaluate_every: rounds, and how many clients (None: all)."""
    calls = [_taking_run(callback) for callback in run.callbacks]
    every, size = evaluate_every
    with bar(progress, rounds, run.done) as tick, finish_on_interrupt(run.out is not None) as interrupted:
        saved = run.done
        while run.done < rounds and not interrupted and "stopped" not in run.about:
            try:
                row = run.one_round()
            except BudgetSpent as spent:
                assert run.session is not None
                told = run.session.why_spent(run.done, spent)
                run.stop(told)
                warnings.warn(f"Round {run.done + 1} was not made: {told}", CoterieWarning, stacklevel=3)
                break
            if every and (run.done % every == 0 or run.done == rounds):
                row |= run.evaluation().test_means(size)
            run.call(calls)
            tick(row)
            if run.out is not None and run.done % checkpoint_every == 0:
                run.save()
                saved = run.done
        if run.out is not None and run.done > saved:
            run.save()
    if interrupted and run.done < rounds and run.session is not None:
        run.session.choices["rounds"] = (
            f"stopped by hand after {run.done} of {rounds}, by whatever was seen; resume the run"
        )
    result = replace(run.result(rounds, alone), _later=later)
    if run.out is not None:  # after Ctrl-C the clients are not trained alone
        (replace(run.result(rounds, alone=False), _later=later) if interrupted else result).save(run.out)
    return result


def _taking_run(callback: Any) -> Callable[[Run], None]:
    """A callback of one argument takes the run; one of two takes the last row of its history and its state."""
    try:
        inspect.signature(callback).bind(None)
    except TypeError:
        return lambda run: callback(run.history[-1], run.state)
    except ValueError:  # written in C, it does not say
        pass
    called: Callable[[Run], None] = callback
    return called


def engine_of(engine: str | Any, device: str | None) -> Any:
    """An engine by its name, or an engine object, checked."""
    by_name = isinstance(engine, str)
    device = device if by_name and engine == "ray" else checked(device)  # of Ray's, the actors' machines matter
    if by_name:
        if engine not in ENGINES:
            raise ConfigError(f"engine must be one of {sorted(ENGINES)}; got {engine!r}.")
        return ENGINES[engine](device=device)
    if isinstance(engine, type) or not callable(getattr(engine, "run", None)):
        raise ConfigError(
            f"engine must be one of {sorted(ENGINES)} or an engine such as LocalEngine(); got {shown(engine)}."
        )
    if device is not None and getattr(engine, "device", None) != device:
        raise ConfigError(
            f"An engine object has its own device; got device={device!r} beside {type(engine).__name__}. Make it with the "
            f"device: {type(engine).__name__}(device={device!r})."
        )
    return engine
