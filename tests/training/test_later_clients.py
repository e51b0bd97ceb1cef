"""Clients that come after training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import coterie as ct
from coterie.algorithms import ALGORITHMS
from coterie.errors import ConfigError, DataError
from tests.conftest import build

STEPS = ct.LocalSGD(steps=5, lr=0.3, batch_size=None)
TASK = ct.Task(ct.models.mlp(4, 8, 3), "cross_entropy", "accuracy")
OLD = build((20, 24, 30, 22, 26, 28, 21, 25))
NEW = build((24, 31, 20, 40, 27), ids=["n0", "n1", "n2", "n3", "n4"], seed=0)


def trained(algorithm: object, federation: ct.Federation = OLD, **options: object) -> ct.Result:
    return ct.fit(algorithm, federation, TASK, rounds=4, alone=False, progress=False, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_algorithm_gives_newcomers_a_model_and_learns_nothing_from_them(name: str) -> None:
    kind = ALGORITHMS[name]
    if kind.exactly is not None:
        result = ct.fit(kind.example(), build((20, 24)), TASK, rounds=1, alone=False, progress=False)
        with pytest.raises(ConfigError, match="no model for others"):
            result.evaluate_new(NEW)
        return
    result = trained(kind.example())
    before = result.scores()
    table = result.evaluate_new(NEW)
    assert list(table.index) == list(NEW.clients)
    assert table["accuracy"].between(0, 1).all()
    pd.testing.assert_frame_equal(result.evaluation.scores(), before)
    again = result.evaluate_new(NEW.subset(["n3"]))  # a newcomer's score does not depend on the other newcomers
    assert again.loc["n3", "accuracy"] == table.loc["n3", "accuracy"]


@pytest.mark.parametrize("algorithm", [ct.IFCA(clusters=2, local=STEPS), ct.OneShot(clusters=2, local=STEPS)])
def test_newcomers_join_the_group_whose_law_is_theirs(algorithm: object) -> None:
    result = trained(algorithm)
    groups = {c: set(result.clusters[OLD.clusters == c]) for c in (0, 1)}
    assert all(len(g) == 1 for g in groups.values())
    table = result.evaluate_new(NEW)
    assert [groups[int(t)] for t in NEW.clusters] == [{int(c)} for c in table["cluster"]]
    for client, truth in zip(NEW.clients, NEW.clusters, strict=True):
        x, y = NEW.train(client)
        place = result.assign(x.numpy(), [NEW.classes[int(c)] for c in y])
        assert {int(place)} == groups[int(truth)]
        met = result.clusters.index[result.clusters == int(place)][0]
        assert torch.equal(place.model(x), result.model(met)(x))


def test_cfl_places_a_newcomer_by_loss_and_not_in_its_first_cluster() -> None:
    result = ct.fit(ct.CFL(local=STEPS, quiet=100.0, loud=1e-6, first=2, most=2), OLD, TASK, rounds=8, alone=False)
    assert len(set(result.clusters)) == 2
    models = [result.model(result.clusters.index[result.clusters == g][0]) for g in (0, 1)]
    expected = []
    for client in NEW.clients:
        x, y = NEW.train(client)
        losses = [torch.nn.functional.cross_entropy(m(x), y).item() for m in models]
        expected.append(int(np.argmin(losses)))
    assert set(expected) == {0, 1}
    assert result.evaluate_new(NEW)["cluster"].tolist() == expected


def test_twenty_rows_place_a_newcomer_on_rotated_digits() -> None:
    clients = ct.datasets.digits(transform="rotate", clusters=4, clients=32, seed=1)
    task = ct.Task(ct.models.mlp(64, 32, 10), "cross_entropy", "accuracy")
    local = ct.LocalSGD(steps=10, lr=0.5, batch_size=32)
    result = ct.fit(ct.IFCA(clusters=4, local=local), clients, task, rounds=10, seed=0, newcomers=0.25, alone=False)
    known = clients.subset(result.clients)
    truth = {int(g): known.clusters[result.clusters == g] for g in set(result.clusters)}
    assert all(len(set(t)) == 1 for t in truth.values())
    rng, right = np.random.default_rng(0), []
    for client in clients.clients.difference(result.clients):
        x, y = clients.train(client)
        for _ in range(25):
            some = rng.choice(len(x), 20, replace=False)
            place = result.assign(x[some].numpy(), np.array(clients.classes)[y[some].numpy()])
            right.append(truth[int(place)][0] == clients.clusters[clients.index(client)])
    assert len(right) == 200
    assert np.mean(right) >= 0.95
    assert len(result.evaluate_new()) == 8
    assert result.evaluate_new()["accuracy"].mean() > result.scores()["accuracy"].mean() - 0.05


def test_nothing_of_newcomers_reaches_the_run() -> None:
    """Other rows at the clients that are kept apart: the same weights to the last bit."""
    changed = {c: tuple(t.numpy() for t in OLD.train(c)) for c in OLD.clients}
    first = trained(ct.IFCA(clusters=2, local=STEPS), newcomers=0.25)
    apart = OLD.clients.difference(first.clients)
    assert len(apart) == 2
    for client in apart:
        changed[client] = (changed[client][0] * 1e3, changed[client][1])
    start = {c: tuple(t.numpy() for t in OLD.train(c)) for c in OLD.clients}
    runs = [
        trained(ct.IFCA(clusters=2, local=STEPS), ct.Federation.from_arrays(d), newcomers=0.25)
        for d in (start, changed)
    ]
    for one, two in zip(*(run.state.models.values() for run in runs), strict=True):
        assert torch.equal(one, two)


def test_tuning_takes_steps_on_the_newcomers_own_training_rows() -> None:
    result = trained(ct.Local(local=STEPS))
    assert result.evaluate_new(NEW)["cluster"].eq(-1).all()
    tuned = result.evaluate_new(NEW, tune=ct.LocalSGD(steps=50, lr=0.3, batch_size=None))
    assert tuned["accuracy"].mean() > result.evaluate_new(NEW)["accuracy"].mean() + 0.2
    x, y = NEW.train("n1")
    model = result.assign(x.numpy(), [NEW.classes[int(c)] for c in y], tune=STEPS).model
    alone = ct.fit(ct.Local(local=STEPS), NEW, TASK, rounds=1, alone=False, progress=False)
    assert torch.allclose(model(x), alone.model("n1")(x), atol=1e-5)


def test_a_saved_run_keeps_what_its_newcomers_got(tmp_path: Path) -> None:
    result = trained(ct.FedAvg(local=STEPS), newcomers=0.3, out=tmp_path)
    pd.testing.assert_frame_equal(ct.Result.load(tmp_path).evaluate_new(), result.evaluate_new())
    with pytest.raises(ConfigError, match="no run in memory"):
        ct.Result.load(tmp_path).evaluate_new(NEW)


def test_what_cannot_be_is_refused_with_one_sentence() -> None:
    result = trained(ct.FedAvg(local=STEPS))
    with pytest.raises(ConfigError, match="kept no clients apart"):
        result.evaluate_new()
    with pytest.raises(DataError, match="columns and classes of the run"):
        result.evaluate_new(ct.datasets.heart())
    with pytest.raises(ConfigError, match="newcomers must be a number between 0 and 1"):
        trained(ct.FedAvg(local=STEPS), newcomers=1.5)
    with pytest.raises(ConfigError, match="keeps no newcomers apart"):
        trained(ct.FedAvg(local=STEPS), newcomers=0.5, privacy=ct.Privacy(epsilon=3, delta=1e-6, clip=1.0))
    with pytest.raises(ConfigError, match="more than one network"):
        trained(ct.FedEM(local=STEPS)).evaluate_new(NEW, tune=STEPS)
