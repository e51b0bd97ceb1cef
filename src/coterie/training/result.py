"""Result: what every client gets out of a run, whether it was ever sampled or not."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor, nn

from coterie.data.federation import Federation
from coterie.engines.base import Env, first_contact
from coterie.errors import ConfigError, DataError
from coterie.exchange.messages import Algorithm, Context, Ints
from coterie.learning import module_json, predictors
from coterie.learning.metrics import METRICS
from coterie.learning.task import Task
from coterie.training import checkpoint
from coterie.tree import Params, Tree, row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from coterie.training.participation import Participation, Rule

_COLUMNS = ["round", "loss", "clients", "lost", "bytes_down", "bytes_up", "seconds"]
FILES = ("result.json", "history.parquet", "evaluation.parquet", "models.safetensors")


@dataclass(frozen=True)
class Live:
    """A finished run still in memory: can compute any client's model and scores."""

    algorithm: Algorithm
    federation: Federation
    task: Task
    state: Any
    env: Env
    engine: Any

    def everyone(self) -> Ints:
        return np.arange(len(self.federation))

    def _ready(self, clients: Ints) -> Ints:
        first_contact(self.algorithm, clients, self.env, self.engine)
        self.env.states.commit()
        return clients

    def personal(self, clients: Ints) -> Params:
        """The models of some clients, stacked."""
        self._ready(clients)

        def personal(ctx: Context) -> Tree:
            return self.algorithm.personal(ctx, self.state)

        models: Params = self.engine.map(personal, clients, self.env, test=False)
        return models

    def clusters(self) -> Ints:
        clients = self._ready(self.everyone())

        def cluster(ctx: Context) -> Tree:
            return {"cluster": self.algorithm.cluster(ctx, self.state)}

        labels: Tensor = self.engine.map(cluster, clients, self.env, test=False)["cluster"]
        return labels.numpy().astype(np.int64)

    def scores(self) -> pd.DataFrame:
        """Every client's own predictor on its own test data: one row a client, one column a metric."""
        clients = self._ready(self.everyone())

        def predict(ctx: Context, test: Context) -> Tree:
            outputs = self.algorithm.predict(ctx, self.state, test.x)
            return {"outputs": outputs, "y": test.y, "mask": test.mask}

        def post(out: Tree) -> Tree:
            outputs = out["outputs"] if out["outputs"].dim() == 3 else out["outputs"].unsqueeze(-1)
            return {m: METRICS[m](outputs, out["y"], out["mask"]) for m in self.task.metrics}

        table = self.engine.map(predict, clients, self.env, test=True, post=post)
        return pd.DataFrame({m: table[m].double().numpy() for m in self.task.metrics}, index=self.federation.clients)

    def test_losses(self) -> npt.NDArray[np.float64]:
        """The task's loss of every client's predictor on its own test rows (NaN without any)."""
        clients = self._ready(self.everyone())

        def loss(ctx: Context, test: Context) -> Tree:
            outputs = self.algorithm.predict(ctx, self.state, test.x)
            return {"loss": (self.task.sample_losses(outputs, test.y) * test.mask).sum() / test.mask.sum()}

        losses: Tensor = self.engine.map(loss, clients, self.env, test=True)["loss"]
        return losses.double().numpy()

    def train_losses(self) -> npt.NDArray[np.float64]:
        """The task's loss of every client's model on its own training rows."""
        clients = self._ready(self.everyone())

        def loss(ctx: Context) -> Tree:
            return {"loss": ctx.loss(self.algorithm.personal(ctx, self.state))}

        losses: Tensor = self.engine.map(loss, clients, self.env, test=False)["loss"]
        return losses.double().numpy()

    def test_means(self) -> dict[str, float]:
        """Mean scores over clients, for the history."""
        return {f"test_{name}": float(value) for name, value in self.scores().mean().items()}


@dataclass(frozen=True, eq=False)
class Result:
    """`history` (a row a round), `evaluate()` (a row a client), `clusters`, `model(client)`, `save` / `load`, `plot_*`."""

    history: pd.DataFrame
    about: dict[str, Any]
    clients: pd.Index[Any]
    clusters: pd.Series[int]
    _live: Live | None = None
    _alone: Callable[[], Result] | None = None
    _again: Callable[[Federation], Result] | None = None  # the same run with other clients
    _stored: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_live(
        cls,
        live: Live,
        history: list[dict[str, Any]],
        about: dict[str, Any],
        alone: Callable[[], Result] | None,
        again: Callable[[Federation], Result] | None = None,
    ) -> Result:
        clusters = pd.Series(live.clusters(), index=live.federation.clients, name="cluster")
        table = pd.DataFrame(history, columns=None if history else _COLUMNS)
        return cls(table, about, live.federation.clients, clusters, live, alone, again)

    @property
    def task(self) -> Task:
        return self._need_live("task").task

    @property
    def federation(self) -> Federation:
        return self._need_live("federation").federation

    @property
    def state(self) -> Any:
        """The server's final state."""
        return self._need_live("state").state

    def evaluate(self) -> pd.DataFrame:
        """One row for *every* client: its own model on its own test data, what it would have had alone, and the gain.

        `gain` is in units of the first metric, positive when taking part is better than training alone with the same
        optimiser for the same number of rounds."""
        if "evaluation" not in self._stored:
            live = self._need_live("evaluation")
            table = self._scores().copy()
            first, alone = live.task.metrics[0], self.alone()
            table["alone"] = np.nan if alone is None else alone._scores()[first]
            table["gain"] = live.task.sign * (table[first] - table["alone"])
            table["cluster"] = self.clusters
            table["n_train"], table["n_test"] = live.federation.n_train, live.federation.n_test
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
        fewest: int = 10,
        seed: int = 0,
    ) -> Participation:
        """Who gains, who would leave, and whether the coalition is stable when they do; see `participation.py`."""
        from coterie.training.participation import audit

        return audit(self, level=level, resamples=resamples, rule=rule, fewest=fewest, seed=seed)

    def _scores(self) -> pd.DataFrame:
        if "scores" not in self._stored:
            loaded = self._stored.get("evaluation") if self._live is None else None
            self._stored["scores"] = self._need_live("scores").scores() if loaded is None else loaded
        scores: pd.DataFrame = self._stored["scores"]
        return scores

    def model(self, client: Hashable) -> nn.Module:
        """The client's own model, ready to use."""
        if self._live is not None:
            live = self._live
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

    def _need_live(self, what: str) -> Live:
        if self._live is None:
            raise ConfigError(f"A loaded result has no {what}; it holds history, evaluation, clusters and models.")
        return self._live

    # ---- disk --------------------------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> Path:
        """history.parquet, evaluation.parquet, models.safetensors (equal models stored once) and result.json."""
        folder = Path(folder)
        live = self._need_live("models to save")
        models, which = _distinct_models(live)
        tensors = {f"model/{k}": t for k, t in models.items()} | {"model_of": which}
        about = self.about | {
            "architecture": module_json.describe(live.task.skeleton),
            "metrics": list(live.task.metrics),
            "clients": self.clients.tolist(),
            "clusters": self.clusters.tolist(),
        }
        if (special := live.algorithm.predictor()) is not None:
            about["predictor"] = predictors.describe(special)
        (folder / "result.json").unlink(missing_ok=True)  # written last: a folder with it is whole
        checkpoint.write(folder / "models.safetensors", tensors, {})
        self.history.to_parquet(folder / "history.parquet")
        self.evaluate().reset_index(drop=True).to_parquet(folder / "evaluation.parquet")
        (folder / "result.json").write_text(json.dumps(about, indent=1, default=str))
        return folder

    @classmethod
    def load(cls, folder: str | Path, task: Task | None = None, federation: Federation | None = None) -> Result:
        """A result saved by `save` (or by `fit` with `out`); no pickle needed. Clients that predict with their own
        samples (KNNPer) need these: pass the `federation`."""
        folder = Path(folder)
        missing = [name for name in FILES if not (folder / name).exists()]
        if missing:
            raise ConfigError(
                f"{folder} holds no finished result (missing {', '.join(missing)}). If the run was interrupted, "
                "continue it with resume."
            )
        about = json.loads((folder / "result.json").read_text())
        tensors, _ = checkpoint.read(folder / "models.safetensors")
        clients: pd.Index[Any] = pd.Index(about.pop("clients"))
        stored: dict[str, Any] = {
            "evaluation": pd.read_parquet(folder / "evaluation.parquet").set_index(clients).rename_axis("client"),
            "models": {k.removeprefix("model/"): t for k, t in tensors.items() if k.startswith("model/")},
            "model_of": tensors["model_of"],
        }
        if task is not None:
            stored["task"] = task
        if federation is not None:
            stored["federation"] = federation
        clusters = pd.Series(about.pop("clusters"), index=clients, name="cluster")
        return cls(pd.read_parquet(folder / "history.parquet"), about, clients, clusters, _stored=stored)

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


def _distinct_models(live: Live, chunk: int = 256) -> tuple[Params, Tensor]:
    """Every client's model, equal ones stored once, and which client has which."""
    seen: dict[bytes, int] = {}
    kept: list[Params] = []
    which: list[int] = []
    for start in range(0, len(live.federation), chunk):
        models = live.personal(live.everyone()[start : start + chunk])
        for i in range(len(next(iter(models.values())))):
            one = row(models, i)
            digest = hashlib.sha256(b"".join(t.contiguous().numpy().tobytes() for t in one.values())).digest()
            if digest not in seen:
                seen[digest] = len(kept)
                kept.append({k: t.clone() for k, t in one.items()})
            which.append(seen[digest])
    return {k: torch.stack([m[k] for m in kept]) for k in kept[0]}, torch.tensor(which)
