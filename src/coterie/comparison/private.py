"""The private candidate of a comparison: one method, chosen and set in advance, and the receipt of one release of it.

Its scores come from runs with simulated noise, one per split: their distribution is that of a private run, and they are not
a release. One more run with exact noise, on the training rows of the first split, makes the shared model that may be given
out, and the receipt. The receipt covers nothing else in a comparison: scores, gains, marks, groups, the verdict and all
other methods are computed from clear rows.

So that the receipt can be valid, nothing about the candidate is tuned or chosen on data: the method, its steps, rounds and
clip are given, inputs are scaled by each client itself (`scaling="own"`), and numbers to predict by a public range.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

from coterie.base.settings import setting, with_setting
from coterie.base.text import suggest
from coterie.data.federation import Federation
from coterie.data.opening import Split
from coterie.errors import ConfigError, CoterieWarning
from coterie.learning.local_sgd import LocalSGD
from coterie.learning.metrics import METRICS
from coterie.learning.standardised import rescaled
from coterie.learning.task import Task
from coterie.privacy.settings import Privacy
from coterie.privacy.taint import public
from coterie.training.result import Result
from coterie.training.run import fit

NAME = "private"
ROUNDS = 20
COVERED = "the shared model of `private` from one run with exact noise, whose receipt this is"
NOT_COVERED = (
    "everything else here: scores, gains, marks, groups, the verdict, and the models of all other methods are computed from "
    "clear rows. They reveal more than the receipt allows; keep them where the rows are"
)
OF_ROWS = (
    "all that a client told, and with it everything here: scores, gains, groups, verdict and models of this comparison; the "
    "receipt is that of one client, and `receipts` has those of all",
    "names of clients and columns, public bounds and categories, and what clients do with models at home",
)
_LOCAL = LocalSGD(steps=5, lr=0.1, batch_size=None)
_TRIAL_CLIENTS = 4


@dataclass(frozen=True)
class Private:
    """A method with a budget. `split` draws rows that need no statistics of other clients; `target_range` is public."""

    algorithm: Any
    privacy: Privacy
    split: Split
    rounds: int = ROUNDS
    task: Task | None = None
    target_range: tuple[float, float] | None = None

    def work(self, data: Federation, metric: str | None) -> Task:
        """The task, with numbers to predict on the scale of the public range."""
        task = Task.default(data) if self.task is None else self.task
        if self.task is None and data.kind == "regression":
            task = rescaled(task, *self._range())
        if metric in METRICS:
            task = replace(task, metric=(metric, *(m for m in task.metrics if m != metric)))
        return task

    def _range(self) -> tuple[float, float]:
        if self.target_range is None:
            raise ConfigError(
                "A private candidate that predicts numbers needs a public range of the target, since its mean and spread "
                "are the clients' secrets; got none.",
                python="Pass target_range=(low, high).",
                cli="Give one with --target-range LOW,HIGH.",
            )
        low, high = self.target_range
        if not low < high:
            raise ConfigError(f"The range of the target must have low < high; got {low:g} and {high:g}. Swap them.")
        return low, high

    def try_out(self, seed: int, metric: str | None, engine: Any) -> None:
        """Run one round on a few clients, to refuse at once a method that cannot be made private on these data."""
        data = self.split(seed)
        some = data.subset(data.clients[:_TRIAL_CLIENTS]) if len(data) > _TRIAL_CLIENTS else data
        self._fit(some, self.work(data, metric), 1, seed, engine, _simulated(self.privacy), [])

    def simulate(self, seed: int, metric: str | None, engine: Any, alone: Result, told: list[str]) -> Result:
        """A run with simulated noise on one split, for its scores."""
        data = self.split(seed)
        return self._fit(
            data, self.work(data, metric), self.rounds, seed, engine, _simulated(self.privacy), told, alone
        )

    def release(self, seed: int, metric: str | None, engine: Any) -> Result:
        """The one run whose shared model may be given out."""
        data = self.split(seed)
        return self._fit(data, self.work(data, metric), self.rounds, seed, engine, self.privacy, [])

    def _fit(
        self, data: Federation, work: Task, rounds: int, seed: int, engine: Any, privacy: Privacy, told: list[str],
        alone: Result | None = None,
    ) -> Result:  # fmt: skip
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", CoterieWarning)
            # of the default task only the range comes from the user, who declared it public
            known = public(work) if self.task is None else work
            result = fit(
                self.algorithm, data, known, rounds=rounds, seed=seed, engine=engine, alone=alone or False,
                progress=False, privacy=privacy,
            )  # fmt: skip
        for warning in caught:
            if issubclass(warning.category, CoterieWarning):
                told.append(str(warning.message))
            else:
                warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        return result


def _simulated(privacy: Privacy) -> Privacy:
    return replace(privacy, noise="simulation", ledger=None)


def private_method(given: Any) -> Any:
    """A name becomes the algorithm with settings fixed in advance; an object is used as it is."""
    from coterie.algorithms import ALGORITHMS

    if not isinstance(given, str):
        return given() if isinstance(given, type) else given
    if given not in ALGORITHMS:
        raise ConfigError(f"There is no algorithm {given!r}. {suggest(given, ALGORITHMS)}")
    made = ALGORITHMS[given]()
    return with_setting(made, "local", _LOCAL) if isinstance(setting(made, "local"), LocalSGD) else made
