"""Trainings in a study: each run of `fit` at the server gets an engine that says what is trained on which rows.

    ask      a question of the algorithm, as in every deployment
    look     at a model of every client: its scores, its mean loss on held-out rows, its group
    keep     the losses of test rows, and the models, in the site's own folder
    told     sums of the losses that were kept, over methods and splits
    targets  counts of the classes, or number, mean and scatter of the target, of training rows

What needs no exchange, such as training alone, happens at the sites when its result is looked at."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from coterie.algorithms import ALGORITHMS
from coterie.base.settings import setting, with_setting
from coterie.base.tree import n_bytes, unflatten
from coterie.data.federation import Federation
from coterie.engines.base import Env
from coterie.engines.reduce import assemble
from coterie.errors import ConfigError, EngineError
from coterie.evidence.gains import Floats
from coterie.evidence.told import Told
from coterie.exchange.messages import Ask, Ints, Reply, shown_to
from coterie.flower import wire
from coterie.flower.engine import Failure, SitesEngine, unpacked
from coterie.learning.local_sgd import LocalSGD
from coterie.learning.standardised import standardised
from coterie.learning.task import Task
from coterie.training import checkpoint
from coterie.training.evaluation import Evaluation

_STEPS = ("steps", "lr", "batch_size", "momentum", "weight_decay")  # of LocalSGD, as settings are tuned
_SPARE = 1 << 20  # bytes of an answer in addition to its tensors


def told_of(run: Any) -> dict[str, Any]:
    """What sites need to know of a run."""
    algorithm, federation = run.algorithm, run.federation
    name = next((n for n, kind in ALGORITHMS.items() if type(algorithm) is kind), "")
    steps, rate = setting(algorithm, "local"), getattr(algorithm, "lr", None)
    told = {
        "name": name,
        "local": {k: getattr(steps, k) for k in _STEPS} if isinstance(steps, LocalSGD) else None,
        "lr": rate if isinstance(rate, float) else None,
        "clusters": setting(algorithm, "clusters"),
        "clients": federation.places.tolist(),
        "held": [list(part) for part in federation.held],
        "target": list(federation.moments) if federation.moments else None,
        "metrics": list(run.task.metrics),
        "seed": run.seed,
    }
    if not name or made_from(told) != algorithm:
        raise ConfigError(
            f"Across sites, algorithms have names and settings that are tuned; got {algorithm!r}. Name one of the registry."
        )
    return told


def made_from(told: Mapping[str, Any]) -> Any:
    """The algorithm of a message."""
    made = ALGORITHMS[told["name"]]()
    for key, value in (("local", told["local"] and LocalSGD(**told["local"])), ("clusters", told["clusters"])):
        made = made if value is None else with_setting(made, key, value)
    return made if told["lr"] is None else replace(made, lr=told["lr"])


def task_of(told: Mapping[str, Any], federation: Federation) -> Task:
    """The task of a message: a linear model, with targets brought to one scale."""
    work = standardised(Task.default(federation), federation, told["target"])
    return replace(work, metric=tuple(told["metrics"]))


@dataclass(frozen=True, eq=False, repr=False)
class Elsewhere(Federation):
    """All clients without their rows, and which of their rows a run uses: those of the clients at `places` among all, after
    parts were `held` out (fraction, seed). `ask` asks sites for the targets of these rows."""

    places: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    held: tuple[tuple[float, int | None], ...] = ()
    ask: Callable[[Elsewhere], Floats] | None = None

    @classmethod
    def of(cls, blind: Federation, ask: Callable[[Elsewhere], Floats]) -> Elsewhere:
        parts = {f.name: getattr(blind, f.name) for f in fields(blind) if f.init}
        return cls(**parts, places=np.arange(len(blind)), ask=ask)

    def subset(self, clients: Any) -> Elsewhere:
        names = list(clients)
        made = super().subset(names)
        return replace(made, places=self.places[self.clients.get_indexer(pd.Index(names))])

    def holdout(self, fraction: float, seed: int | None = None) -> Elsewhere:
        return replace(super().holdout(fraction, seed), held=(*self.held, (fraction, seed)))

    @cached_property
    def told(self) -> Floats:
        """What every client tells of its training targets; a client that does not answer has NaN."""
        assert self.ask is not None
        told = self.ask(self)
        if np.isnan(told).any(1).all():
            raise EngineError("No site told its targets; the log says why.")
        return told

    @property
    def moments(self) -> tuple[float, float] | None:
        return None if self.kind != "regression" else self.target_moments()

    def target_moments(self) -> tuple[float, float]:
        n, mean, scatter = self.told[np.isfinite(self.told).all(1)].T
        whole = float(n @ mean / n.sum())
        return whole, float(np.sqrt((scatter.sum() + n @ (mean - whole) ** 2) / n.sum()))

    def class_counts(self) -> Tensor:
        return torch.from_numpy(np.nansum(self.told, 0))

    def describe(self) -> pd.DataFrame:
        return pd.DataFrame({"samples": self.n_samples, "train": self.n_train, "test": self.n_test}, index=self.clients)


@dataclass
class TrialEngine(SitesEngine):
    """The engine of a study's runs; `begun` makes that of one run. `study` numbers all messages."""

    study: Any = None

    def begun(self, run: Any) -> TrialEngine:
        places = run.federation.places
        here = {site: np.flatnonzero(np.isin(places, own)) for site, own in self.study.places.items()}
        return replace(
            self, algorithm=run.algorithm, places={s: own for s, own in here.items() if len(own)}, base={},
            attempt=secrets.token_hex(4), trial=told_of(run),
        )  # fmt: skip

    def count(self) -> None:
        self.study.count()
        self.number = self.study.number

    @property
    def idle(self) -> bool:
        """Whether nothing is exchanged in a round."""
        return bool(self.algorithm.asks_per_round == 0)

    def run(self, ask: Ask, env: Env) -> Reply:
        if not self.idle:
            return super().run(ask, env)
        nobody = assemble(ask.only(np.zeros(len(ask.clients), np.bool_)), env, [])
        return replace(nobody, clients=ask.clients, lost=ask.clients[:0])

    def evaluation(self, *given: Any) -> Evaluation:
        return AskedEvaluation(*given)

    def asked(
        self, what: str, shapes: Mapping[str, tuple[int, ...]], live: Evaluation | None = None, **more: Any
    ) -> dict[str, Floats]:
        """What clients tell, in their order; a client that does not answer has NaN."""
        self.count()
        n, done = sum(map(len, self.places.values())), 0 if live is None else live.env.round
        found = {name: np.full((n, *shape), np.nan) for name, shape in shapes.items()}
        head = {"do": "look", "run": self.run_name, "round": done, "number": self.number, "attempt": self.attempt}
        head |= {"trial": self.trial, "what": what, **more}
        messages = {}
        for site, own in self.places.items():
            tensors: dict[str, Tensor] = {}
            plain: dict[str, Any] = {}
            if live is not None:
                tensors, plain = checkpoint.pack(shown_to(live.state, own), live.env.states)
            state = {k: t for k, t in tensors.items() if k.startswith("state/")}
            messages[site] = wire.pack(head | {"have": self.tag(site), "plain": plain}, unflatten(state))
        for site, answer in self.exchange(messages).items():
            own = self.places[site]
            most = _SPARE + 2 * n_bytes({k: torch.from_numpy(v[own]) for k, v in found.items()})
            try:
                told, tree = unpacked(answer, most)
                parts = {name: _numbers(tree, name, (len(own), *shape)) for name, shape in shapes.items()}
            except wire.Malformed as why:
                self.note(None, site, what, str(why))
                continue
            for name, part in parts.items():
                found[name][own] = part
            if self.idle and live is not None and told.get("tag") is not None:
                self._tags[site] = str(told["tag"])
        return found


def _numbers(tree: Mapping[str, Any], name: str, shape: tuple[int, ...]) -> Floats:
    given = tree.get(name)
    if not isinstance(given, Tensor) or tuple(given.shape) != shape or given.dtype != torch.float64:
        raise wire.Malformed(f"{name!r} must be float64 of shape {shape}; it is missing or something else.")
    return np.asarray(given.numpy())


@dataclass(frozen=True)
class AskedEvaluation(Evaluation):
    """The evaluation of a run whose clients are elsewhere: one question says all that is known of a model."""

    @cached_property
    def _looked(self) -> Floats:
        found = self.engine.asked("look", {"look": (len(self.task.metrics) + 2,)}, self)["look"]
        return np.asarray(found)

    def scores(self, clients: Ints | None = None) -> pd.DataFrame:
        part = slice(None) if clients is None else clients
        names = self.federation.clients[part]
        return pd.DataFrame(self._looked[part, :-2], index=names, columns=list(self.task.metrics))

    def test_losses(self) -> Floats:
        return self._looked[:, -2]

    def clusters(self) -> Ints:
        return np.nan_to_num(self._looked[:, -1]).astype(np.int64)


# ---- the server's side of a study --------------------------------------------------------------------------------------


@dataclass
class Trials:
    """All trainings of a study at the server: `engine` for `fit`, `federation` for its clients. `run` puts a question of the
    study itself; `asked` and `bytes_up` count the messages of trainings."""

    study: SitesEngine
    blind: Federation
    run: Callable[[Ask, Env], Reply]
    asked: int = 0
    bytes_up: int = 0

    @cached_property
    def engine(self) -> TrialEngine:
        study = self.study
        return TrialEngine(None, self._exchange, {}, study.run_name, events=study.events, study=study)

    def _exchange(self, messages: Mapping[str, bytes], soon: bool = False) -> Mapping[str, bytes | Failure]:
        got = self.study.exchange(messages)
        self.asked += 1
        self.bytes_up += sum(len(answer) for answer in got.values() if isinstance(answer, bytes))
        return got

    @property
    def federation(self) -> Elsewhere:
        return Elsewhere.of(self.blind, self._targets)

    def _targets(self, federation: Elsewhere) -> Floats:
        width = 3 if federation.kind == "regression" else federation.n_outputs
        return self._of(federation).asked("targets", {"targets": (width,)})["targets"]

    def _of(self, federation: Elsewhere) -> TrialEngine:
        """An engine for questions about rows, without a model."""
        here = {s: np.flatnonzero(np.isin(federation.places, own)) for s, own in self.study.places.items()}
        held = [list(part) for part in federation.held]
        numbers = federation.kind == "regression"
        trial: dict[str, Any] = {
            "name": "local",
            "local": None,
            "lr": None,
            "clusters": None,
            "target": [0.0, 1.0] if numbers else None,
        }
        trial |= {"clients": federation.places.tolist(), "held": held, "seed": 0}
        trial["metrics"] = ["mse" if numbers else "log_loss"]
        return replace(
            self.engine, algorithm=made_from(trial), places={s: o for s, o in here.items() if len(o)}, trial=trial
        )

    def keep(self, name: str, result: Any, metrics: Sequence[str], guess: Tensor) -> None:
        """The sites keep the losses of this method's test rows, and its models."""
        live = result.evaluation
        split = int(live.federation.held[-1][1] or 0)
        more = {"method": name, "split": split, "judged": list(metrics), "guess": guess.reshape(-1).tolist()}
        live.engine.asked("keep", {}, live, **more)

    def told(
        self, federation: Elsewhere, methods: Sequence[str], splits: Sequence[int], metrics: Sequence[str]
    ) -> dict[str, Told]:
        """The sums of what was kept; the first method is the overall average."""
        k, parts = len(methods) + 1, len(splits) + 2
        shapes = {"known": (), "count": (parts,), "mean": (parts, k), "products": (parts, k, k)}
        wanted = {f"{metric} {name}": shape for metric in metrics for name, shape in shapes.items()}
        more: dict[str, Any] = {"methods": list(methods), "splits": [int(s) for s in splits], "judged": list(metrics)}
        found = self._of(federation).asked("told", wanted, **more)
        return {m: Told(*(np.nan_to_num(found[f"{m} {name}"]) for name in shapes)) for m in metrics}
