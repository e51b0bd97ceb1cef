"""Who would stay: gains with paired intervals, leavers, and what is left when they leave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from torch import nn

import coterie as ct
from coterie import randomness
from coterie.learning.metrics import METRICS
from coterie.training.bootstrap import bootstrap_scores
from coterie.training.participation import _over_runs, audit

SGD = ct.LocalSGD(steps=10, lr=0.3, batch_size=16)
LINEAR = ct.Task(lambda: nn.Linear(4, 2), metric=("accuracy", "log_loss"))
ODD = {"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0, "e": 1.0, "odd": -1.0}
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
    return ct.fit(ct.FedAvg(SGD), made(ODD), LINEAR, rounds=10)


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
    assert table.loc["odd", "p_worse"] == 1
    assert list(table["rows"]) == [120] * 6
    coalition = found.coalition()
    assert coalition.members == ALIKE
    assert coalition.stable
    assert list(coalition.history["clients"]) == [6, 5]
    assert list(coalition.history["left"]) == ["odd", ""]
    assert coalition.history["mean_gain"].diff().iloc[1] > 0.1
    assert "odd (-" in found.explain()
    assert "odd would do better to leave" in found.explain()
    assert "First odd leaves." in coalition.explain()
    assert "a, b, c, d and e" in coalition.explain()


def test_the_new_run_is_the_one_without_the_leavers(odd: ct.Result) -> None:
    (again,) = odd.participation(resamples=200).coalition().results
    direct = ct.fit(ct.FedAvg(SGD), odd.federation.subset(ALIKE), LINEAR, rounds=10)
    assert all(torch.equal(t, direct.state.model[name]) for name, t in again.state.model.items())


def test_nobody_leaves_a_coalition_of_equals() -> None:
    result = ct.fit(ct.FedAvg(SGD), made({"a": 1, "b": 1, "c": 1}), LINEAR, rounds=10)
    found = result.participation()
    assert found.stable
    assert "stable" in found.explain()
    coalition = found.coalition()
    assert coalition.stable
    assert len(coalition.steps) == 1
    assert coalition.explain().startswith("All 3 clients stay")


def test_opposites_fall_apart() -> None:
    signs = {"p": 1.0, "q": -1.0, "r": 1.0, "s": -1.0}
    result = ct.fit(ct.FedAvg(SGD), made(signs), LINEAR, rounds=10)
    found = result.participation()
    assert len(found.leavers) >= 3
    coalition = found.coalition()
    assert coalition.members == []
    assert not coalition.stable
    assert "falls apart" in coalition.explain()


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
    result = ct.fit(ct.FedAvg(exact), fed, ct.Task(lambda: nn.Linear(1, 1), "mse"), rounds=3)
    found = result.participation(resamples=500)
    assert found.table.loc[["B", "C"], "gain"].tolist() == pytest.approx([0, -1], abs=1e-3)
    assert found.table.loc["a0", "gain"] == pytest.approx(1.34**2 - 1, abs=1e-2)
    coalition = found.coalition()
    assert [step.leavers for step in coalition.steps] == [["C"], ["B"], []]
    assert coalition.members == [f"a{i}" for i in range(10)]
    assert "First C leaves. Then, trained without them, B leaves." in coalition.explain()
    short = found.coalition(max_rounds=1)
    assert not short.stable
    assert "max_rounds" in short.explain()


def test_the_interval_is_the_paired_bootstrap(odd: ct.Result) -> None:
    """Against a plain re-implementation: same rows for both models, one draw at a time."""
    found = odd.participation(level=0.8, resamples=300, seed=7)
    fed, alone = odd.federation, odd.alone()
    assert alone is not None
    client = "b"
    i = fed.index(client)
    x, y = fed.test(client)
    together, by_itself = ((run.model(client)(x).argmax(1) == y).double().numpy() for run in (odd, alone))
    key = torch.from_numpy(fed.keys[i : i + 1])[0] ^ randomness.base_key(7)
    gains = []
    for b in range(300):
        rows = (randomness.uniform(randomness.fold(key, "bootstrap", b), len(x), torch.float64) * len(x)).long().numpy()
        gains.append((together[rows] - by_itself[rows]).mean())
    assert found.table.loc[client, ["low", "high"]].tolist() == pytest.approx(np.quantile(gains, [0.1, 0.9]), abs=1e-7)
    worse = np.mean(np.sign(np.round(gains, 9)) == -1) + 0.5 * np.mean(np.round(gains, 9) == 0)
    assert found.table.loc[client, "p_worse"] == pytest.approx(worse, abs=0.01)


def test_the_interval_has_the_width_of_the_paired_difference(odd: ct.Result) -> None:
    """Normal theory: 2 · 1.645 · sd(difference) / √n, much narrower than without pairing."""
    found, fed, alone = odd.participation(), odd.federation, odd.alone()
    assert alone is not None
    for client in fed.clients:
        x, y = fed.test(client)
        one, two = ((run.model(client)(x).argmax(1) == y).double().numpy() for run in (odd, alone))
        expected = 2 * 1.645 * (one - two).std() / np.sqrt(len(x))
        width = found.table.loc[client, "high"] - found.table.loc[client, "low"]
        assert width == pytest.approx(expected, rel=0.2, abs=0.013)


@pytest.mark.parametrize("metric", ["accuracy", "log_loss", "auc", "balanced_accuracy"])
def test_every_metric_is_resampled_by_whole_rows(odd: ct.Result, metric: str) -> None:
    task = ct.Task(LINEAR.model, metric=metric)
    result = ct.fit(ct.FedAvg(SGD), odd.federation, task, rounds=10)
    draws = bootstrap_scores(result, 20, seed=3)
    x, y = odd.federation.test("c")
    outputs = result.model("c")(x).detach()
    key = torch.from_numpy(odd.federation.keys[2:3])[0] ^ randomness.base_key(3)
    for b in (0, 7, 19):
        rows = (randomness.uniform(randomness.fold(key, "bootstrap", b), len(x), torch.float64) * len(x)).long()
        direct = METRICS[metric](outputs[rows].unsqueeze(0), y[rows].unsqueeze(0), torch.ones(1, len(x)))
        assert draws[2, b] == pytest.approx(float(direct), abs=1e-6)
    assert "odd" in result.participation().leavers


def test_training_alone_gains_exactly_nothing() -> None:
    fed = made({"a": 1, "b": -1})
    found = ct.fit(ct.Local(SGD), fed, LINEAR, rounds=3).participation()
    assert (found.table[["gain", "low", "high"]] == 0).all().all()
    assert (found.table["p_worse"] == 0.5).all()
    assert found.stable


def test_the_rule_decides_who_leaves() -> None:
    result = ct.fit(ct.FedAvg(SGD), made({f"c{i}": 1 for i in range(6)}, rows=40, seed=4), LINEAR, rounds=10)
    careful, quick = result.participation(), result.participation(rule="mean")
    assert careful.leavers == []
    assert quick.leavers == list(quick.table.index[quick.table["gain"] < 0])
    assert quick.leavers


def test_clients_without_test_rows_are_said_to_be_unknown() -> None:
    rng = np.random.default_rng(0)
    data = {name: (rng.normal(size=(n, 4)), np.arange(n) % 2) for name, n in (("big", 40), ("other", 40), ("tiny", 2))}
    fed = ct.Federation.from_arrays(data, test_fraction=0.2)
    assert fed.n_test[2] == 0
    found = ct.fit(ct.FedAvg(SGD), fed, LINEAR, rounds=2).participation()
    assert found.table.loc["tiny", ["score", "gain", "low", "high", "p_worse"]].isna().all()
    assert not found.table.loc["tiny", "leaves"]
    assert found.unknown == ["tiny"]
    assert "Nothing can be said of tiny" in found.explain()


def test_a_handful_of_test_rows_is_no_reason_to_leave() -> None:
    """Three rows that all went wrong give an interval of width zero: certainty from nothing."""
    fed = made({"a": 1, "b": 1, "few": -1}, small=("few",))
    result = ct.fit(ct.FedAvg(SGD), fed, LINEAR, rounds=10)
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
    found = ct.fit(ct.KNNPer(lam=1.0, local=SGD), fed, task, rounds=10).participation()
    plain = ct.fit(ct.FedAvg(SGD), fed, task, rounds=10).participation()
    assert found.table.loc["odd", "score"] > plain.table.loc["odd", "score"] + 0.2


def test_several_seeds_are_judged_together() -> None:
    fed = made(ODD)
    runs = [ct.fit(ct.FedAvg(SGD), fed, LINEAR, rounds=8, seed=s) for s in range(3)]
    found = audit(runs)
    singles = [run.participation() for run in runs]
    np.testing.assert_allclose(found.table["gain"], np.mean([s.table["gain"] for s in singles], axis=0))
    assert found.leavers == ["odd"]
    coalition = found.coalition()
    assert coalition.members == ALIKE
    assert len(coalition.results) == 3
    with pytest.raises(ct.DataError, match="same clients"):
        audit([runs[0], ct.fit(ct.FedAvg(SGD), fed.subset(["b", "a"]), LINEAR, rounds=1)])


def test_the_same_run_three_times_is_no_more_evidence_than_once(odd: ct.Result) -> None:
    one, three = audit(odd), audit([odd, odd, odd])
    np.testing.assert_allclose(one.table.astype(float), three.table.astype(float), atol=1e-12)


def test_the_variance_over_runs_and_shared_rows() -> None:
    """Test rows v (1 + (S − 1) ρ)/S, training s²/S; against normal draws with these variances."""
    rng = np.random.default_rng(0)
    count, rho, v, s2, draws = 4, 0.5, 0.04, 0.09, 20_000
    gains = np.sqrt(s2) * np.array([-1.2, -0.4, 0.4, 1.2])[:, None] * np.sqrt(3 / 3.2)  # sample variance s2
    rows = gains[..., None] + np.sqrt(v) * rng.normal(size=(count, 1, draws))
    found = _over_runs(gains, rows, np.array([rho]), seed=1)[0]
    expected = v * (1 + (count - 1) * rho) / count + s2 / count
    assert found.mean() == pytest.approx(0, abs=4 * np.sqrt(expected / draws))
    assert found.var() == pytest.approx(expected, rel=4 * np.sqrt(2 / draws))


def test_a_cohort_shrinks_with_the_coalition() -> None:
    fed = made(ODD)
    result = ct.fit(ct.FedAvg(SGD), fed, LINEAR, rounds=10, cohort=4)
    assert result.participation(resamples=200).coalition().members == ALIKE


def test_the_same_on_both_engines(odd: ct.Result) -> None:
    plain = ct.fit(ct.FedAvg(SGD), odd.federation, LINEAR, rounds=10, engine="loop").participation()
    np.testing.assert_allclose(plain.table.astype(float), odd.participation().table.astype(float), atol=1e-5)


@pytest.mark.parametrize("clients", [4, 60])
def test_the_picture(clients: int) -> None:
    signs = {f"c{i}": -1.0 if i % 4 == 3 else 1.0 for i in range(clients)}
    found = ct.fit(ct.FedAvg(SGD), made(signs, rows=30), LINEAR, rounds=4).participation(resamples=100)
    figure, ax = plt.subplots()
    assert found.plot(ax) is ax
    assert "gain" in (ax.get_xlabel() if clients == 4 else ax.get_ylabel())
    plt.close(figure)


def test_it_says_what_is_missing(odd: ct.Result, tmp_path: Path) -> None:
    fed = odd.federation
    with pytest.raises(ct.ConfigError, match="not trained alone"):
        ct.fit(ct.FedAvg(SGD), fed, LINEAR, rounds=1, alone=False).participation()
    with pytest.raises(ct.ConfigError, match="A loaded result has no participation audit"):
        ct.Result.load(odd.save(tmp_path)).participation()
    with pytest.raises(ct.ConfigError, match="at least one result"):
        audit([])


@pytest.mark.parametrize(
    ("options", "words"),
    [({"level": 1.0}, "level must be"), ({"resamples": 5}, "100 resamples"), ({"rule": "vote"}, "rule must be one of")],
)
def test_bad_settings_are_refused(odd: ct.Result, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ct.ConfigError, match=words):
        odd.participation(**options)


def test_at_least_one_new_run(odd: ct.Result) -> None:
    with pytest.raises(ct.ConfigError, match="max_rounds must be"):
        odd.participation(resamples=100).coalition(max_rounds=0)
