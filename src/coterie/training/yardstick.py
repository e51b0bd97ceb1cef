"""Training alone, with which every gain is compared.

"tuned" (default): every client chooses its learning rate (a few around the run's) and its stopping time on its own
validation rows, a quarter of its training rows, and is then trained on all of them. "equal budget": the run's learning
rate, and as many rounds as a client took part in on average; with a poor rate or too many rounds it flatters the
federation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch

from coterie.algorithms.local import Local
from coterie.base.tree import Params
from coterie.errors import ConfigError

if TYPE_CHECKING:
    from coterie.data.federation import Federation
    from coterie.learning.local_steps import LocalSteps
    from coterie.learning.task import Task
    from coterie.training.evaluation import Evaluation
    from coterie.training.result import Result

Yardstick = Literal["tuned", "equal budget"]
RATES = (0.3, 1.0, 3.0, 10.0)  # times the run's learning rate
LEAST_ROUNDS = 10
SAMPLE = 200  # clients trained alone when there are more
_FEWEST = 4  # with fewer validation rows a client takes the best choice over all clients
_HOLDOUT = 0.25


def check(yardstick: str) -> Yardstick:
    """The name of a yardstick; an unknown name is refused."""
    for known in get_args(Yardstick):
        if known == yardstick:
            return known  # type: ignore[no-any-return]
    raise ConfigError(f"yardstick must be one of {', '.join(get_args(Yardstick))}; got {yardstick!r}.")


def checkpoints(rounds: int) -> list[int]:
    """Rounds after which to look: 1, 2, 3, 5, 8, … and the last."""
    found, step = [], 1.0
    while step < rounds:
        found.append(int(step))
        step = max(step * 1.5, step + 1)
    return [*found, rounds]


@dataclass(frozen=True)
class Alone:
    """How a run's clients are trained alone. `rounds` is how often a client took part on average."""

    local: LocalSteps
    federation: Federation
    task: Task
    rounds: int
    seed: int
    engine: Any
    usual: Yardstick = "tuned"

    def __call__(self, yardstick: str | None = None, sample: int | None = None) -> Result:
        """The clients, or a sample of them, trained alone by a yardstick; by the usual one if none is named."""
        how = self if sample is None else self.sampled(sample)
        if check(yardstick or self.usual) == "equal budget" or self.rounds == 0:
            return how._fit(self.local.lr, how.federation, self.rounds)
        return how._tuned()

    def sampled(self, count: int) -> Alone:
        """The same with a random sample of the clients."""
        if count >= len(self.federation):
            return self
        chosen = np.sort(np.random.default_rng([self.seed, 7]).permutation(len(self.federation))[:count])
        return replace(self, federation=self.federation.subset(self.federation.clients[chosen]))

    def _fit(self, lr: float, federation: Federation, rounds: int, **more: Any) -> Result:
        from coterie.training.run import fit

        found = fit(
            Local(self.local.but(lr=lr)), federation, self.task, rounds=rounds, seed=self.seed, engine=self.engine,
            alone=False, progress=False, **more,
        )  # fmt: skip
        if not found.about["finished"]:  # a yardstick of fewer rounds would make every gain too large
            raise KeyboardInterrupt
        return found

    def _tuned(self) -> Result:
        rates = [factor * self.local.lr for factor in RATES]
        looks = checkpoints(max(self.rounds, LEAST_ROUNDS))
        fitting = self.federation.holdout(_HOLDOUT)
        losses = np.stack([self._losses(lr, fitting, looks) for lr in rates])  # (rates, looks, clients)
        rate, look = self._choose(losses, fitting.n_test)
        models: Params = {}
        for r in sorted(set(rate.tolist())):
            mine = np.flatnonzero(rate == r)
            part = self.federation.subset(self.federation.clients[mine])
            wanted = look[mine]
            kept = self._models(rates[r], part, looks[: int(wanted.max()) + 1], wanted)
            for name, value in kept.items():
                models.setdefault(name, value.new_zeros((len(rate), *value.shape[1:])))[mine] = value
        return self._with_models(models)

    def _course(self, rate: float, federation: Federation, looks: list[int], measure: Any) -> dict[int, Any]:
        from coterie.training.tuning import course

        alone = Local(self.local.but(lr=rate))
        return course(alone, federation, self.task, looks, measure, seed=self.seed, engine=self.engine)[0]

    def _losses(self, rate: float, federation: Federation, looks: list[int]) -> Any:
        """(looks, clients): test losses, infinite once the rate diverged."""
        seen = self._course(rate, federation, looks, lambda live: live.test_losses())
        return np.stack([seen.get(look, np.full(len(federation), np.inf)) for look in looks])

    def _models(self, rate: float, federation: Federation, looks: list[int], wanted: Any) -> Params:
        """The model of every client after the look it wants."""
        kept: Params = {}

        def keep(live: Evaluation) -> None:
            mine = np.flatnonzero(wanted == looks.index(live.env.round))
            for name, value in live.personal(mine).items() if len(mine) else ():
                kept.setdefault(name, value.new_zeros((len(federation), *value.shape[1:])))[mine] = value

        self._course(rate, federation, looks, keep)
        return kept

    @staticmethod
    def _choose(losses: Any, n_validation: Any) -> tuple[Any, Any]:
        """(rate, look) of every client; a client with too few validation rows takes the best choice over all clients."""
        _, looks, clients = losses.shape
        flat = np.where(np.isfinite(losses), losses, np.inf).reshape(-1, clients)
        own = flat.argmin(0)
        enough = n_validation >= _FEWEST
        some = flat[:, enough] if enough.any() else flat
        usual = int(np.where(np.isfinite(some), some, 1e9).mean(1).argmin())
        best = np.where(enough & np.isfinite(flat.min(0)), own, usual)
        return best // looks, best % looks

    def _with_models(self, models: Params) -> Result:
        """A result in which every client has the given model."""
        from coterie.training.run import begin_local

        run = begin_local(Local(self.local), self.federation, self.task, self.seed, self.engine)
        everyone = np.arange(len(self.federation))
        run.evaluation().ready(everyone)
        given = {"model": {name: torch.as_tensor(t) for name, t in models.items()}}
        run.env.states.set(everyone, run.env.states.get(everyone) | given)  # the optimiser's state is kept
        run.env.states.commit()
        return run.result(0, alone=False)
