"""Result: what every client gets out of a run, whether it was ever sampled or not."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from torch import nn

from coterie.data.federation import Federation
from coterie.errors import ConfigError, DataError
from coterie.learning import module_json, predictors
from coterie.learning.task import Task
from coterie.training import files
from coterie.training.evaluation import Evaluation
from coterie.training.gains import FEWEST
from coterie.tree import row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from coterie.training.participation import Participation, Rule

_COLUMNS = ["round", "loss", "clients", "lost", "bytes_down", "bytes_up", "seconds"]
FILES = files.FILES


@dataclass(frozen=True, eq=False)
class Result:
    """`history` (a row a round), `evaluate()` (a row a client), `clusters`, `model(client)`, `save` / `load`, `plot_*`;
    `evaluation` computes more of a run that is in memory."""

    history: pd.DataFrame
    about: dict[str, Any]
    clients: pd.Index[Any]
    clusters: pd.Series[int]
    _evaluation: Evaluation | None = None
    _alone: Callable[[], Result] | None = None
    _again: Callable[[Federation], Result] | None = None  # the same run with other clients
    _stored: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_evaluation(
        cls,
        evaluation: Evaluation,
        history: list[dict[str, Any]],
        about: dict[str, Any],
        alone: Callable[[], Result] | None,
        again: Callable[[Federation], Result] | None = None,
    ) -> Result:
        """What `fit` returns. alone: how to train the clients alone; again: how to make the same run with others."""
        clients = evaluation.federation.clients
        clusters = pd.Series(evaluation.clusters(), index=clients, name="cluster")
        table = pd.DataFrame(history, columns=None if history else _COLUMNS)
        return cls(table, about, clients, clusters, evaluation, alone, again)

    @property
    def loaded(self) -> bool:
        """Whether this result was read from disk, so that its run is not in memory."""
        return self._evaluation is None

    @property
    def evaluation(self) -> Evaluation:
        """The run in memory: any client's model, scores and losses, and the parts it was made of."""
        if self._evaluation is None:
            raise ConfigError(
                "A loaded result has no run in memory; it holds history, evaluate(), clusters and models. "
                "Call fit for the rest (with resume=True it continues from the last checkpoint)."
            )
        return self._evaluation

    @property
    def task(self) -> Task:
        return self.evaluation.task

    @property
    def federation(self) -> Federation:
        return self.evaluation.federation

    @property
    def state(self) -> Any:
        """The server's final state."""
        return self.evaluation.state

    def evaluate(self) -> pd.DataFrame:
        """One row for *every* client: its own model on its own test data, what it would have had alone, and the gain.

        `gain` is in units of the first metric, positive when taking part is better than training alone with the same
        optimiser for the same number of rounds."""
        if "evaluation" not in self._stored:
            task, federation, table = self.task, self.federation, self.scores()
            first, alone = task.metrics[0], self.alone()
            table["alone"] = np.nan if alone is None else alone.scores()[first]
            table["gain"] = task.sign * (table[first] - table["alone"])
            table["cluster"] = self.clusters
            table["n_train"], table["n_test"] = federation.n_train, federation.n_test
            self._stored["evaluation"] = table.rename_axis("client")
        evaluation: pd.DataFrame = self._stored["evaluation"].copy()
        return evaluation

    def alone(self) -> Result | None:
        """The same clients trained alone: same optimiser, rounds and seed (trained on first use)."""
        if "alone" not in self._stored:
            self._stored["alone"] = None if self._alone is None else self._alone()
        baseline: Result | None = self._stored["alone"]
        return baseline

    def participation(
        self,
        level: float = 0.9,
        resamples: int = 2000,
        *,
        rule: Rule = "interval",
        fewest: int = FEWEST,
        seed: int = 0,
    ) -> Participation:
        """Who gains, who would leave, and whether the coalition is stable when they do; see `participation.py`."""
        from coterie.training.participation import audit

        return audit(self, level=level, resamples=resamples, rule=rule, fewest=fewest, seed=seed)

    def scores(self) -> pd.DataFrame:
        """Every client's own model on its own test data: one row per client, one column per metric."""
        if self.loaded:
            kept: pd.DataFrame = self.evaluate()[self.about["metrics"]]
            return kept
        if "scores" not in self._stored:
            self._stored["scores"] = self.evaluation.scores()
        scores: pd.DataFrame = self._stored["scores"].copy()
        return scores

    def again(self, federation: Federation) -> Result:
        """The same run with other clients: same settings, seed and rounds, nobody trained alone. This trains."""
        if self._again is None:
            raise ConfigError("This result does not know how it was made, so it cannot be trained again. Use fit.")
        return self._again(federation)

    def model(self, client: Hashable) -> nn.Module:
        """The client's own model, ready to use."""
        if not self.loaded:
            live = self.evaluation
            index = live.federation.index(client)
            network = live.task.module(params=row(live.personal(np.array([index])), 0))
            special = live.algorithm.predictor()
            if special is not None:
                network = special.module(network, *live.federation.train(client))
            return network.eval()
        network = self._stored_model(client)
        if "predictor" not in self.about:
            return network
        if "federation" not in self._stored:
            raise ConfigError(
                "The clients of this result predict with their own samples, which are not saved. "
                "Load with Result.load(folder, federation=…)."
            )
        samples = self._stored["federation"].train(client)
        return predictors.build(self.about["predictor"]).module(network, *samples).eval()

    def _stored_model(self, client: Hashable) -> nn.Module:
        if client not in self.clients:
            raise DataError(f"There is no client {client!r} in this result.")
        which = int(self._stored["model_of"][self.clients.get_loc(client)])
        params = {name: t[which] for name, t in self._stored["models"].items()}
        if "task" in self._stored:
            own: nn.Module = self._stored["task"].module(params=params)
            return own.eval()
        spec = self.about["architecture"]
        if spec is None:
            raise ConfigError(
                "This network is not made of plain torch.nn layers, so its code was not saved. "
                "Load with Result.load(folder, task=…)."
            )
        module = module_json.build(spec).to(next(iter(params.values())).dtype)
        module.load_state_dict(params)
        return module.eval()

    # ---- disk --------------------------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> Path:
        """history.parquet, evaluation.parquet, models.safetensors (equal models stored once) and result.json."""
        folder = Path(folder)
        live = self.evaluation
        models, which = live.distinct_models()
        tensors = {f"model/{k}": t for k, t in models.items()} | {"model_of": which}
        about = self.about | {
            "architecture": module_json.describe(live.task.skeleton),
            "metrics": list(live.task.metrics),
            "clients": self.clients.tolist(),
            "clusters": self.clusters.tolist(),
        }
        if (special := live.algorithm.predictor()) is not None:
            about["predictor"] = predictors.describe(special)
        return files.save(folder, about, tensors, self.history, self.evaluate())

    @classmethod
    def load(cls, folder: str | Path, task: Task | None = None, federation: Federation | None = None) -> Result:
        """A result saved by `save` (or by `fit` with `out`); no pickle needed. Clients that predict with their own
        samples (KNNPer) need these: pass the `federation`."""
        folder = Path(folder)
        about, tensors, history, evaluation = files.load(folder)
        clients: pd.Index[Any] = pd.Index(about.pop("clients"))
        stored: dict[str, Any] = {
            "evaluation": evaluation.set_index(clients).rename_axis("client"),
            "models": {k.removeprefix("model/"): t for k, t in tensors.items() if k.startswith("model/")},
            "model_of": tensors["model_of"],
        }
        if task is not None:
            stored["task"] = task
        if federation is not None:
            stored["federation"] = federation
        clusters = pd.Series(about.pop("clusters"), index=clients, name="cluster")
        return cls(history, about, clients, clusters, _stored=stored)

    # ---- pictures ----------------------------------------------------------------------------------------------------

    def plot_history(self, column: str = "loss", ax: Axes | None = None) -> Axes:
        from coterie.training.plots import plot_history

        return plot_history(self.history, column, ax)

    def plot_gains(self, ax: Axes | None = None) -> Axes:
        from coterie.training.plots import plot_gains

        return plot_gains(self.evaluate(), ax)

    def plot_clusters(self, ax: Axes | None = None) -> Axes:
        from coterie.training.plots import plot_clusters

        return plot_clusters(self.clusters, ax)
