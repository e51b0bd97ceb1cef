"""The decision from sums over all clients alone: the numbers of a study that sees every client's sums."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import coterie as ct
from coterie.comparison.sites.conduct import conduct
from coterie.comparison.sites.result import all_rows
from coterie.comparison.sites.study import Study
from coterie.comparison.sites.summed import Summed, SummedStudy, conduct_summed
from coterie.data.federation import Federation
from coterie.engines import LocalEngine
from coterie.engines.base import answered, rows_env
from coterie.errors import DataError
from coterie.evidence.mean_gains import gain
from coterie.evidence.rule import decide_scores
from coterie.evidence.scores import ClientScores
from coterie.evidence.summed import METHODS
from coterie.exchange.messages import SumBy


def world(kind: str, clients: int = 12, size: float = 1.0, seed: int = 3) -> Federation:
    rng, data = np.random.default_rng(seed), {}
    for i in range(clients):
        n = 18 + 4 * i
        x = rng.normal(size=(n, 3)) * [size, 1, 1 / size] + [5 * size, 0, 0]
        y = x @ [1 / size, 0.5, 0.2 * (i % 3) * size] + rng.normal(size=n)
        data[f"c{i:02d}"] = (x, size * y if kind == "regression" else (y > y.mean()).astype(int))
    return all_rows(ct.Federation.from_arrays(data, kind=kind, dtype="float64", test_fraction=0.0))


def summed(fed: Federation, study: SummedStudy, repeats: int = 2, engine: Any = None) -> Summed:
    run = (engine or LocalEngine()).run
    return answered(conduct_summed(study, len(fed), repeats), run, rows_env(fed, study.seed))


def studies(kind: str, metric: str) -> tuple[Study, SummedStudy]:
    how: Any = (kind == "classification", metric, 0, None)
    return Study(*how), SummedStudy(*how)


def only_three(scores: ClientScores, scale: float) -> ClientScores:
    """Constant, alone and together, in the units of sums."""
    take = np.arange(3)
    return replace(
        scores, methods=METHODS, ways=METHODS, rows=scores.rows[:, :3], told=scale * scores.told[:, take],
        products=scale**2 * scores.products[:, take][:, :, take], folds_told=scale * scores.folds_told[:, :, take],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "metric", "clients", "size"),
    [
        ("regression", "mse", 12, 1.0), ("regression", "mse", 12, 1e5), ("regression", "r2", 5, 1.0),
        ("classification", "log_loss", 12, 1.0), ("classification", "accuracy", 6, 1e-4),
    ],
)  # fmt: skip
def test_sums_give_what_all_clients_sums_give(kind: str, metric: str, clients: int, size: float) -> None:
    fed, (plain, study) = world(kind, clients, size), studies(kind, metric)
    found = summed(fed, study)
    each = answered(conduct(plain, len(fed), 2), LocalEngine().run, rows_env(fed, 0))
    scale = found.variance if metric == "mse" else 1.0
    scores = only_three(each.scores[metric], scale)
    proper = only_three(each.scores["log_loss"], 1.0) if metric == "accuracy" else None
    wanted = decide_scores(scores, 0.05, 0, proper)
    assert (found.verdict.recommendation, found.verdict.sure) == (wanted.recommendation, wanted.sure)
    assert found.verdict.learnable == wanted.learnable
    assert found.clients == clients
    assert found.rows == fed.n_samples.sum()
    for name, loss in wanted.losses.items():
        assert found.verdict.losses[name] == pytest.approx(loss, rel=1e-6)
    mine, theirs = found.verdict.over_alone["together"], gain(scores, 2, 1)
    for name in ("m", "mean", "se_clients", "se_rows", "row_mean", "row_error", "fold_se", "fold_df"):
        assert getattr(mine, name) == pytest.approx(getattr(theirs, name), rel=1e-6, abs=1e-12), name
    if clients >= 10:
        assert mine.weighted == pytest.approx(theirs.weighted, rel=1e-6)
        assert mine.weighted_se == pytest.approx(theirs.weighted_se, rel=1e-6)
    assert found.verdict.share == pytest.approx(wanted.share, rel=1e-6)
    assert abs(found.verdict.needed - wanted.needed) < 0.3 * wanted.needed  # other random signs


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "metric"), [("regression", "mse"), ("classification", "log_loss")])
@pytest.mark.parametrize(("truth", "answer"), [("noise", "alone"), ("same", "together"), ("own", "alone")])
def test_the_answer_is_right_in_worlds_whose_truth_is_known(kind: str, metric: str, truth: str, answer: str) -> None:
    """Twenty worlds; of five per cent wrong answers four are within four standard errors."""
    wrong = 0
    for seed in range(20):
        rng, data = np.random.default_rng(seed), {}
        for i in range(12):
            n = int(rng.integers(25, 46))
            x = rng.normal(size=(n, 4))
            beta = {"noise": np.zeros(4), "same": np.array([1.0, 0.5, -0.5, 0]), "own": rng.normal(size=4)}[truth]
            y = x @ beta + rng.normal(size=n)
            data[f"c{i:02d}"] = (x, y if kind == "regression" else (y > 0).astype(int))
        fed = all_rows(ct.Federation.from_arrays(data, kind=kind, dtype="float64", test_fraction=0.0))
        verdict = summed(fed, replace(studies(kind, metric)[1], seed=seed), 3).verdict
        wrong += verdict.recommendation != answer or (truth == "noise") != (verdict.shown == "nothing")
    assert wrong <= 1 + 4 * np.sqrt(20 * 0.05 * 0.95)


def test_every_question_is_for_a_sum() -> None:
    fed, (_, study) = world("classification", 12), studies("classification", "log_loss")
    asked = []

    class Watched(LocalEngine):
        def run(self, ask: Any, env: Any) -> Any:
            asked.append(ask)
            return super().run(ask, env)

    summed(fed, study, engine=Watched())
    assert {ask.reduce for ask in asked} == {SumBy(1)}
    assert not any(ask.each for ask in asked)
    assert asked[0].name == "sizes"
    assert asked[-1].name == "weights"


def test_a_client_with_few_rows_tells_nothing_and_one_client_is_no_study() -> None:
    fed, (_, study) = world("regression", 4), studies("regression", "mse")
    assert summed(fed, replace(study, least=13)).clients == 2
    with pytest.raises(DataError, match="needs 2 clients with 28 rows"):
        summed(fed, replace(study, least=28))
