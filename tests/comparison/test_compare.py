"""Comparisons on data whose answer is known, and the honesty of their error bars."""

from __future__ import annotations

import json
from dataclasses import replace
from html import escape
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import coterie as ct
from coterie.comparison.compare import Comparison, compare
from coterie.comparison.tuning import OWN_RATES, tune, validation_split
from coterie.errors import ConfigError
from coterie.report.page import page
from coterie.report.terminal import comparison_tables
from coterie.training.bootstrap import bootstrap_scores
from coterie.training.gains import GAINS, LOSES, NO_SCORE, UNCLEAR, interval, mark

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


@pytest.fixture(scope="module")
def known() -> Comparison:
    return compare(federation, algorithms=[ct.FedAvg(FAST), ct.FineTuned(ct.FedAvg(FAST))], rounds=5, seeds=3)


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


def test_the_verdict_names_who_should_leave(known: Comparison) -> None:
    words = known.verdict()
    assert "odd" in words
    assert "Recommendation" in words
    assert "\n" not in words


def test_everything_is_saved(known: Comparison, tmp_path: Path) -> None:
    known.save(tmp_path / "out")
    table = pd.read_csv(tmp_path / "out" / "table.csv", index_col="method")
    np.testing.assert_allclose(table, known.table)
    long = pd.read_csv(tmp_path / "out" / "gains.csv")
    assert list(long.columns) == ["method", "client", "score", "gain", "standard_error", "mark"]
    scores = pd.read_parquet(tmp_path / "out" / "scores.parquet")
    assert len(scores) == 3 * 3 * 10
    assert json.loads((tmp_path / "out" / "about.json").read_text())["seeds"] == [0, 1, 2]


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
    assert fresh.verdict(coalition) == f"{words} Would they stay? {coalition.summary()}"
    assert escape(coalition.explain()) in page(fresh, coalition)
    assert len(printed) == len([*comparison_tables(fresh, coalition)])
    fresh.save(tmp_path, coalition)
    assert len(pd.read_csv(tmp_path / "coalition.csv")) == 2


def test_the_table_and_the_audit_call_the_same_thing_clear(known: Comparison) -> None:
    """Both say what `gains.mark` says of their intervals; here the odd one loses by either."""
    audit = known.participation()
    assert audit is not None
    assert known.best is not None
    low, high = interval(known.gains.loc[known.best], known.errors.loc[known.best])
    rows = np.full(len(low), 3 * 198)
    assert list(mark(known.gains.loc[known.best], low, high, rows)) == list(known.marks.loc[known.best])
    t = audit.table
    assert list(mark(t["gain"], t["low"], t["high"], t["rows"])) == list(audit.marks)
    assert audit.leavers == list(audit.marks.index[audit.marks == LOSES]) == known.who(known.best, LOSES) == ["odd"]


def test_noise_is_not_called_a_gain() -> None:
    """Coin-flip labels: nobody can gain. At two standard errors about 5 % of 20 marks would be wrong; four sd: < 6."""
    rng = np.random.default_rng(3)
    data = {f"c{i}": (rng.normal(size=(60, 5)), rng.integers(0, 2, 60)) for i in range(20)}
    noise = ct.Federation.from_arrays(data, test_fraction=0.5)
    result = compare(noise, algorithms=[ct.FedAvg(FAST)], rounds=3, seeds=1)
    assert (result.marks.loc["fedavg"] != UNCLEAR).sum() < 6


def test_the_standard_error_is_that_of_a_mean_of_paired_differences() -> None:
    """For accuracy on one split the bootstrap must agree with the formula sd(difference) / √n."""
    fed = federation()
    a = ct.fit(ct.FedAvg(FAST), fed, rounds=3, progress=False)
    b = ct.fit(ct.Local(FAST), fed, rounds=3, progress=False)
    draws = bootstrap_scores(a, 400) - bootstrap_scores(b, 400)
    for i, client in enumerate(fed.clients):
        x, y = fed.test(client)
        right = [(r.model(client)(x).argmax(-1) == y).double() for r in (a, b)]
        difference = right[0] - right[1]
        expected = float(difference.std(unbiased=False)) / len(y) ** 0.5
        assert draws[i].std() == pytest.approx(expected, rel=4 / (2 * 400) ** 0.5)


def test_few_test_rows_are_never_clear() -> None:
    tiny = federation(rows=20, n_test=0.25)
    result = compare(tiny, algorithms=[ct.FedAvg(FAST)], rounds=2, seeds=1)
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
    tuned = tune(ct.FedAvg(), fed, ct.Task.default(fed))
    assert tuned.algorithm.local.lr < 0.01
    assert np.isfinite(tuned.candidates["validation"]).all()
    assert tuned.candidates["validation"].min() < 0.5 * float(fed.y.var())


def test_names_are_tuned_and_repeatable() -> None:
    small = federation(rows=40, n_test=0.5)
    one, two = (compare(small, algorithms="fedavg", rounds=2, seeds=1, metric="log_loss") for _ in range(2))
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
        ({"seeds": 0}, "at least one seed"),
        ({"rounds": 0}, "one round"),
    ],
)
def test_bad_input(options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        compare(federation(rows=12), **options)  # type: ignore[arg-type]


def test_a_client_without_a_score_is_said_to_have_none() -> None:
    """Client 'one' has a single row, so nothing to test on; the others are unaffected."""
    rng = np.random.default_rng(1)
    data = {c: (x := rng.normal(size=(n, 3)), (x[:, 0] > 0).astype(int)) for c, n in (("a", 40), ("b", 40), ("one", 1))}
    lonely = ct.Federation.from_arrays(data, one_class="allow")
    result = compare(lonely, algorithms=[ct.FedAvg(FAST)], rounds=2, seeds=2)
    assert result.who("fedavg", NO_SCORE) == ["one"]
    assert result.errors.drop(columns="one").notna().all(axis=None)
    assert np.isfinite(result.average("fedavg")[0])


def test_an_algorithm_with_its_own_rate_is_tuned_too() -> None:
    """One gradient step a round: in few rounds only the larger rate comes near the end."""
    fed = federation(rows=400, n_test=0.25).subset(list("ab"))
    tuned = tune(ct.FederatedClustering(radius=ct.Percentile(100)), fed, ct.Task.default(fed), rounds=20)
    assert tuned.algorithm.lr == max(OWN_RATES)
    assert len(tuned.candidates) == len(OWN_RATES)
