"""Training that protects every row of every client: FedAvg with clipped, noisy gradients of single rows.

All steps of all rounds are booked before the first: `rounds · steps` releases of one Gaussian each, with Poisson sampling. A
row belongs to one client, so the releases of different clients do not add up. Models that leave a client come from these
releases and public values alone; numbers of rows are public."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from coterie.aggregation import Mean
from coterie.algorithms.fedavg import FedAvg
from coterie.data.federation import Federation
from coterie.data.provenance import declared, undeclared
from coterie.engines import LocalEngine, LoopEngine
from coterie.errors import ConfigError
from coterie.learning.batched.protected import RowNoise
from coterie.learning.local_sgd import LocalSGD
from coterie.learning.task import Task
from coterie.privacy.account import GRADIENTS, MOMENTS, Account, account_of_rows
from coterie.privacy.accounting import compose
from coterie.privacy.mechanisms.gaussian import DRAWN_BY_THE_RUN, booked
from coterie.privacy.mechanisms.sums import JointSum
from coterie.privacy.plan import Line
from coterie.privacy.receipt import Receipt
from coterie.privacy.settings import Privacy
from coterie.privacy.taint import Released, public
from coterie.training.private_run import SIMULATION_ONLY, unwrapped
from coterie.training.validity import doubts, public_ranges


@dataclass(frozen=True)
class ProtectedSGD(LocalSGD):
    """LocalSGD whose every step protects rows; `fit` makes it from a LocalSGD and a budget."""

    rows: RowNoise | None = None

    @property
    def protected(self) -> RowNoise | None:
        return self.rows


@dataclass
class Protected:
    """The budget of a run that protects rows: the algorithm with noisy steps, and what its receipt says."""

    account: Account
    algorithm: FedAvg
    n_rows: int
    sampling: float
    start: Released[Any]

    @classmethod
    def open(
        cls,
        algorithm: Any,
        federation: Federation,
        task: Task,
        rounds: int,
        privacy: Privacy,
        seed: int,
        size: int,
        start: Any,
    ) -> Protected:
        """Book all steps, in a named ledger for every client by itself; the account kept is that of the client with the
        largest total. `size` is the number of trained parameters."""
        local = _checked(algorithm, federation, task, privacy)
        largest, steps = int(federation.n_train.max()), int(local.steps or 0)
        sampling = 1.0 if local.batch_size is None else min(1.0, local.batch_size / largest)
        count = max(rounds * steps, 1)
        names = [str(c) for c in federation.clients] if privacy.ledger is not None else [""]
        lines = [Line(GRADIENTS, 1.0, count, sampling)]
        accounts = [account_of_rows(privacy, name, lines, seed, (GRADIENTS, MOMENTS)) for name in names]
        account = max(accounts, key=lambda a: compose(a.ledger.earlier()).epsilon(privacy.delta))
        z = account.noise_multiplier(GRADIENTS)
        mechanism = JointSum(GRADIENTS, size, privacy.clip, z, privacy.adjacency, sampling)
        for other in (a for a in accounts if a is not account):
            booked(_Many(mechanism, count), other.book, other.noise, drawn=DRAWN_BY_THE_RUN)
            other.ledger.close()
        _, taint = booked(_Many(mechanism, count), account.book, account.noise, drawn=DRAWN_BY_THE_RUN)
        account.keep(Released("the models of all rounds", (), taint))
        own = {f.name: getattr(local, f.name) for f in fields(local)}
        noisy = ProtectedSGD(**own, rows=RowNoise(mechanism, account.noise))
        return cls(
            account, replace(algorithm, local=noisy), int(federation.n_train.sum()), sampling, unwrapped(start)[1]
        )

    def receipt(self, run: Any, plain: Any) -> Receipt:
        """What was released. `run` is as the user asked for it, with the `plain` algorithm."""
        asked = replace(run, algorithm=plain, privacy=self.account.privacy)
        reasons = [*doubts(asked), *undeclared(run.federation, groups=False), *self.start.taint]
        reasons += self.account.ledger.unpaid((*self.start.bookings, *run.declared.bookings))
        if run.federation.columns is not None and run.federation.labels.get("scaling") != "ranges":
            reasons.append("unaccounted: columns were prepared by statistics of rows; read the table with ranges=")
        for reason in reasons:
            self.account.ledger.void(reason)
        self.account.keep(public("the start and all settings"))
        notes = (*declared(run.federation, groups=False), *public_ranges(run.task), "numbers of rows of clients")
        notes += tuple(f"declared public by the user: {part}" for part in run.declared.parts)
        choices = {"rounds": "fixed in advance", "clip": "public", "settings": "fixed in advance"}
        return self.account.closed(self.n_rows, choices, public=notes, not_covered=SIMULATION_ONLY)


def _checked(algorithm: Any, federation: Federation, task: Task, privacy: Privacy) -> LocalSGD:
    """The local steps, if this run can protect rows; else one sentence."""
    if privacy.unit != "row":
        raise ConfigError(
            f"Training protects whole clients or single rows; got unit={privacy.unit!r}. Use 'client' or 'row', or decide "
            "with compare(across='sites'), which protects units."
        )
    if type(algorithm) is not FedAvg or not isinstance(algorithm.aggregate, Mean):
        raise ConfigError(
            "Rows are protected where clients tell nothing but what steps with noise made of them, which is FedAvg with its "
            f"mean; got {type(algorithm).__name__}. Use FedAvg(LocalSGD(…))."
        )
    local = algorithm.local
    if type(local) is not LocalSGD or local.steps is None or local.clip is not None or local.keep:
        raise ConfigError(
            "Rows are protected in the steps of LocalSGD(steps=…) without clip= and keep=, since the budget's clip bounds "
            f"the gradient of every row; got {local}. Change it."
        )
    if task.one_by_one or task.statistics:
        raise ConfigError(
            "Gradients of single rows need a network without layers in which rows see one another, convolutions apart or "
            "recurrent layers; this one has some. Use another network."
        )
    if federation.weights is not None:
        raise ConfigError("Rows that are protected count the same; these have weights. Leave the weights out.")
    return local


@dataclass(frozen=True)
class _Many:
    """Equal releases that are booked at once."""

    mechanism: JointSum
    count: int

    def event(self, noise: str) -> Any:
        return replace(self.mechanism.event(noise), count=self.count)


def refuse_options(engine: Any, cohort: Any, channels: Sequence[Any], out: str | Path | None) -> None:
    """Options of `fit` that a run that protects rows does not have."""
    if type(engine) not in (LocalEngine, LoopEngine):
        raise ConfigError(
            f"Rows are protected on the engines 'local' and 'loop'; got {type(engine).__name__}. Use one."
        )
    if cohort is not None or channels or out is not None:
        raise ConfigError(
            "A run that protects rows asks everyone, without channels, and is not resumed; leave cohort, channels and out "
            "away, and save the result with result.save(folder)."
        )


def trained_numbers(task: Task, seed: int, dtype: Any) -> int:
    return int(np.sum([t.numel() for name, t in task.init(seed, dtype).items() if name not in task.statistics]))
