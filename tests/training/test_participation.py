"""Who would stay: gains with paired intervals, leavers, and what is left when they leave."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from torch import nn

import coterie as ct
from coterie.evidence.gains import gains_of, intervals
from coterie.training.coalition import audit
from coterie.training.row_losses import row_losses, row_names

SGD = ct.LocalSGD(steps=10, lr=0.3, batch_size=16)
LINEAR = ct.Task(lambda: nn.Linear(4, 2), metric=("accuracy", "log_loss"))
ODD = {"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0, "e": 1.0, "odd": -1.0}
EQUAL: Any = "equal budget"
ALIKE = ["a", "b", "c", "d", "e"]
TRUTH = np.array([1.5, -1.0, 0.5, 0.0])


def made(signs: dict[str, float], rows: int = 160, seed: int = 0, small: tuple[str, ...] = ()) -> ct.Federation:
    """Clients with the same labels (sign 1) or the opposite ones (sign −1)."""
    rng = np.random.default_rng(seed)
    data = {}
    for name, sign in signs.items():
        n = 6 if name in small else rows
        x = rng.normal(size=(n, 4))
        y = (sign * (x @ TRUTH) + 0.5 * rng.logistic(size=n) > 0).astype(int)
        y[:2] = (0, 1)
        data[name] = (x, y)
    return ct.Federation.from_arrays(data, test_fraction=0.75, seed=1)


@pytest.fixture(scope="module")
def odd() -> ct.Result:
    return ct.fit(ct.FedAvg(SGD), made(ODD), LINEAR, rounds=10, alone=EQUAL)


def test_the_odd_one_would_leave_and_the_rest_is_stable(odd: ct.Result) -> None:
    found = odd.participation()
    assert found.leavers == ["odd"]
    assert not found.stable
    table = found.table
    evaluation = odd.evaluate()
    np.testing.assert_allclose(table["gain"], evaluation["gain"])
    np.testing.assert_allclose(table["score"] - table["alone"], table["gain"])
    assert (table["low"] <= table["gain"]).all()
    assert (table["gain"] <= table["high"]).all()
    assert table.loc["odd", "p_worse"] > 0.999
    assert "corrected for looking at 6 clients" in found.explain()
    assert list(table["rows"]) == [120] * 6
    coalition = found.coalition()
    assert coalition.members == ALIKE
    assert coalition.stable
    assert list(coalition.history["clients"]) == [6, 5]
    assert list(coalition.history["left"]) == ["odd", ""]
    assert coalition.history["mean_gain"].diff().iloc[1] > 0.1
    assert "odd (-" in found.explain()
    assert "odd would do better to leave" in found.explain()
    assert "a, b, c, d and e (5)" in coalition.explain()
    assert "Alone: odd." in coalition.explain()


def test_the_new_run_is_the_one_without_the_leavers(odd: ct.Result) -> None:
    (again,) = odd.participation().coalition().results
    direct = ct.fit(ct.FedAvg(SGD), odd.federation.subset(ALIKE), LINEAR, rounds=10)
    assert all(torch.equal(t, direct.state.model[name]) for name, t in again.state.model.items())


def test_nobody_leaves_a_coalition_of_equals() -> None:
    result = ct.fit(ct.FedAvg(SGD), made(dict.fromkeys("abcdefgh", 1.0), rows=40), LINEAR, rounds=10, alone=EQUAL)
    found = result.participation()
    assert found.stable
    assert "stable" in found.explain()
    coalition = found.coalition()
    assert coalition.stable
    assert len(coalition.steps) == 1
    assert coalition.explain().startswith("All 8 clients stay")


def test_five_against_five_opposites_are_two_stable_fives() -> None:
    signs = {f"{'pq'[i % 2]}{i}": 1.0 if i % 2 == 0 else -1.0 for i in range(10)}
    result = ct.fit(ct.FedAvg(SGD), made(signs, rows=80), LINEAR, rounds=10, alone=EQUAL)
    found = result.participation()
    assert len(found.leavers) >= 3
    coalition = found.coalition()
    fives = [[c for c in signs if c.startswith(letter)] for letter in "pq"]
    assert sorted(sorted(g) for g in coalition.groups) == sorted(sorted(f) for f in fives)
    assert coalition.alone == []
    assert coalition.stable
    assert coalition.found.mean_gain > 0
    assert "2 groups" in coalition.explain()


def test_a_loss_on_average_is_never_called_stable(odd: ct.Result) -> None:
    found = odd.participation()
    table = found.table.assign(gain=-0.1, leaves=False)
    worse = replace(found, table=table)
    assert not worse.stable
    assert "not stable" in worse.explain()
    assert "Nobody has a reason to leave" not in worse.explain()


def test_the_interval_is_that_of_paired_rows(odd: ct.Result) -> None:
    """Recomputed from the models: differences of paired rows, judged as `evidence/gains.py` judges all gains."""
    found, fed, alone = odd.participation(), odd.federation, odd.alone()
    assert alone is not None
    rows = []
    for client in fed.clients:
        x, y = fed.test(client)
        one, two = ((run.model(client)(x).argmax(1) == y).double().numpy() for run in (odd, alone))
        rows.append(one - two)
    owner = np.repeat(np.arange(len(rows)), [len(r) for r in rows])
    low, high = intervals(gains_of(np.concatenate(rows), owner, len(rows)), 0.9)
    np.testing.assert_allclose(found.table["low"], low, atol=1e-6)
    np.testing.assert_allclose(found.table["high"], high, atol=1e-6)
    assert (low < high).all()


def test_a_row_that_several_splits_test_counts_once() -> None:
    feds = [ct.Federation.from_arrays(rows_of(3), test_fraction=0.5, seed=s) for s in range(3)]
    runs = [ct.fit(ct.FedAvg(SGD), fed, LINEAR, rounds=2, alone=EQUAL) for fed in feds]
    table = audit(runs).table
    names = row_names(runs)
    for i in range(3):
        distinct = len(set(np.concatenate([names[s][i] for s in range(3)]).tolist()))
        assert table["rows"].iloc[i] == distinct <= 40
        assert distinct > feds[0].n_test[i]


def rows_of(clients: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {f"c{i}": (rng.normal(size=(40, 4)), np.arange(40) % 2) for i in range(clients)}


@pytest.mark.parametrize("metric", ["accuracy", "log_loss", "auc", "balanced_accuracy"])
def test_row_losses_average_to_the_score(odd: ct.Result, metric: str) -> None:
    task = ct.Task(LINEAR.model, metric=metric)
    result = ct.fit(ct.FedAvg(SGD), odd.federation, task, rounds=2, alone=False)
    means = [losses.mean() for losses in row_losses(result)]
    np.testing.assert_allclose(-task.sign * np.array(means), result.scores()[metric], rtol=1e-5)


def test_of_a_hundred_equals_nobody_is_told_to_leave() -> None:
    rng = np.random.default_rng(0)
    data = {f"c{i}": (rng.normal(size=(60, 4)), rng.integers(0, 2, 60)) for i in range(100)}
    fed = ct.Federation.from_arrays(data, test_fraction=0.5)
    found = ct.fit(ct.FedAvg(SGD), fed, LINEAR, rounds=2, alone=EQUAL).participation()
    assert found.leavers == []
    assert "corrected for looking at 100 clients" in found.explain()


def test_who_stayed_for_what_a_leaver_brought_leaves_next() -> None:
    """Everybody learns one number, and the shared one is the mean of all rows, 1.

    C (true value 2) is off by 1 and leaves; without it the mean is 0.5, and B (true value 1), who was served perfectly,
    leaves too. The ten small clients (true value 0), whose own five rows mislead them by 1.34, are glad of one another."""
    rng = np.random.default_rng(0)
    means = {f"a{i}": (0.0, 1.34 * (-1) ** i, 5) for i in range(10)} | {"B": (1.0, 1.0, 50), "C": (2.0, 2.0, 50)}
    targets, tests = [], 400
    for truth, own, n in means.values():
        noise = [rng.normal(size=m) for m in (n, tests)]
        targets += [c + e - e.mean() for c, e in zip((own, truth), noise, strict=True)]
    y = np.concatenate(targets)
    sizes = np.array([n + tests for *_, n in means.values()])
    fed = ct.Federation.from_flat(
        np.zeros((len(y), 1)), y, sizes=sizes, n_test=np.full(12, tests), clients=list(means), kind="regression"
    )
    exact = ct.LocalSGD(steps=20, lr=0.4, batch_size=None)
    result = ct.fit(ct.FedAvg(exact), fed, ct.Task(lambda: nn.Linear(1, 1), "mse"), rounds=3, alone=EQUAL)
    found = result.participation()
    assert found.table.loc[["B", "C"], "gain"].tolist() == pytest.approx([0, -1], abs=1e-3)
    assert found.table.loc["a0", "gain"] == pytest.approx(1.34**2 - 1, abs=1e-2)
    assert found.leavers == ["C"]
    coalition = found.coalition()
    assert coalition.members == [f"a{i}" for i in range(10)]
    assert set(coalition.alone) == {"B", "C"}
    assert coalition.stable


@pytest.mark.parametrize("metric", ["accuracy", "log_loss", "auc", "balanced_accuracy"])
def test_the_odd_client_leaves_by_every_metric(odd: ct.Result, metric: str) -> None:
    task = ct.Task(LINEAR.model, metric=metric)
    result = ct.fit(ct.FedAvg(SGD), odd.federation, task, rounds=10, alone=EQUAL)
    assert "odd" in result.participation().leavers


def test_training_alone_gains_exactly_nothing() -> None:
    fed = made({"a": 1, "b": -1})
    found = ct.fit(ct.Local(SGD), fed, LINEAR, rounds=3, alone=EQUAL).participation()
    assert (found.table[["gain", "low", "high"]] == 0).all().all()
    assert (found.table["p_worse"] == 0.5).all()
    assert found.stable


def test_clients_without_test_rows_are_said_to_be_unknown() -> None:
    rng = np.random.default_rng(0)
    data = {name: (rng.normal(size=(n, 4)), np.arange(n) % 2) for name, n in (("big", 40), ("other", 40), ("tiny", 2))}
    fed = ct.Federation.from_arrays(data, test_fraction=0.2)
    assert fed.n_test[2] == 0
    found = ct.fit(ct.FedAvg(SGD), fed, LINEAR, rounds=2, alone=EQUAL).participation()
    assert found.table.loc["tiny", ["score", "gain", "low", "high", "p_worse"]].isna().all()
    assert not found.table.loc["tiny", "leaves"]
    assert found.unknown == ["tiny"]
    assert "Nothing can be said of tiny" in found.explain()


def test_the_rule_of_the_mean_needs_rows_too() -> None:
    fed = made({"a": 1, "b": 1, "few": -1}, small=("few",))
    quick = ct.fit(ct.FedAvg(SGD), fed, LINEAR, rounds=10, alone=EQUAL).participation(rule="mean")
    enough = quick.table["rows"] >= 10
    assert quick.leavers == list(quick.table.index[(quick.table["gain"] < 0) & enough])


def test_a_handful_of_test_rows_is_no_reason_to_leave() -> None:
    """Three rows that all went wrong give an interval of width zero: certainty from nothing."""
    fed = made({"a": 1, "b": 1, "few": -1}, small=("few",))
    result = ct.fit(ct.FedAvg(SGD), fed, LINEAR, rounds=10, alone=EQUAL)
    found = result.participation()
    assert found.table.loc["few", "rows"] == 4
    assert found.table.loc["few", "high"] < 0
    assert found.leavers == []
    assert "too few to leave for: few" in found.explain()
    assert result.participation(fewest=1).leavers == ["few"]


def test_it_judges_predictors_that_are_more_than_weights() -> None:
    """kNN-Per's memory rescues the odd one, which FedAvg loses."""
    fed = made(ODD)
    task = ct.Task(lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)))
    found = ct.fit(ct.KNNPer(lam=1.0, local=SGD), fed, task, rounds=10, alone=EQUAL).participation()
    plain = ct.fit(ct.FedAvg(SGD), fed, task, rounds=10, alone=EQUAL).participation()
    assert found.table.loc["odd", "score"] > plain.table.loc["odd", "score"] + 0.2


def test_several_seeds_are_judged_together() -> None:
    fed = made(ODD)
    runs = [ct.fit(ct.FedAvg(SGD), fed, LINEAR, rounds=8, seed=s, alone=EQUAL) for s in range(3)]
    found = audit(runs)
    singles = [run.participation() for run in runs]
    np.testing.assert_allclose(found.table["gain"], np.mean([s.table["gain"] for s in singles], axis=0))
    assert found.leavers == ["odd"]
    coalition = found.coalition()
    assert "odd" in coalition.alone
    assert len(coalition.members) >= 3
    assert len(coalition.results) == 3
    with pytest.raises(ct.errors.DataError, match="same clients"):
        audit([runs[0], ct.fit(ct.FedAvg(SGD), fed.subset(["b", "a"]), LINEAR, rounds=1, alone=EQUAL)])


def test_the_same_run_three_times_is_no_more_evidence_than_once(odd: ct.Result) -> None:
    one, three = audit(odd), audit([odd, odd, odd])
    np.testing.assert_allclose(one.table.astype(float), three.table.astype(float), atol=1e-12)


def test_a_cohort_shrinks_with_the_coalition() -> None:
    fed = made(ODD)
    result = ct.fit(ct.FedAvg(SGD), fed, LINEAR, rounds=10, cohort=4, alone=EQUAL)
    assert result.participation().coalition().members == ALIKE


def test_the_same_on_both_engines(odd: ct.Result) -> None:
    plain = ct.fit(ct.FedAvg(SGD), odd.federation, LINEAR, rounds=10, engine="loop", alone=EQUAL).participation()
    np.testing.assert_allclose(plain.table.astype(float), odd.participation().table.astype(float), atol=1e-5)


@pytest.mark.parametrize("clients", [4, 60])
def test_the_picture(clients: int) -> None:
    signs = {f"c{i}": -1.0 if i % 4 == 3 else 1.0 for i in range(clients)}
    found = ct.fit(ct.FedAvg(SGD), made(signs, rows=30), LINEAR, rounds=4, alone=EQUAL).participation()
    figure, ax = plt.subplots()
    assert found.plot(ax) is ax
    assert "gain" in (ax.get_xlabel() if clients == 4 else ax.get_ylabel())
    plt.close(figure)


def test_it_says_what_is_missing(odd: ct.Result, tmp_path: Path) -> None:
    fed = odd.federation
    with pytest.raises(ct.errors.ConfigError, match="not trained alone"):
        ct.fit(ct.FedAvg(SGD), fed, LINEAR, rounds=1, alone=False).participation()
    with pytest.raises(ct.errors.ConfigError, match="A loaded result has no participation audit"):
        ct.Result.load(odd.save(tmp_path)).participation()
    with pytest.raises(ct.errors.ConfigError, match="at least one result"):
        audit([])


@pytest.mark.parametrize(
    ("options", "words"),
    [({"level": 1.0}, "level must be"), ({"rule": "vote"}, "rule must be one of")],
)
def test_bad_settings_are_refused(odd: ct.Result, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ct.errors.ConfigError, match=words):
        odd.participation(**options)


def test_at_least_one_new_run(odd: ct.Result) -> None:
    with pytest.raises(ct.errors.ConfigError, match="max_rounds must be"):
        odd.participation().coalition(max_rounds=0)
