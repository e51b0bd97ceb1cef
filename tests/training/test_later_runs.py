"""Runs made from a run: the same with fewer clients, the clients alone, what a resumed one does again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import coterie as ct
from coterie.engines.loop import LoopEngine
from coterie.training import checkpoint
from coterie.training.number_of_clusters import choose_clusters

SGD = ct.LocalSGD(steps=2, lr=0.05, batch_size=4)


def test_the_same_run_with_fewer_clients_has_everything_but_the_others(fed: ct.Federation, task: ct.Task) -> None:
    """Seed, channels, engine, cohort and start are those of the run; without any of them the model is another one."""
    start = {k: t + 0.3 for k, t in task.init(0).items()}
    options: dict[str, Any] = {
        "seed": 4, "channels": [ct.exchange.Dropout(0.5)], "engine": LoopEngine(), "start": start, "rounds": 2,
        "alone": False,
    }  # fmt: skip
    run = ct.fit(ct.FedAvg(SGD), fed, task, **options)
    part = fed.subset(fed.clients[:5])
    again, direct = run.again(part), ct.fit(ct.FedAvg(SGD), part, task, **options)
    assert again.history["lost"].sum() > 0
    assert isinstance(again.evaluation.engine, LoopEngine)
    assert all(torch.equal(t, direct.state.model[name]) for name, t in again.state.model.items())


def spoilt(fed: ct.Federation) -> ct.Federation:
    """Every label of a test row is another one."""
    y = fed.y.clone()
    within = np.arange(len(y)) - np.repeat(fed.offsets[:-1], fed.n_samples)
    test = torch.from_numpy(within >= np.repeat(fed.n_train, fed.n_samples))
    y[test] = (y[test] + 1) % 3
    return ct.Federation(**{**vars(fed), "y": y})


def test_the_tuned_yardstick_never_sees_test_rows(fed: ct.Federation, task: ct.Task) -> None:
    """Learning rate and stopping time are chosen on training rows: other test labels change no lone model."""
    some = fed.subset(["c5", "c6"])
    one, two = (ct.fit(ct.FedAvg(SGD), f, task, rounds=1).alone() for f in (some, spoilt(some)))
    assert one is not None
    assert two is not None
    for client in some.clients:
        for a, b in zip(one.model(client).parameters(), two.model(client).parameters(), strict=True):
            assert torch.equal(a, b)


def test_the_best_of_several_runs_never_sees_test_rows(fed: ct.Federation, task: ct.Task) -> None:
    one, two = (ct.best_of(3, ct.FedAvg(SGD), f, task, rounds=1, alone=False) for f in (fed, spoilt(fed)))
    assert one.about["restarts"] == two.about["restarts"]


def test_a_checkpoint_is_written_as_often_as_was_asked(fed: ct.Federation, task: ct.Task, tmp_path: Path) -> None:
    file, seen = tmp_path / checkpoint.FILE, []

    def look(row: dict[str, Any], _: Any) -> None:
        seen.append(checkpoint.read(file)[1]["done"] if file.exists() else 0)

    ct.fit(ct.FedAvg(SGD), fed, task, rounds=6, out=tmp_path, checkpoint_every=2, alone=False, callbacks=[look])
    assert seen == [0, 0, 2, 2, 4, 4]


def test_a_resumed_run_makes_only_the_rounds_that_are_left(fed: ct.Federation, task: ct.Task, tmp_path: Path) -> None:
    rounds: list[int] = []
    options: dict[str, Any] = {
        "out": tmp_path,
        "alone": False,
        "callbacks": [lambda row, _: rounds.append(row["round"])],
    }
    first = ct.fit(ct.Local(SGD), fed, task, rounds=3, **options)
    both = ct.fit(ct.Local(SGD), fed, task, rounds=5, resume=True, **options)
    assert rounds == [1, 2, 3, 4, 5]
    assert both.history["seconds"].iloc[:3].equals(first.history["seconds"])


def test_the_excess_of_a_number_of_clusters_is_compared_client_by_client() -> None:
    """Clients differ much in how hard they are; the error is that of the difference, which is 0 for the best itself."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(12, 24, 2))
    noise = np.repeat([0.1, 3.0], 6)[:, None] * rng.normal(size=(12, 24))
    data = {i: (x[i], x[i, :, 0] + noise[i]) for i in range(12)}
    fed = ct.Federation.from_arrays(data, kind="regression")
    task = ct.Task(lambda: nn.Linear(2, 1), loss="mse")
    table = choose_clusters(ct.IFCA(local=SGD), fed, task, candidates=(1, 2), rounds=8).table
    best = table["loss"].idxmin()
    assert table.loc[best, "excess"] == table.loc[best, "excess_error"] == 0
    assert table["excess_error"].max() < 0.4 * table["loss"].min() / np.sqrt(
        12
    )  # the losses' own is 1.5 times that and more


def test_a_sure_loss_that_is_not_worth_it_makes_nobody_leave() -> None:
    """Slopes 1 and 1.12: each client surely loses with one slope for both, by a third of one per cent of its error."""
    rng = np.random.default_rng(0)
    data = {}
    for name, slope in (("a", 1.0), ("b", 1.12)):
        x = rng.normal(size=(44_000, 1))
        data[name] = (x, slope * x[:, 0] + rng.normal(size=44_000))
    fed = ct.Federation.from_arrays(data, kind="regression", test_fraction=10 / 11)
    task = ct.Task(lambda: nn.Linear(1, 1), loss="mse")
    local = ct.LocalSGD(steps=20, lr=0.2, batch_size=None)
    found = ct.fit(ct.FedAvg(local), fed, task, rounds=1, alone="equal budget").participation()
    assert (found.table["high"] < 0).all()
    assert found.leavers == []
    assert "below what is worth leaving for" in found.explain() or "not stable" in found.explain()
    assert found.worth == pytest.approx(0.01 * found.table["alone"].mean())
