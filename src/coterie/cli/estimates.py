"""An estimate on sites: its job from a file, the server's numbers, and each site's own."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coterie.base.disk import write_text
from coterie.base.text import suggest
from coterie.base.tree import Tree
from coterie.data.federation import Federation
from coterie.errors import ConfigError
from coterie.estimation.means import GaussianMeans
from coterie.estimation.mixtures import MixtureMeans
from coterie.estimation.rates import BernoulliRates
from coterie.estimation.regression.linear import LinearModels
from coterie.estimation.regression.logistic import LogisticModels
from coterie.exchange.messages import Ask, Ints, Reply
from coterie.flower.job import Job
from coterie.flower.trials import Trials
from coterie.learning.rows_task import rows_task
from coterie.training.estimators import Sums, estimated

ESTIMATORS: dict[str, Any] = {
    "gaussian_means": GaussianMeans, "mixture_means": MixtureMeans, "bernoulli_rates": BernoulliRates,
    "linear_models": LinearModels, "logistic_models": LogisticModels,
}  # fmt: skip
ESTIMATES = "estimates.json"
_POPULATION = ("mean", "centers", "prior", "prior_variance", "prior_covariance", "proportions")


@dataclass(frozen=True)
class Estimate:
    """What server and sites make of an estimate."""

    algorithms: tuple[str, ...] = ()

    def exchange(self, job: Job, federation: Federation) -> Generator[Ask, Reply, Any]:
        """Nothing is asked before the estimator asks."""
        yield from ()

    def decide(
        self, found: Any, job: Job, federation: Federation, trials: Trials, tell: Callable[[str], None]
    ) -> dict[str, Any]:
        return shown(estimated(job.algorithm.estimator, federation, trials, job.seed, job.algorithm))

    def conclude(self, made: dict[str, Any], folder: Path) -> dict[str, Any]:
        write_text(folder / ESTIMATES, json.dumps(made, indent=1))
        return {"estimator": made["estimator"], "left_out": made["left_out"]}

    def share(self, found: Any, made: dict[str, Any], federation: Federation, own: Ints) -> tuple[dict[str, Any], Tree]:
        """The population, and the numbers of the clients here."""
        here = {str(federation.clients[int(c)]) for c in own}
        return made | {"clients": {c: v for c, v in made["clients"].items() if c in here}, "left_out": []}, {}

    def keep(
        self, told: dict[str, Any], tensors: Tree, job: Job, federation: Federation, own: Ints, folder: Path
    ) -> None:
        """The same, with what was done to the columns."""
        plan = federation.preprocessing
        columns = None if plan is None else json.loads(plan.to_json(orient="records"))
        write_text(folder / ESTIMATES, json.dumps(told | {"columns": columns}, indent=1), private=True)


def shown(made: Any) -> dict[str, Any]:
    """What an estimator has learned, as plain values: per client, and of the population."""
    names = [str(c) for c in made.clients_]
    learned = {
        k.removesuffix("_"): np.asarray(v) for k, v in vars(made).items() if k.endswith("_") and k != "left_out_"
    }
    learned = {k: v for k, v in learned.items() if v.dtype.kind in "fiu"}
    each = {k for k, v in learned.items() if v.ndim and len(v) == len(names) and k not in _POPULATION}
    return {
        "estimator": repr(made),
        "population": {k: v.tolist() for k, v in learned.items() if k not in each},
        "clients": {c: {k: learned[k][i].tolist() for k in sorted(each)} for i, c in enumerate(names)},
        "left_out": list(getattr(made, "left_out_", ())),
    }


def estimate_job(data: Mapping[str, Any], section: Any, reading: Mapping[str, Any], **more: Any) -> Job:
    """The job of [data] and [estimate]."""
    if not isinstance(section, Mapping) or not isinstance(section.get("name"), str):
        raise ConfigError(f'[estimate] needs a name, such as name = "linear_models"; got {section!r}. Add it.')
    name, settings = section["name"], {k: v for k, v in section.items() if k != "name"}
    if name not in ESTIMATORS:
        raise ConfigError(f"There is no estimator {name!r}. {suggest(name, ESTIMATORS)}")
    known = ESTIMATORS[name]().get_params()
    for key in (k for k in settings if k not in known):
        raise ConfigError(f"Unknown key estimate.{key}. {suggest(key, known)}")
    options = {"test_fraction": 0.0, "dtype": "float64", **data}
    estimator = ESTIMATORS[name](**settings)
    return Job(Sums(estimator), rows_task, options, 1, 0, reading=dict(reading), ends=Estimate(), **more)
