"""The decision from sums that clients tell: what they tell, what the server makes of it, and who is left out."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import coterie as ct
from coterie.base.tree import n_bytes
from coterie.cli.commands import main
from coterie.comparison.sites.conduct import Found, conduct
from coterie.comparison.sites.quadratic import PENALTIES, Sums, Units, chosen_ridge
from coterie.comparison.sites.result import across_sites, all_rows, study_of
from coterie.comparison.sites.study import Study
from coterie.comparison.trained_scores import OfRows, OfSums, told_here, ways_of
from coterie.engines import LocalEngine, LoopEngine
from coterie.engines.base import answered, rows_env
from coterie.errors import ConfigError, DataError
from coterie.evidence.rule import decide_scores
from coterie.exchange.messages import Ask, Reply
from coterie.training.coalition import audit as rows_audit


def numbers(m: int = 8, rows: int = 40, columns: int = 4, seed: int = 0, **sizes: int) -> ct.Federation:
    """Clients whose slopes differ a little."""
    rng = np.random.default_rng(seed)
    slope, data = rng.normal(size=columns), {}
    for i in range(m):
        n = sizes.get(f"c{i}", rows + i)
        x = rng.normal(size=(n, columns)) + 0.3 * i
        data[f"c{i}"] = (x, x @ (slope + 0.3 * rng.normal(size=columns)) + rng.normal(size=n))
    return ct.Federation.from_arrays(data, kind="regression")


def classes(m: int = 6, rows: int = 60, seed: int = 0) -> ct.Federation:
    rng = np.random.default_rng(seed)
    slope, data = rng.normal(size=3), {}
    for i in range(m):
        x = rng.normal(size=(rows + i, 3))
        eta = x @ (2 * slope * (1 if i % 2 else -1))
        data[f"c{i}"] = (x, (rng.random(len(x)) < 1 / (1 + np.exp(-eta))).astype(int))
    return ct.Federation.from_arrays(data, kind="classification")


@dataclass
class Recorded:
    """An engine that keeps every question and answer; `lose` says which clients do not answer a question."""

    lose: Callable[[int, Ask], list[int]] = lambda number, ask: []
    asked: list[tuple[Ask, Reply]] = field(default_factory=list)
    engine: Any = field(default_factory=lambda: LocalEngine(workers=1))

    def run(self, ask: Ask, env: Any) -> Reply:
        keep = ~np.isin(ask.clients, self.lose(len(self.asked), ask))
        reply = self.engine.run(ask.only(keep), env)
        reply = replace(reply, lost=ask.clients[~keep])
        self.asked.append((ask, reply))
        return reply


def sent(recorded: Recorded) -> float:
    """Megabytes that a client sends."""
    return sum(n_bytes(reply.values) / len(reply.clients) for _, reply in recorded.asked) / 1e6


TOLD = {
    "counts": {"count", "sums"},
    "moments": {"moments"},
    "forms": {"value", "slope", "curve", "slopes", "curves"},
    "scores": {"known", "mean", "products", "folds"},
}


@pytest.mark.parametrize("made", [numbers, classes])
def test_clients_tell_the_documented_sums_and_nothing_else(made: Callable[[], ct.Federation]) -> None:
    """No message of a client has a size that grows with its rows."""
    engine, more = Recorded(), Recorded()
    across_sites(made(), [0], None, None, engine)
    across_sites(made(rows=120), [0], None, None, more)  # type: ignore[call-arg]
    assert len(engine.asked) <= (30 if made is classes else 6)
    for ask, reply in engine.asked:
        assert {name.split()[-1] for name in reply.values} == TOLD[ask.name]
        assert not reply.info
    for name in ("counts", "moments", "scores"):
        sizes = [[n_bytes(r.values) for a, r in e.asked if a.name == name] for e in (engine, more)]
        assert sizes[0] == sizes[1]


def test_engines_agree_and_messages_are_few_on_the_heart_data() -> None:
    heart = ct.datasets.heart()
    engine = Recorded()
    one = across_sites(heart, [0], None, None, engine)
    assert len(engine.asked) <= 30
    assert sent(engine) < 5
    two = across_sites(heart, [0], None, None, LoopEngine())
    np.testing.assert_allclose(one.table, two.table, rtol=1e-9)
    assert one.recommendation == "alone"
    assert one.verdict().count("fewer folds") == 1
    assert 0.35 < one.table.mean(axis=1).min() < one.table.mean(axis=1).max() < 0.42  # rows pooled: 0.374 to 0.384


def rows_and_folds(fed: ct.Federation, i: int, study: Study, found: Found) -> tuple[Any, Any, Any]:
    """A client's rows, and their fold in every repeat."""
    env = rows_env(fed, study.seed)
    shape = (found.shape.repeats, found.shape.folds)
    dealt = LoopEngine().map(
        lambda ctx: {"fold": torch.from_numpy(study._folds(ctx, *shape))}, np.array([i]), env, test=False
    )
    x, y = fed.train(fed.clients[i])
    return x.double().numpy(), y.double().numpy(), dealt["fold"][0].numpy()


@pytest.mark.parametrize("made", [numbers, classes])
def test_scores_are_of_rows_that_the_models_did_not_see(made: Callable[[], ct.Federation]) -> None:
    """Every loss computed again from rows, folds and the models that were sent out."""
    fed = all_rows(made())
    engine, study = Recorded(), study_of(fed, None, 0, None)
    found = answered(conduct(study, len(fed), 2), engine.run, rows_env(fed, 0))
    ask, reply = engine.asked[-1]
    centre = found.shape.centre
    for i in (0, 5):
        x, y, fold = rows_and_folds(fed, i, study, found)
        Z = np.column_stack([np.ones(len(y)), x - centre[:-1]])
        for r, (j, name) in itertools.product(range(2), ((3, "shrunk"), (4, "groups"))):
            coef = ask.each[name][i].numpy()[r * found.shape.folds + fold[r]]
            eta = np.einsum("np,np->n", Z, coef)
            if not study.classification:
                loss, told = (y - eta - centre[-1]) ** 2, reply.values["mse mean"]
            elif name == "groups":
                loss, told = np.logaddexp(0, eta) - y * eta, reply.values["log_loss mean"]
            else:
                continue
            np.testing.assert_allclose(told[i, r + 1, j], loss.mean(), rtol=1e-7)


def test_folds_and_models_alone_do_not_depend_on_other_clients() -> None:
    fed = numbers()
    some = fed.subset([c for c in fed.clients if c != "c3"])
    whole, less = (across_sites(f, [0, 1], None, None, LocalEngine()) for f in (fed, some))
    np.testing.assert_allclose(whole.table.loc["alone"].drop("c3"), less.table.loc["alone"], rtol=1e-9)


@pytest.mark.parametrize("made", [numbers, classes])
@pytest.mark.parametrize("at", ["counts", "moments", "forms", "scores"])
def test_a_client_that_does_not_answer_is_named_and_left_out(made: Callable[[], ct.Federation], at: str) -> None:
    if made is numbers and at == "forms":
        return
    fed = made()
    engine = Recorded(lambda number, ask: [1] if ask.name == at else [])
    seen = across_sites(fed, [0], None, None, engine)
    without = across_sites(fed.subset([c for c in fed.clients if c != "c1"]), [0], None, None, LocalEngine())
    assert "c1" not in seen.table.columns
    np.testing.assert_allclose(seen.table, without.table, rtol=1e-9)
    assert "Left out because they did not answer: c1." in seen.warnings


def test_fewer_than_two_clients_end_with_a_sentence() -> None:
    engine = Recorded(lambda number, ask: list(range(1, 8)) if ask.name == "scores" else [])
    with pytest.raises(DataError, match=r"needs 2 clients with 6 rows or more; 1 can take part\. 7 did not answer"):
        across_sites(numbers(), [0], None, None, engine)


def test_small_clients_tell_nothing_or_have_fewer_folds() -> None:
    """Five rows are too few for four columns; eleven make one sum, which trains; twelve make two folds."""
    fed = all_rows(numbers(c1=5, c2=11, c3=12))
    engine, study = Recorded(), study_of(fed, None, 0, None)
    found = answered(conduct(study, len(fed), 1), engine.run, rows_env(fed, 0))
    assert found.few.tolist() == [1]
    told = engine.asked[0][1].values
    assert not told["sums"][1].any()
    assert not told["count"][1]
    cells = dict(zip(found.clients.tolist(), found.cells.tolist(), strict=True))
    assert (cells[2], cells[3], cells[0]) == (1, 2, 6)
    moments = engine.asked[1][1].values["moments"][:, 0, :, 0]  # the numbers of rows
    assert moments[moments > 0].min() >= study.fewest(4)
    seen = across_sites(fed, [0], None, None, LocalEngine())
    assert seen.marks.loc["shrunk", "c2"] == "no score"
    assert any("fewer than 6 rows, of which no sums are told: c1." in w for w in seen.warnings)


def test_a_ridge_from_sums_is_that_from_rows() -> None:
    """The error of each penalty on each fold, fitted from rows."""
    rng = np.random.default_rng(3)
    x, fold = rng.normal(size=(60, 3)) * [1, 5, 0.1] + 2, np.arange(60) % 4
    y = x @ [1.0, 0.1, 0.0] + rng.normal(size=60) * 2
    V = np.column_stack([np.ones(60), x, y])
    moments = np.stack([V[fold == k].T @ V[fold == k] for k in range(4)])[None]
    units = Units.of(moments.sum((0, 1)), True)
    sums = Sums.of(moments, units)
    W = V @ units.L.T

    def ridge(keep: Any, penalty: float) -> Any:
        Z, t = W[keep, :-1], W[keep, -1]
        spread = ((Z - Z.mean(0)) ** 2).sum(0)
        return np.linalg.solve(Z.T @ Z + penalty * np.diag(spread), Z.T @ t)

    errors = [
        sum(((W[fold == k, -1] - W[fold == k, :-1] @ ridge(fold != k, p)) ** 2).sum() for k in range(4))
        for p in PENALTIES
    ]
    best = ridge(fold >= 0, PENALTIES[int(np.argmin(errors))])
    np.testing.assert_allclose(chosen_ridge(sums)[0], best, rtol=1e-6, atol=1e-8)
    outside = units.outside(best)
    np.testing.assert_allclose(V[:, :-1] @ outside, (W[:, :-1] @ best) * y.std() + y.mean(), rtol=1e-9)


def test_groups_are_found_and_told_apart() -> None:
    seen = across_sites(classes(m=12, rows=80), [0], None, None, LocalEngine())
    assert seen.groups is not None
    assert seen.groups.tolist() == [seen.groups.iloc[0], seen.groups.iloc[1]] * 6
    assert set(seen.distinguish()["column"]) == {"x0", "x1", "x2"}


@pytest.mark.parametrize("metric", ["accuracy", "auc"])
def test_other_metrics(metric: str) -> None:
    seen, pooled = (
        ct.compare(classes(m=4), seeds=1, metric=metric, across=a, family="linear")  # type: ignore[arg-type]
        for a in ("sites", "rows")
    )
    assert seen.metric == metric
    np.testing.assert_allclose(seen.table, pooled.table, atol=0.1)
    assert abs(seen.constant - pooled.constant) < 0.02


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"across": "sites", "family": "trees"}, "Across sites, linear models"),
        ({"least": 3}, "needs across='sites'"),
        ({"across": "site"}, "across must be"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        ct.compare(numbers(), **options)


def test_three_classes_are_refused() -> None:
    data = {c: (np.zeros((20, 2)), np.arange(20) % 3) for c in "ab"}
    with pytest.raises(DataError, match="a number or two classes"):
        ct.compare(ct.Federation.from_arrays(data, kind="classification"), across="sites")


def test_the_command_gives_a_page_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(200, 3)), columns=list("abc"))
    table["who"] = np.repeat(list("pqrs"), 50)
    table["y"] = table["a"] + rng.normal(size=200)
    table.to_csv(tmp_path / "t.csv", index=False)
    options = ["--client", "who", "--target", "y", "--folds-by-client", "--json", "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit) as end:
        main(["compare", str(tmp_path / "t.csv"), *options])
    assert end.value.code == 0
    told = json.loads(capsys.readouterr().out)
    assert told["about"]["across"] == "sites"
    assert told["deploy"] is None
    assert (tmp_path / "out" / "report.html").exists()


@pytest.mark.parametrize("made", [numbers, classes])
def test_evidence_on_algorithms_from_sums_is_that_from_rows(made: Callable[[], ct.Federation]) -> None:
    """Two splits, of which test rows are shared: the intervals, marks, verdict and audit of rows that are at hand."""
    seen = ct.compare(made(), across="sites", algorithms=["fedavg", "ditto"], rounds=2, seeds=2)
    runs = seen.results
    n_test = [r.federation.n_test / r.federation.n_samples for r in runs["local"]]
    rows, sums = OfRows(runs, float(np.mean(n_test))), OfSums(told_here(runs), ways_of(runs), float(np.mean(n_test)))
    sizes = np.stack([r.federation.n_test for r in runs["local"]])
    for name in ("fedavg", "ditto"):
        score, alone = (np.stack([r.scores()[seen.metric] for r in runs[m]]) for m in (name, "local"))
        each = runs["local"][0].task.sign * (score - alone)
        one, other = (found.gains(name, each, sizes, seen.metric) for found in (rows, sums))
        np.testing.assert_allclose(one.error, other.error, rtol=1e-9)
        np.testing.assert_allclose(one.mean, other.mean, rtol=1e-9)
    for one, other in zip(rows.scores(), sums.scores(), strict=True):
        if one is not None and other is not None:
            np.testing.assert_allclose(one.losses(), other.losses(), rtol=1e-9)
            first, second = decide_scores(one), decide_scores(other)
            assert (first.recommendation, first.sure, first.method) == (
                second.recommendation,
                second.sure,
                second.method,
            )
            for name in first.over_alone:
                np.testing.assert_allclose(first.bounds(name), second.bounds(name), rtol=1e-8)
    audit = seen.participation()
    assert audit is not None
    np.testing.assert_allclose(audit.table["low"], rows_audit(runs[str(seen.best)]).table["low"], rtol=1e-8)
    assert seen.coalition() is None
