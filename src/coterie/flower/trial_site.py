"""A site's part in the trainings of a study: rows and algorithm as a message says, scores of models, and sums of losses."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coterie.base.disk import private_folder, write_text, writing
from coterie.base.tree import Tree
from coterie.data.federation import Federation
from coterie.engines.base import first_contact
from coterie.errors import ConfigError
from coterie.evidence.told import sums_of
from coterie.exchange.messages import Cohort, Reply
from coterie.flower import wire
from coterie.flower.finish import HereAlone, keep_results
from coterie.flower.questions import among_all, environment, server_state
from coterie.flower.site import SiteRun
from coterie.flower.trials import made_from, task_of
from coterie.learning.scoring import Scorer
from coterie.training.contract import conversation
from coterie.training.row_losses import losses_of, named, rows_apart

LEAST = 5  # rows in every part that is told of
SHARE, _PARTS = 0.25, 2  # of a client's rows: for the test, and for the choice of settings


class TrialRun(SiteRun):
    """A training of a study at a site."""

    told: Mapping[str, Any]
    study: Path
    rows: Federation

    @classmethod
    def of(cls, run: SiteRun, trial: Mapping[str, Any]) -> TrialRun:
        """The rows of the message's clients that are here; the part that was held out last is the test."""
        if isinstance(run.trial, TrialRun) and run.trial.told == trial:
            return run.trial
        places, rows = np.array(trial["clients"], np.int64), Federation.load(run.folder / "rows")
        if len(places) > run.everyone() or places.max(initial=-1) >= run.everyone():
            raise ConfigError("A training names clients that this run does not have.")
        own = np.flatnonzero(np.isin(places, run.own))
        if not len(own):
            raise ConfigError("A training names no client of this site.")
        rows = rows.subset([rows.clients[i] for i in np.searchsorted(run.own, places[own])])
        least = run.job.algorithm.fewest(rows.n_features)
        if rows.n_samples.min() < least or len(trial["held"]) > _PARTS or any(f != SHARE for f, _ in trial["held"]):
            raise ConfigError(
                f"Clients with {least} rows or more train, and at most {_PARTS} times {SHARE:.0%} of their rows are held "
                "out. The server asks for something else."
            )
        cls._count_held(run, trial["held"])
        for fraction, seed in trial["held"]:
            rows = rows.holdout(fraction, seed)
        if len(trial["held"]) and min(int(rows.n_train.min()), int(rows.n_test.min())) < LEAST:
            raise ConfigError(
                f"A client here would tell of fewer than {LEAST} rows. Clients with fewer than 27 rows do not train."
            )
        made: TrialRun = cls.__new__(cls)
        made.told, made.study, made.folder = trial, run.folder, private_folder(run.folder / "trial")
        made.task, made.own, made.plan, made.engine = task_of(trial, rows), own, {}, run.engine
        made.job = replace(run.job, algorithm=made_from(trial), task=made._task, ends=None, seed=trial["seed"])
        made.env = environment(made.task, among_all(rows, own, len(places)), trial["seed"], len(own))
        made.rows, run.trial = rows, made
        return made

    @staticmethod
    def _count_held(run: SiteRun, held: Sequence[Any]) -> None:
        """Refuse further parts of rows than the run's splits need: sums over many different parts would show single rows."""
        most, file = _PARTS * (run.job.ends.seeds + 1), run.folder / "held.json"
        seen = json.loads(file.read_text("utf-8")) if file.exists() else []
        asked = [list(part) for part in held]
        if asked and asked not in seen:
            if len(seen) >= most:
                raise ConfigError(f"A study of {run.job.ends.seeds} splits holds out at most {most} parts of the rows.")
            write_text(file, json.dumps([*seen, asked]), private=True)

    def _task(self, federation: Federation) -> Any:
        return self.task

    # ---- looks ---------------------------------------------------------------------------------------------------------

    def look(self, head: Mapping[str, Any], tree: Tree) -> bytes:
        with self._newest(head):
            pass
        what, none = head["what"], np.zeros(0)
        if what == "targets":
            return wire.pack({"tag": None}, _tensors({"targets": self._targets()}))
        if what == "told":
            return wire.pack({"tag": None}, _tensors(self._told(head)))
        live, tag = self._live(head, tree)
        if what == "keep":
            self._keep_losses(head, live)
            return wire.pack({"tag": tag}, _tensors({"kept": none}))
        parts = [live.scores(self.own).to_numpy(), live.test_losses()[:, None], live.clusters()[:, None]]
        return wire.pack({"tag": tag}, _tensors({"look": np.concatenate(parts, 1)}))

    def _live(self, head: Mapping[str, Any], tree: Tree) -> tuple[HereAlone, str | None]:
        """The run as the server knows it. Rounds that nobody had to be asked for are made now."""
        states = self._states(head["have"])
        env = replace(self.env, round=head["round"], states=states)
        state, tag = server_state(self.job, env, tree.get("state", {}), head["plain"]), head["have"]
        if self.job.algorithm.asks_per_round == 0:
            done = 0 if tag is None else int(tag.split("-")[0]) + 1
            for r in range(done, head["round"]):
                self._round(replace(env, round=r), state)
            if done < head["round"]:
                tag = self._keep(dict(head) | {"round": head["round"] - 1, "ask": 0}, states)
        return HereAlone(self.job.algorithm, env.federation, self.task, state, env, self.engine, own=self.own), tag

    def _round(self, env: Any, state: Any) -> None:
        """A round without exchange."""
        questions = conversation(self.job.algorithm, state, Cohort(self.own, env.round, env.seed))
        reply: Reply | None = None
        try:
            while True:
                ask = questions.send(reply)  # type: ignore[arg-type]  # None starts a generator
                first_contact(self.job.algorithm, ask.clients, env, self.engine)
                reply = self.engine.run(ask, env)
        except StopIteration:
            env.states.commit()

    def _targets(self) -> Any:
        """Per client: number, mean and scatter of the training rows' targets, or the count of each class."""
        found: list[Any] = []
        for client in self.rows.clients:
            y = self.rows.train(client)[1].double().numpy()
            if self.rows.kind == "regression":
                found.append([len(y), y.mean(), np.square(y - y.mean()).sum()])
            else:
                found.append(np.bincount(y.astype(np.int64), minlength=self.rows.n_outputs))
        return np.array(found, np.float64)

    def _keep_losses(self, head: Mapping[str, Any], live: HereAlone) -> None:
        """The losses of all test rows, and the models; they stay here."""
        name, guess = f"{head['method']}-{head['split']}", torch.tensor(head["guess"], dtype=torch.float64)
        kept: dict[str, Any] = {}
        for metric in head["judged"]:
            scorer = Scorer(metric)
            kept[metric] = np.concatenate(losses_of(live, scorer))
            kept[f"guess {metric}"] = np.concatenate(losses_of(live, scorer, guess))
        kept["rows"] = np.concatenate(rows_apart(live.federation, self.own))
        kept["owner"] = np.repeat(self.own, live.federation.n_test[self.own])
        kept["own"] = np.array(self.told["clients"])[self.own]
        with writing(self._kept(name), private=True) as partial, partial.open("wb") as file:
            np.savez(file, **kept)
        folder = private_folder(private_folder(self.study / "trained") / name)
        keep_results(self.job.algorithm, live.env, live.state, self.own, self.engine, folder)

    def _kept(self, name: str) -> Path:
        return private_folder(self.study / "losses") / f"{name}.npz"

    def _told(self, head: Mapping[str, Any]) -> dict[str, Any]:
        """Sums of the losses of methods and splits, per client."""
        found: dict[str, list[Any]] = {}
        files = {}
        for method in head["methods"]:
            for split in head["splits"]:
                if not self._kept(f"{method}-{split}").exists():
                    raise ConfigError(f"This site has kept no losses of {method} on split {split}.")
                files[method, split] = dict(np.load(self._kept(f"{method}-{split}")))
        first = {split: files[head["methods"][0], split] for split in head["splits"]}
        for client in self.own:
            mine = {s: kept["owner"] == client for s, kept in first.items()}
            names = named([kept["rows"][mine[s]] for s, kept in first.items()])
            for metric in head["judged"]:
                losses = [
                    np.stack(
                        [first[s][f"guess {metric}"][mine[s]], *(files[m, s][metric][mine[s]] for m in head["methods"])]
                    )
                    for s in head["splits"]
                ]
                for name, value in sums_of(losses, names).items():
                    found.setdefault(f"{metric} {name}", []).append(value)
        return {name: np.stack(values) for name, values in found.items()}


def _tensors(parts: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.ascontiguousarray(v, np.float64)) for name, v in parts.items()}
