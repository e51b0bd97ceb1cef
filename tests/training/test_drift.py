"""Clients that changed since a run: found when they did, and hardly ever announced when they did not."""

from __future__ import annotations

import numpy as np
import pytest

import coterie as ct
from coterie.errors import ConfigError, DataError

STEPS = ct.LocalSGD(steps=5, lr=0.3, batch_size=None)
TASK = ct.Task(ct.models.mlp(4, 8, 3), "cross_entropy", "accuracy")
M = 20
TRUTH = np.random.default_rng(0).normal(size=(2, 4, 3))


def month(seed: int, group: np.ndarray, rows: int = 40, flip: tuple[int, ...] = ()) -> ct.Federation:
    """New rows of all clients; labels of clients in `flip` follow no group's law."""
    rng, data = np.random.default_rng([seed, 5]), {}
    for i in range(M):
        x = rng.normal(size=(rows, 4))
        y = (x @ TRUTH[group[i]] + 0.5 * rng.normal(size=(rows, 3))).argmax(1)
        data[f"c{i}"] = (x, (y + (i in flip) * rng.integers(1, 3, rows)) % 3)
    return ct.Federation.from_arrays(data, classes=[0, 1, 2], one_class="allow", seed=seed)


GROUP = np.arange(M) % 2


@pytest.fixture(scope="module")
def run() -> ct.Result:
    return ct.fit(ct.IFCA(clusters=2, local=STEPS), month(0, GROUP), TASK, rounds=10, alone=False, progress=False)


def quiet(firsts: range, months: int) -> list[float]:
    """The share of quiet months with an alarm at any client, per run: a run's own test rows are what its months are compared
    with."""
    shares = []
    for first in firsts:
        run = ct.fit(ct.IFCA(clusters=2, local=STEPS), month(first, GROUP), TASK, rounds=8, alone=False, progress=False)
        later = [month(100 * first + k, GROUP, rows=(12, 40)[k % 2]) for k in range(months)]
        shares.append(float(np.mean([run.drift(m)[["left", "changed"]].to_numpy().any() for m in later])))
    return shares


def test_quiet_months_raise_no_alarm_in_95_of_100() -> None:
    alarms = quiet(range(1000, 1006), 6)
    assert np.mean(alarms) <= 0.05 + 4 * np.std(alarms, ddof=1) / np.sqrt(6)
    assert np.mean(alarms) <= 0.15


@pytest.mark.slow
def test_the_quiet_months_of_the_page() -> None:
    """docs/clustering.md: 2 of 150, from 25 runs; the bound is that of `level`."""
    assert 150 * np.mean(quiet(range(2000, 2025), 6)) <= 150 * 0.05


def test_clients_that_switched_groups_are_named_and_placed(run: ct.Result) -> None:
    group = GROUP.copy()
    group[:5] = 1 - group[:5]
    found = run.drift(month(200, group))
    assert found["left"].tolist() == [True] * 5 + [False] * (M - 5)
    label = {t: int(run.clusters[t == GROUP].iloc[0]) for t in (0, 1)}
    assert found["place"].tolist() == [label[int(g)] for g in group]
    assert (found["loss now"][:5] > 2 * found["loss before"][:5]).all()


def test_a_client_whose_rows_fit_no_group_is_changed_and_stays(run: ct.Result) -> None:
    found = run.drift(month(300, GROUP, flip=(3, 4)))
    assert found["changed"].tolist() == [i in (3, 4) for i in range(M)]


def test_after_half_switched_ten_more_rounds_are_as_good_as_a_new_run(run: ct.Result) -> None:
    later = month(400, np.where(np.arange(M) < M // 2, 1 - GROUP, GROUP), rows=120)
    on = ct.fit(ct.IFCA(clusters=2, local=STEPS), later, TASK, rounds=10, start=run.state, alone=False, progress=False)
    fresh = ct.fit(ct.IFCA(clusters=2, local=STEPS), later, TASK, rounds=30, alone=False, progress=False)
    assert on.scores()["accuracy"].mean() >= fresh.scores()["accuracy"].mean() - 0.01


def test_methods_without_groups_tell_who_changed_only() -> None:
    alone = ct.fit(ct.FedAvg(local=STEPS), month(0, GROUP * 0), TASK, rounds=10, alone=False, progress=False)
    found = alone.drift(month(501, GROUP * 0, flip=(7,)))
    assert found["changed"].tolist() == [i == 7 for i in range(M)]
    assert not found["left"].any()


def test_rows_of_strangers_and_too_few_rows(run: ct.Result) -> None:
    other = ct.Federation.from_arrays({"z": (np.ones((9, 4)), np.arange(9) % 3)})
    with pytest.raises(DataError, match="have none of them"):
        run.drift(other)
    some = month(600, 1 - GROUP, rows=3)
    assert not run.drift(some)[["left", "changed"]].to_numpy().any()  # three rows prove nothing
    with pytest.raises(ConfigError, match="level"):
        run.drift(some, level=2.0)
