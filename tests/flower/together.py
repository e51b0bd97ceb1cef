"""Sites in this process: the real server and sites, with messages as bytes, and no network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from conformance_settings import PAIR, PAIRS, configured
from torch import nn

import coterie as ct
from coterie.base.tree import flatten
from coterie.flower import Failure, Job, Site, serve
from coterie.training.run import Run

SIZES = (12, 30, 22, 16, 40, 9, 25)

DATA: dict[str, Any] = {
    "client": "who", "target": "label", "features": ["a", "b", "c", "d"], "kind": "classification", "cluster": "group",
    "one_class": "allow",
}  # fmt: skip


def table(sizes: tuple[int, ...], seed: int = 0) -> pd.DataFrame:
    """Clients of two kinds; some values of the first column are missing."""
    rng = np.random.default_rng(seed)
    parts, truths = [], rng.normal(size=(2, 4, 3))
    for i, n in enumerate(sizes):
        x = rng.normal(size=(n, 4)) + 0.3 * i
        part = pd.DataFrame(x, columns=list("abcd")).assign(
            label=np.array(["no", "perhaps", "yes"])[np.argmax(x @ truths[i % 2] + rng.gumbel(size=(n, 3)), 1)],
            who=f"client {i:02d}",
            group="odd" if i % 2 else "even",
        )
        part.loc[rng.random(n) < 0.1, "a"] = np.nan
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


def split(rows: pd.DataFrame, sites: int) -> list[pd.DataFrame]:
    """The rows of every site: clients are dealt out one after another."""
    names = sorted(rows["who"].unique())
    return [rows[rows["who"].isin(names[i::sites])].reset_index(drop=True) for i in range(sites)]


class InProcess:
    """Nodes whose sites are objects here. `change` may do something to the answer of a site; messages are kept. `keys` are
    the files of the sites' keys."""

    def __init__(self, job: Job, tables: list[Any], folder: Path, keys: list[Path] | None = None) -> None:
        self.job, self.tables, self.folder = job, tables, folder
        given = keys or [None] * len(tables)
        self.sites = {
            100 + i: Site(job, t, folder / f"site{i}", key=key)
            for i, (t, key) in enumerate(zip(tables, given, strict=True))
        }
        self.change: Callable[[int, dict[str, Any], bytes | Failure], bytes | Failure] | None = None
        self.sent: list[tuple[int, bytes]] = []
        self.got: list[tuple[int, bytes]] = []

    def connected(self) -> list[int]:
        return sorted(self.sites)

    def exchange(
        self, messages: Mapping[int, bytes], timeout: float | None = None, soon: bool = False
    ) -> dict[int, bytes | Failure]:
        from coterie.flower import wire

        answers: dict[int, bytes | Failure] = {}
        for node, message in messages.items():
            self.sent.append((node, message))
            try:
                answer: bytes | Failure = self.sites[node].answer(message)
                self.got.append((node, answer))  # type: ignore[arg-type]
            except ct.errors.CoterieError as error:
                answer = Failure(str(error))
            if self.change is not None:
                answer = self.change(node, wire.unpack(message)[0], answer)
            answers[node] = answer
        return answers

    def restart(self, node: int) -> None:
        """The site comes back as another node, with nothing but its folder."""
        old = self.sites.pop(node)
        self.sites[max(self.sites, default=100) + 50] = Site(self.job, old.table, old.folder, key=old.key)


def job(algorithm: Any, **options: Any) -> Job:
    """Nothing is held back, so that numbers are those of one table."""
    return Job(algorithm, _task, DATA, **({"least": 1, "alone": False} | options))


def _task(fed: ct.Federation) -> ct.Task:
    made = lambda: nn.Sequential(nn.Linear(fed.n_features, 6), nn.Tanh(), nn.Linear(6, 3))  # noqa: E731
    return ct.Task(made, metric=("accuracy", "log_loss"))


def deployed(work: Job, rows: Any, folder: Path, sites: int = 3, **more: Any) -> tuple[Run, InProcess, dict[str, Any]]:
    """The server's run at its end, the nodes, and what the server says."""
    nodes = more.pop("nodes", None) or InProcess(work, split(rows, sites), folder)
    ends: list[Run] = []
    also = more.pop("every_round", None)

    def every(run: Run) -> None:
        ends.append(run)
        if also is not None:
            also(run)

    told = serve(work, nodes, folder / "server", sites=sites, tell=lambda _: None, every_round=every, **more)
    return ends[-1], nodes, told


def local(work: Job, rows: Any, **more: Any) -> ct.Result:
    """The same run in one process, on one table."""
    fed = ct.Federation.from_frame(rows, **{k: v for k, v in work.data.items() if k != "public"})
    how: dict[str, Any] = {"rounds": work.rounds, "seed": work.seed, "cohort": work.cohort, "alone": False}
    return ct.fit(work.algorithm, fed, work.task(fed), progress=False, **how, **more)


def results(nodes: InProcess) -> dict[str, Any]:
    """Every client's model, scores and group, from the sites' own folders."""
    found = {}
    for i in range(len(nodes.tables)):
        (folder,) = (nodes.folder / f"site{i}").glob("*/result")
        kept = ct.Result.load(folder)
        for k, client in enumerate(kept.clients):
            model = {n: t[k] for n, t in kept._stored["models"].items()}
            found[client] = (model, kept.evaluate().iloc[k], kept.clusters.iloc[k])
    return found


def difference(run: Run, nodes: InProcess, here: ct.Result) -> float:
    """The largest difference in the server's state and any client's model, relative to the larger of 1 and the number.

    Groups and scores must be equal too."""
    mine, other = flatten(vars(run.state)), flatten(vars(here.state))
    assert mine.keys() == other.keys()
    far = [_far(mine[name], t) for name, t in other.items() if isinstance(t, torch.Tensor)]
    models, scores, kept = here.evaluation.personal(here.evaluation.everyone()), here.scores(), results(nodes)
    for i, client in enumerate(here.clients):
        model, score, cluster = kept[client]
        far += [_far(model[name], t[i]) for name, t in models.items()]
        np.testing.assert_allclose(score["log_loss"], scores.loc[client, "log_loss"], rtol=1e-3, atol=1e-3)
        assert cluster == here.clusters[client]
    return max(far)


def _far(a: torch.Tensor, b: torch.Tensor) -> float:
    assert a.shape == b.shape
    if not a.numel():
        return 0.0
    x, y = a.double(), b.double()
    return float(((x - y).abs() / y.abs().clamp(min=1)).nan_to_num(0.0).max())


def both(name: str, folder: Path) -> tuple[Run, float, dict[str, Any]]:
    """An algorithm of the registry at three sites and in one process: how far they are apart."""
    pair = name in PAIRS
    rows = table(PAIR if pair else SIZES)
    work = job(configured(name), rounds=3, cohort=None if pair else 5)
    run, nodes, told = deployed(work, rows, folder, 2 if pair else 3)
    here = local(work, rows)
    assert [r["clients"] for r in run.history] == here.history["clients"].tolist()
    return run, difference(run, nodes, here), told
