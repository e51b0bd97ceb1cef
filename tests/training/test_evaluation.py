"""What can be computed from a run in memory."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import coterie as ct
from coterie.tree import Tree

SGD = ct.LocalSGD(steps=3, lr=0.1, batch_size=4)


@pytest.fixture
def result(fed: ct.Federation, task: ct.Task) -> ct.Result:
    return ct.fit(ct.FineTuned(ct.Oracle(SGD)), fed, task, rounds=2, cohort=3)


def test_it_is_the_results_own(result: ct.Result, fed: ct.Federation) -> None:
    evaluation = result.evaluation
    assert isinstance(evaluation, ct.Evaluation)
    assert evaluation.federation is result.federation is fed
    assert evaluation.task is result.task
    assert evaluation.state is result.state
    pd.testing.assert_frame_equal(evaluation.scores(), result.scores())
    assert evaluation.clusters().tolist() == result.clusters.tolist()


def test_scores_handed_out_are_copies(result: ct.Result) -> None:
    before = result.scores()
    mine = result.scores()
    mine["accuracy"] = -1.0
    pd.testing.assert_frame_equal(result.scores(), before)


def test_losses_and_predictions_are_those_of_the_clients_models(result: ct.Result, fed: ct.Federation) -> None:
    evaluation = result.evaluation
    seen: dict[int, torch.Tensor] = {}

    def keep(out: Tree) -> Tree:
        for i, outputs, mask in zip(out["index"].tolist(), out["outputs"], out["mask"], strict=True):
            seen[i] = outputs[mask.bool()]
        return {"rows": out["mask"].sum(-1)}

    rows = evaluation.on_test_rows(keep)["rows"]
    assert rows.tolist() == fed.n_test.tolist()
    train, test = evaluation.train_losses(), evaluation.test_losses()
    for i, client in enumerate(fed.clients):
        model = result.model(client)
        with torch.no_grad():
            torch.testing.assert_close(model(fed.test(client)[0]), seen[i], rtol=1e-5, atol=1e-6)
            for losses, (x, y) in ((train, fed.train(client)), (test, fed.test(client))):
                expected = float(evaluation.task.sample_losses(model(x), y).mean())
                assert losses[i] == pytest.approx(expected, rel=1e-5)


def test_equal_models_are_kept_once_whatever_the_chunk(result: ct.Result, fed: ct.Federation, task: ct.Task) -> None:
    shared = ct.fit(ct.Oracle(SGD), fed, task, rounds=1).evaluation
    models, which = shared.distinct_models(chunk=5)
    assert {len(t) for t in models.values()} == {2}
    assert which.tolist() == [i % 2 for i in range(12)]
    personal = shared.personal(np.arange(12))
    assert all(torch.equal(t[which], personal[name]) for name, t in models.items())
