"""Result: every client's outcome of a run, also for clients that were never sampled."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from torch import nn

from coterie.base.annotations import guarded
from coterie.base.arguments import check_arguments, whole_number
from coterie.base.disk import write_text
from coterie.data.federation import Federation
from coterie.errors import ConfigError, DataError
from coterie.evidence.gains import FEWEST
from coterie.evidence.participation import Participation, Rule
from coterie.learning import module_json, predictors
from coterie.learning.batched.network_traits import filled
from coterie.learning.task import Task
from coterie.privacy.receipt import Receipt
from coterie.training import files
from coterie.training.evaluation import Evaluation
from coterie.training.yardstick import SAMPLE, Yardstick, check

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from coterie.learning.local_steps import LocalSteps
    from coterie.training.later_clients import Place

_COLUMNS = ["round", "loss", "clients", "lost", "bytes_down", "bytes_up", "seconds"]
RECEIPT, FILES = files.RECEIPT, files.FILES


def _receipt(folder: Path) -> Receipt | None:
    """The receipt of a saved private run; one that was edited, or is another run's, is refused."""
    file, found = folder / RECEIPT, None
    if file.is_file():
        try:
            found = Receipt.from_json(file.read_text("utf-8"))
        except ValueError as error:
            raise ConfigError(
                f"{file} is not a privacy receipt ({error}). Put back the one that the run wrote."
            ) from None
        if fault := found.verify().fault:
            raise ConfigError(f"{file} cannot be believed: {fault}. Put back the one that the run wrote.")
    files.check_receipt(folder)
    return found


def _headed(table: pd.DataFrame, used: str) -> pd.DataFrame:
    """The table with the yardstick in its heading and its attributes, and the mean gain with its standard error."""
    gains = table["gain"].dropna()
    error = float(gains.std(ddof=1) / np.sqrt(len(gains))) if len(gains) > 1 else float("nan")
    table = table.rename_axis(columns=f"alone: {used}")
    table.attrs |= {"yardstick": used, "mean_gain": float(gains.mean()), "mean_gain_error": error}
    return table


@dataclass(frozen=True, eq=False)
class Result:
    """`history` (a row per round), `evaluate()` (a row per client), `clusters`, `model(client)`, `save` / `load`, `plot_*`;
    `evaluation` computes more of a run that is in memory."""

    history: pd.DataFrame
    about: dict[str, Any]
    clients: pd.Index[Any]
    clusters: pd.Series[int]
    _evaluation: Evaluation | None = None
    _alone: Callable[..., Result] | None = None
    _again: Callable[[Federation], Result] | None = None  # the same run with other clients
    _stored: dict[str, Any] = field(default_factory=dict)
    receipt: Receipt | None = None  # of a private run: what was released
    _later: Federation | None = None  # clients that were kept apart

    def __repr__(self) -> str:
        """What was run; `history` and `evaluate()` are its numbers."""
        return f"Result({self.about.get('algorithm')}, {len(self.clients):,} clients, {len(self.history):,} rounds)"

    @classmethod
    def from_evaluation(
        cls,
        evaluation: Evaluation,
        history: list[dict[str, Any]],
        about: dict[str, Any],
        alone: Callable[..., Result] | None,
        again: Callable[[Federation], Result] | None = None,
        receipt: Receipt | None = None,
    ) -> Result:
        """What `fit` returns. alone: how to train the clients alone; again: how to make the same run with other clients;
        receipt: that of a private run."""
        clients = evaluation.federation.clients
        clusters = pd.Series(evaluation.clusters(), index=clients, name="cluster")
        table = pd.DataFrame(history, columns=None if history else _COLUMNS)
        return cls(table, about, clients, clusters, evaluation, alone, again, receipt=receipt)

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

    @guarded
    def evaluate(self, yardstick: Yardstick | None = None, *, sample: int | None = None) -> pd.DataFrame:
        """One row for *every* client: the score of its own model on its own test data, its score alone, and the gain.

        `gain` is in units of the first metric, positive when taking part is better than training alone. yardstick: how
        alone is trained (`training/yardstick.py`): "tuned" (default), or "equal budget"; None: the choice of `fit`. With
        more than 200 clients a random sample of 200 is trained alone, the others have no gain; `sample` sets the number.
        `attrs["yardstick"]` and the heading of the columns say which was used, `attrs["mean_gain"]` and
        `attrs["mean_gain_error"]` the mean over the clients trained alone and its standard error."""
        if self.loaded:
            if yardstick is not None and yardstick != self.about.get("yardstick"):
                raise ConfigError(
                    f"A loaded result keeps one yardstick, {self.about.get('yardstick')!r}; got {yardstick!r}. Call fit."
                )
            kept: pd.DataFrame = self._stored["evaluation"].copy()
            return kept
        used = self.about.get("yardstick", "tuned") if yardstick is None else check(yardstick)
        key = f"evaluation {used} {sample}"
        if "evaluation" in self._stored:
            key = "evaluation"
        if key not in self._stored:
            task, federation, table = self.task, self.federation, self.scores()
            count = min(len(federation), SAMPLE if sample is None else sample)
            first, alone = task.metrics[0], self.alone(yardstick, sample=count)
            table["alone"] = np.nan if alone is None else alone.scores()[first].reindex(table.index)
            table["gain"] = task.sign * (table[first] - table["alone"])
            table["cluster"] = self.clusters
            if (met := self.evaluation.met) is not None and not met.all():
                table["met"] = met
            table["n_train"], table["n_test"] = federation.n_train, federation.n_test
            part = f", {count} of {len(federation)} clients" if count < len(federation) and used != "given" else ""
            self._stored[key] = _headed(table.rename_axis("client"), f"{used}{part}")
        evaluation: pd.DataFrame = self._stored[key].copy()
        return evaluation

    @guarded
    def alone(self, yardstick: Yardstick | None = None, *, sample: int | None = None) -> Result | None:
        """The same clients trained alone, with the same optimiser and seed, by a yardstick (trained on first use).

        sample: train only so many of the clients, drawn at random; None: all."""
        if self._alone is None:
            return None
        used = self.about.get("yardstick", "tuned") if yardstick is None else check(yardstick)
        size = len(self.clients) if sample is None or used == "given" else min(sample, len(self.clients))
        key = f"alone {used} {size}"
        if key not in self._stored:
            whole = size == len(self.clients)
            self._stored[key] = self._alone(None if used == "given" else used, None if whole else size)
        baseline: Result = self._stored[key]
        return baseline

    @guarded
    def participation(
        self,
        level: float = 0.9,
        *,
        rule: Rule = "interval",
        fewest: int = FEWEST,
        seed: int = 0,
    ) -> Participation:
        """Which clients gain, which would leave, and whether the coalition is stable when they do; see
        `evidence/participation.py`."""
        from coterie.training.coalition import audit

        return audit(self, level=level, rule=rule, fewest=fewest, seed=seed)

    @guarded
    def scores(self, *, sample: int | None = None) -> pd.DataFrame:
        """Every client's own model on its own test data: one row per client, one column per metric.

        sample: only so many clients, drawn at random; `attrs["error"]` has the standard errors of the columns' means."""
        if self.loaded:
            kept: pd.DataFrame = self.evaluate()[self.about["metrics"]]
            return kept
        if sample is not None:
            whole_number("sample", sample, 1)
            part = self.evaluation.scores(self.evaluation.sample(sample))
            part.attrs["error"] = (part.sem() * np.sqrt(1 - len(part) / len(self.clients))).to_dict()
            return part
        if "scores" not in self._stored:
            self._stored["scores"] = self.evaluation.scores()
        scores: pd.DataFrame = self._stored["scores"].copy()
        return scores

    # ---- clients that come later -------------------------------------------------------------------------------------

    @guarded
    def evaluate_new(self, federation: Federation | None = None, *, tune: LocalSteps | None = None) -> pd.DataFrame:
        """A row for every client that training never saw: the scores of the model that it gets, its group, its sizes.

        The algorithm places a client by its training rows, and `tune` (such as `LocalSGD(steps=20, lr=0.1)`) are steps that
        it then takes on them; its test rows only judge. Without a federation these are the clients that
        `fit(…, newcomers=0.2)` kept apart."""
        from coterie.training.later_clients import evaluation_of

        if self.loaded and federation is None and "newcomers" in self._stored:
            kept: pd.DataFrame = self._stored["newcomers"].copy()
            return kept
        given = self._later if federation is None else federation
        if given is None:
            raise ConfigError(
                "This run kept no clients apart. Pass a federation of new clients, or use fit(…, newcomers=0.2)."
            )
        new = evaluation_of(self.evaluation, given, tune)
        sizes = {"cluster": new.clusters(), "n_train": given.n_train, "n_test": given.n_test}
        return new.scores().assign(**sizes).rename_axis("client")

    @property
    def kept_apart(self) -> bool:
        """Whether the run kept clients apart, so that `evaluate_new()` knows whom to score."""
        return self._later is not None or "newcomers" in self._stored

    @guarded
    def assign(self, x: Any, y: Any, *, tune: LocalSteps | None = None) -> Place:
        """Where a newcomer with these rows belongs: the number of its group, whose `model` is the network for it.

        Methods with a model per group place it by the smallest loss on its rows; other methods have no groups (−1), and
        give it what a client gets that was never met. Labels are written as in the run's federation. `tune`: as in
        `evaluate_new`."""
        from coterie.training.later_clients import assigned

        return assigned(self.evaluation, x, y, tune)

    @guarded
    def drift(self, federation: Federation, *, level: float = 0.05) -> pd.DataFrame:
        """Which of the run's clients changed, by their new rows: a row per client of the federation that the run knows.

        `left`: another group's model fits its rows measurably better, and `place` is that group. `changed`: its model's loss
        is measurably larger than on the run's test rows. In a quiet month there is a false alarm at any client with a
        chance of at most `level`. To follow them, train on: `fit(…, start=result.state)`."""
        from coterie.training.drift import drifted

        check_arguments({"level": level})
        return drifted(self.evaluation, self.clusters, federation, level)

    @guarded
    def again(self, federation: Federation) -> Result:
        """The same run with other clients: same settings, seed and rounds, and no training alone. This trains."""
        if self._again is None:
            raise ConfigError("This result does not know how it was made, so it cannot be trained again. Use fit.")
        return self._again(federation)

    @guarded
    def model(self, client: Hashable) -> nn.Module:
        """The client's own model, ready to use."""
        if not self.loaded:
            return self.evaluation.module(self.federation.index(client))
        if "predictor" not in self.about:
            return self._stored_model(client).eval()
        special = predictors.build(self.about["predictor"])
        network = self._stored_model(client, special)
        if isinstance(special, predictors.Mixture):
            return network.eval()
        if "federation" not in self._stored:
            raise ConfigError(
                "The clients of this result predict with their own samples, which are not saved. "
                "Load with Result.load(folder, federation=…)."
            )
        samples = self._stored["federation"].train(client)
        return special.module(network, *samples).eval()

    def _stored_model(self, client: Hashable, special: predictors.Predictor | None = None) -> nn.Module:
        if client not in self.clients:
            raise DataError(f"There is no client {client!r} in this result.")
        which = int(self._stored["model_of"][self.clients.get_loc(client)])
        params = {name: t[which] for name, t in self._stored["models"].items()}
        fill = filled if special is None else special.fill
        if "task" in self._stored:
            return fill(self._stored["task"].module(), params)
        spec = self.about["architecture"]
        if spec is None:
            raise ConfigError(
                "This network is not made of plain torch.nn layers, so its code was not saved. "
                "Load with Result.load(folder, task=…)."
            )
        return fill(module_json.build(spec, sum(t.numel() for t in params.values())), params)

    # ---- disk --------------------------------------------------------------------------------------------------------

    @guarded
    def save(self, folder: str | Path) -> Path:
        """history.parquet, evaluation.parquet, models.safetensors (equal models stored once) and result.json; of a private
        run also receipt.json."""
        folder = Path(folder)
        live = self.evaluation
        models, which = live.distinct_models()
        tensors = {f"model/{k}": t for k, t in models.items()} | {"model_of": which}
        about = self.about | {
            "architecture": module_json.describe(live.task.skeleton),
            "metrics": list(live.task.metrics),
            "clients": self.clients.tolist(),
            "clusters": self.clusters.tolist(),
            "heading": self.evaluate().attrs["yardstick"],
        }
        if (special := live.algorithm.predictor()) is not None:
            about["predictor"] = predictors.describe(special)
        if self._later is not None:
            about["newcomers"] = self.evaluate_new().reset_index().to_dict("list")
        (folder / RECEIPT).unlink(missing_ok=True)
        if self.receipt is not None:
            write_text(folder / RECEIPT, self.receipt.to_json())
        return files.save(folder, about, tensors, self.history, self.evaluate())

    @classmethod
    @guarded
    def load(cls, folder: str | Path, task: Task | None = None, federation: Federation | None = None) -> Result:
        """A result saved by `save` (or by `fit` with `out`); no pickle needed. Clients that predict with their own
        samples (KNNPer) need these: pass the `federation`."""
        folder = Path(folder)
        about, tensors, history, evaluation = files.load(folder)
        clients: pd.Index[Any] = pd.Index(about.pop("clients"))
        stored: dict[str, Any] = {
            "evaluation": _headed(
                evaluation.set_index(clients).rename_axis("client"), about.pop("heading", "equal budget")
            ),
            "models": {k.removeprefix("model/"): t for k, t in tensors.items() if k.startswith("model/")},
            "model_of": tensors["model_of"],
        }
        if (newcomers := about.pop("newcomers", None)) is not None:
            stored["newcomers"] = pd.DataFrame(newcomers).set_index("client")
        if task is not None:
            stored["task"] = task
        if federation is not None:
            stored["federation"] = federation
        clusters = pd.Series(about.pop("clusters"), index=clients, name="cluster")
        return cls(history, about, clients, clusters, _stored=stored, receipt=_receipt(folder))

    # ---- pictures ----------------------------------------------------------------------------------------------------

    @guarded
    def plot_history(self, column: str = "loss", ax: Axes | None = None) -> Axes:
        from coterie.training.plots import plot_history

        return plot_history(self.history, column, ax)

    @guarded
    def plot_gains(self, ax: Axes | None = None) -> Axes:
        from coterie.training.plots import plot_gains

        return plot_gains(self.evaluate(), ax)

    @guarded
    def plot_clusters(self, ax: Axes | None = None) -> Axes:
        from coterie.training.plots import plot_clusters

        return plot_clusters(self.clusters, ax)

    @guarded
    def plot_bytes(self, ax: Axes | None = None) -> Axes:
        from coterie.training.plots import plot_bytes

        return plot_bytes(self.history, ax)
