"""Comparisons on data whose answer is known, and the honesty of their error bars."""

from __future__ import annotations

import json
from dataclasses import replace
from html import escape
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_digits
from torch import nn

import coterie as ct
from coterie.comparison.compare import Comparison, compare
from coterie.comparison.tuning import OWN_RATES, tune, validation_split
from coterie.errors import ConfigError
from coterie.evidence.gains import GAINS, LOSES, NO_SCORE, UNCLEAR, Gains, intervals
from coterie.report.page import page
from coterie.report.terminal import comparison_tables
from coterie.training.coalition import audit

FAST = ct.LocalSGD(steps=10, lr=0.2, batch_size=None)


def federation(seed: int = 0, rows: int = 220, n_test: float = 0.9) -> ct.Federation:
    """Nine alike clients with few training rows for thirty features, and one whose labels are turned round."""
    rng = np.random.default_rng(7)
    truth = rng.normal(size=30)
    data = {}
    for name in (*"abcdefghi", "odd"):
        x = rng.normal(size=(rows, 30))
        y = x @ truth * (-1 if name == "odd" else 1) > 0
        data[name] = (x, y.astype(int))
    return ct.Federation.from_arrays(data, test_fraction=n_test, seed=seed)


TASK = ct.Task.default(federation(rows=12))


@pytest.fixture(scope="module")
def known() -> Comparison:
    algorithms = [ct.Local(FAST), ct.FedAvg(FAST), ct.FineTuned(base=ct.FedAvg(FAST))]
    return compare(federation, TASK, algorithms, rounds=5, seeds=3, metric="accuracy")


def test_alike_clients_gain_and_the_odd_one_loses(known: Comparison) -> None:
    assert known.methods == ["local", "fedavg", "finetuned"]
    assert known.who("fedavg", LOSES) == ["odd"]
    assert len(known.who("fedavg", GAINS)) >= 5
    assert (known.gains.drop(columns="odd").loc[["fedavg", "finetuned"]] > 0).all(axis=None)
    assert known.who("local", UNCLEAR) == list(known.table.columns)


def test_gains_are_differences_to_one_baseline(known: Comparison) -> None:
    pd.testing.assert_frame_equal(known.gains, known.table - known.table.loc["local"])
    fedavg, alone = known.results["fedavg"][1], known.results["local"][1]
    assert fedavg.alone() is alone


def test_the_recommendation_is_the_mean_s_and_the_odd_one_is_named(known: Comparison) -> None:
    """One of ten clients loses most of what it had, so that the mean's error between clients is large."""
    assert known.judgement is not None
    assert known.judgement.learnable == ("local", "fedavg", "finetuned")
    low, high = known.interval
    assert low < float(known.gains.T[known.method].mean()) < high
    words = known.verdict()
    assert words.startswith(f"Recommendation: {known.recommendation} (")
    assert "odd measurably loses" in words
    assert "\n" not in words


def test_everything_is_saved(known: Comparison, tmp_path: Path) -> None:
    known.save(tmp_path / "out")
    table = pd.read_csv(tmp_path / "out" / "table.csv", index_col="method")
    np.testing.assert_allclose(table, known.table)
    long = pd.read_csv(tmp_path / "out" / "gains.csv")
    assert list(long.columns) == ["method", "client", "score", "gain", "standard_error", "half_interval", "mark"]
    scores = pd.read_parquet(tmp_path / "out" / "scores.parquet")
    assert len(scores) == 3 * 3 * 10
    told = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert told["about"]["seeds"] == [0, 1, 2]
    assert told["recommendation"] == known.recommendation


def test_printing_and_saving_never_train(known: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The odd one would leave, so a coalition needs new runs; nothing but `coalition()` may start them."""
    fresh = replace(known)  # no audit is kept yet

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("trained")

    with monkeypatch.context() as patch:
        patch.setattr("coterie.training.run.Run.one_round", refuse)
        words, html = fresh.verdict(), page(fresh)
        printed = [*comparison_tables(fresh)]
        fresh.save(tmp_path)
        with pytest.raises(AssertionError, match="trained"):
            fresh.coalition()
    assert "odd" in (tmp_path / "participation.csv").read_text()
    assert not (tmp_path / "coalition.csv").exists()
    assert "Would they stay with" in html
    assert "trained again" not in html
    coalition = fresh.coalition()
    assert coalition is not None
    assert len(coalition.steps) == 2
    assert fresh.verdict(coalition) == f"{words} Would they stay? {coalition.verdict()}"
    assert escape(coalition.explain()) in page(fresh, coalition)
    assert len(printed) == len([*comparison_tables(fresh, coalition)])
    fresh.save(tmp_path, coalition)
    assert len(pd.read_csv(tmp_path / "coalition.csv")) == 2


def test_noise_is_not_called_a_gain() -> None:
    """Coin-flip labels: nobody can gain, and after the correction for many nobody is marked."""
    rng = np.random.default_rng(3)
    data = {f"c{i}": (rng.normal(size=(60, 5)), rng.integers(0, 2, 60)) for i in range(20)}
    noise = ct.Federation.from_arrays(data, test_fraction=0.5)
    for metric in ("accuracy", "log_loss"):
        result = compare(noise, TASK_OF_FIVE, [ct.FedAvg(FAST)], rounds=3, seeds=1, metric=metric)
        assert (result.recommendation, result.sure) == ("alone", "nothing")
        assert set(result.marks.loc["fedavg"]) == {UNCLEAR}


TASK_OF_FIVE = ct.Task(ct.models.mlp(5, (), 2), "cross_entropy", ("accuracy", "log_loss"))


def test_trained_methods_join_a_table_without_changing_its_recommendation() -> None:
    """Names and objects mixed: training alone is tuned, not given the object's rate, which would keep it at its start."""
    slow = ct.FedAvg(ct.LocalSGD(steps=1, lr=1e-6))
    fed = federation(rows=60, n_test=0.5).subset([*"abc", "odd"])
    both = compare(fed, algorithms={"fedavg": "fedavg", "slow": slow}, rounds=3, seeds=1)
    exact = compare(fed, seeds=1)
    assert both.methods == ["alone", "together", "shrunk", "groups", "local", "fedavg", "slow"]
    assert (both.recommendation, both.sure) == (exact.recommendation, exact.sure)
    pd.testing.assert_frame_equal(both.table.loc[exact.methods], exact.table)
    assert both.metric == exact.metric == "log_loss"
    assert both.table.loc["local"].mean() < both.table.loc["slow"].mean() - 0.05
    pd.testing.assert_series_equal(
        both.gains.loc["slow"], both.table.loc["local"] - both.table.loc["slow"], check_names=False
    )
    assert "They do not change the recommendation" in both.verdict()


def test_a_method_that_diverges_is_named_and_the_others_are_kept() -> None:
    wild = ct.FedAvg(ct.LocalSGD(steps=5, lr=1e38))
    result = compare(
        federation(rows=24, n_test=0.5), TASK, {"wild": wild, "fedavg": ct.FedAvg(FAST)}, rounds=2, seeds=2
    )
    assert list(result.failed) == ["wild"]
    assert result.methods == ["local", "fedavg"]
    assert "wild failed: " in result.verdict()


def test_what_cannot_run_is_said_at_once() -> None:
    told: list[str] = []
    with pytest.raises(ConfigError, match="oracle cannot run on these data: Oracle needs the true clusters"):
        compare(federation(rows=24), TASK, "fedavg,oracle", seeds=1, note=lambda m, _: told.append(m))
    assert told == []


def test_targets_of_any_size_are_learned_alike() -> None:
    """Regression targets are standardised inside the task: 10⁵ times the target gives 10¹⁰ times the squared error."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 60, 3))
    y = x @ np.ones(3) + 0.3 * rng.normal(size=(4, 60))
    found = []
    for shift, scale in ((0.0, 1.0), (5e4, 1e5)):
        fed = ct.Federation.from_arrays({i: (x[i], shift + scale * y[i]) for i in range(4)}, kind="regression")
        task = ct.Task(ct.models.linear(3, 1), "mse")
        found.append(compare(fed, task, [ct.Local(FAST), ct.FedAvg(FAST)], rounds=5, seeds=1).table / scale**2)
    np.testing.assert_allclose(found[1], found[0], rtol=1e-3)
    assert found[1].loc["fedavg"].mean() < 0.2  # the noise has variance 0.09, the target 3


def test_a_comparison_and_an_audit_have_one_error_of_a_client(known: Comparison) -> None:
    told = audit(known.results["fedavg"])
    rows = told.table["rows"].to_numpy(np.float64)
    gains, errors = (part.loc["fedavg"].to_numpy(np.float64) for part in (known.gains, known.errors))
    low, high = intervals(Gains(gains, errors, rows + 3, rows), told.settings.level)
    np.testing.assert_allclose(told.table[["gain", "low", "high"]], np.stack([gains, low, high], 1))


def test_few_test_rows_are_never_clear() -> None:
    tiny = federation(rows=20, n_test=0.25)
    result = compare(tiny, TASK, [ct.FedAvg(FAST)], rounds=2, seeds=1)
    assert set(result.marks.loc["fedavg"]) == {UNCLEAR}


def test_tuning_never_sees_test_rows() -> None:
    fed = federation()
    y = fed.y.clone()
    is_test = np.concatenate([np.arange(n) >= k for n, k in zip(fed.n_samples, fed.n_train, strict=True)])
    y[is_test] = 1 - y[is_test]
    spoilt = ct.Federation(fed.x, y, fed.offsets, fed.n_train, fed.clients, fed.kind, fed.classes)
    task = ct.Task.default(fed)
    one, two = (tune(ct.Local(), f, task, rounds=2) for f in (fed, spoilt))
    assert one.algorithm == two.algorithm
    pd.testing.assert_frame_equal(one.candidates, two.candidates)


def test_the_validation_split_holds_training_rows_only() -> None:
    fed = federation(rows=41)
    part = validation_split(fed, seed=3)
    for client in fed.clients:
        train = {tuple(r) for r in fed.train(client)[0].tolist()}
        inner = [tuple(r) for split in (part.train, part.test) for r in split(client)[0].tolist()]
        assert set(inner) == train
        assert len(inner) == len(train)
    assert (part.n_test > 0).all()


def test_tuning_prefers_what_works_and_survives_divergence() -> None:
    """Targets that jump with huge slopes: the larger rates diverge, the choice is still finite."""
    rng = np.random.default_rng(0)
    x = 30 * rng.normal(size=(200, 4))
    data = {c: (x[i::4], x[i::4] @ np.ones(4)) for i, c in enumerate("abcd")}
    fed = ct.Federation.from_arrays(data, kind="regression")
    tuned = tune(ct.FedAvg(), fed, ct.Task.default(fed), rounds=6)
    assert tuned.algorithm.local.lr < 0.01
    assert np.isfinite(tuned.candidates["validation"]).all()
    assert tuned.candidates["validation"].min() < 0.5 * float(fed.y.var())


def test_names_are_tuned_and_repeatable() -> None:
    small = federation(rows=40, n_test=0.5)
    one, two = (compare(small, TASK, "fedavg", rounds=2, seeds=1, metric="log_loss") for _ in range(2))
    assert one.metric == "log_loss"
    pd.testing.assert_frame_equal(one.table, two.table)
    assert one.gains.loc["fedavg", "a"] == pytest.approx(one.table.loc["local", "a"] - one.table.loc["fedavg", "a"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"algorithms": ["fedagv"]}, "There is no algorithm 'fedagv'. Did you mean 'fedavg'"),
        ({"algorithms": []}, "at least one algorithm"),
        ({"metric": "acuracy"}, "There is no metric 'acuracy'. Did you mean 'accuracy'"),
        ({"metric": "mse"}, "does not fit classification"),
        ({"seeds": 0}, "seeds must be a whole number ≥ 1"),
        ({"rounds": 0}, "rounds must be a whole number ≥ 1"),
    ],
)
def test_bad_input(options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        compare(federation(rows=12), **options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=words):
        compare(federation(rows=12), TASK, **options)  # type: ignore[arg-type]


def test_a_client_without_a_score_is_said_to_have_none() -> None:
    """Client 'one' has a single row, so nothing to test on; the others are unaffected."""
    rng = np.random.default_rng(1)
    data = {c: (x := rng.normal(size=(n, 3)), (x[:, 0] > 0).astype(int)) for c, n in (("a", 40), ("b", 40), ("one", 1))}
    lonely = ct.Federation.from_arrays(data, one_class="allow")
    result = compare(lonely, algorithms=[ct.FedAvg(FAST)], rounds=2, seeds=2)
    assert result.who("fedavg", NO_SCORE) == result.who("together", NO_SCORE) == ["one"]
    assert result.errors.drop(columns="one").notna().all(axis=None)
    assert np.isfinite(result.bounds("fedavg")).all()


def test_an_algorithm_with_its_own_rate_is_tuned_too() -> None:
    """One gradient step a round: in few rounds only the larger rate comes near the end."""
    fed = federation(rows=400, n_test=0.25).subset(list("ab"))
    tuned = tune(ct.FederatedClustering(radius=ct.robust.Percentile(100)), fed, ct.Task.default(fed), rounds=20)
    assert tuned.algorithm.lr >= max(OWN_RATES)
    assert len(tuned.candidates) >= len(OWN_RATES)


def test_the_grid_is_extended_while_its_edge_is_best() -> None:
    """Inputs of a tenth: a rate of 0.2 is too small, and larger ones must be found."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 200, 3))
    data = {i: (0.1 * x[i], (x[i].sum(1) > 0).astype(int)) for i in range(4)}
    fed = ct.Federation.from_arrays(data)
    tuned = tune(ct.FedAvg(), fed, ct.Task.default(fed), rounds=6)
    assert tuned.algorithm.local.lr > 0.2
    assert tuned.candidates["validation"].min() < 0.2  # log 2 = 0.69 at the start


def test_a_run_that_gets_worse_is_stopped_early() -> None:
    """22 rows of 30 features and labels of noise: more rounds only fit the noise."""
    rng = np.random.default_rng(0)
    fed = ct.Federation.from_arrays({c: (rng.normal(size=(44, 30)), rng.integers(0, 2, 44)) for c in "abcd"})
    tuned = tune(ct.Local(), fed, ct.Task.default(fed))
    assert tuned.candidates.groupby("algorithm")["rounds"].max().min() < 15  # 15 rounds were allowed
    assert tuned.rounds < 15


def digits(clients: int, rows: int) -> ct.Federation:
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))[: clients * rows]
    images = (x / 16).reshape(-1, 1, 8, 8).astype(np.float32)
    return ct.Federation.from_arrays(
        {f"c{i}": (images[order[i::clients]], y[order[i::clients]]) for i in range(clients)}, test_fraction=0.4, seed=0
    )


def network(hidden: int) -> ct.Task:
    return ct.Task(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10)), metric="accuracy"
    )


def test_a_network_on_images_is_compared_end_to_end() -> None:
    methods = {"local": ct.Local(FAST), "fedavg": ct.FedAvg(FAST)}
    found = compare(digits(2, 80), network(8), methods, rounds=10, seeds=1)
    assert found.methods == ["local", "fedavg"]
    assert found.decision is None
    assert found.recommendation in ("alone", "together")
    assert found.table.loc["fedavg"].mean() > 0.3  # a guess has 0.1
    assert "against" in found.verdict() or "overall average" in found.verdict()
    if found.sure == "clear" and found.recommendation != "alone":
        assert found.interval[0] > 0


@pytest.mark.slow
def test_a_network_on_images_with_the_default_methods() -> None:
    """Measured: alone 0.844, fedavg 0.906, ditto 0.922; every rate inside its grid, nothing left to improve."""
    found = compare(digits(4, 120), network(16), seeds=1)
    means = found.table.mean(axis=1)
    assert list(means.index) == ["local", "fedavg", "finetuned", "ditto", "ifca"]
    assert means.drop("local").min() > means["local"] > 0.75
    assert found.warnings == ()
    assert not found.failed
