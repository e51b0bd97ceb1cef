"""What can be computed from a run in memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import coterie as ct
from coterie.base.tree import Tree

SGD = ct.LocalSGD(steps=3, lr=0.1, batch_size=4)


@pytest.fixture
def result(fed: ct.Federation, task: ct.Task) -> ct.Result:
    return ct.fit(ct.FineTuned(base=ct.Oracle(SGD)), fed, task, rounds=2, cohort=3)


def test_it_is_the_results_own(result: ct.Result, fed: ct.Federation) -> None:
    evaluation = result.evaluation
    assert isinstance(evaluation, ct.training.Evaluation)
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


def test_equal_models_are_kept_once_whatever_the_block(fed: ct.Federation, task: ct.Task) -> None:
    shared = replace(ct.fit(ct.Oracle(SGD), fed, task, rounds=1).evaluation, most=5)
    models, which = shared.distinct_models()
    assert {len(t) for t in models.values()} == {2}
    assert which.tolist() == [i % 2 for i in range(12)]
    personal = shared.personal(np.arange(12))
    assert all(torch.equal(t[which], personal[name]) for name, t in models.items())


def test_blocks_of_clients_give_what_all_at_once_give(fed: ct.Federation, task: ct.Task) -> None:
    whole = ct.fit(ct.Ditto(local=SGD), fed, task, rounds=2, cohort=3).evaluation
    blocks = replace(whole, most=5)
    assert [len(b) for b in blocks.blocks(blocks.everyone())] == [5, 5, 2]
    pd.testing.assert_frame_equal(whole.scores(), blocks.scores(), rtol=1e-6)
    np.testing.assert_allclose(whole.test_losses(), blocks.test_losses(), rtol=1e-6)
    np.testing.assert_array_equal(whole.clusters(), blocks.clusters())
    for (_, one), (_, two) in zip(
        whole.personal(np.arange(12)).items(), blocks.personal(np.arange(12)).items(), strict=True
    ):
        torch.testing.assert_close(one, two)


def test_only_clients_met_have_a_state_after_an_evaluation(fed: ct.Federation, task: ct.Task) -> None:
    """Looking at clients that never took part makes their starting states and lets them go."""
    result = ct.fit(ct.Ditto(local=SGD), fed, task, rounds=1, cohort=3, evaluate_every=1)
    states = result.evaluation.env.states
    for look in (result.evaluation.scores, result.evaluation.train_losses, result.evaluation.distinct_models):
        look()
        assert states.used == 3
        assert (states.row >= 0).sum() == 3


def test_a_sample_of_clients_has_the_means_and_their_errors(fed: ct.Federation, task: ct.Task) -> None:
    result = ct.fit(ct.FedAvg(SGD), fed, task, rounds=2, evaluate_every=2, evaluate_clients=5)
    part, all_of_them = result.scores(sample=5), result.scores()
    pd.testing.assert_frame_equal(part, all_of_them.loc[part.index], rtol=1e-6)
    last = result.history.iloc[-1]
    error = part["accuracy"].sem() * np.sqrt(1 - 5 / 12)
    assert last["test_accuracy"] == pytest.approx(part["accuracy"].mean())
    assert last["test_accuracy_error"] == pytest.approx(error) == part.attrs["error"]["accuracy"]
    assert result.scores(sample=100).attrs["error"]["accuracy"] == 0.0
    with pytest.raises(ct.errors.ConfigError, match="evaluate_clients must be a whole number"):
        ct.fit(ct.FedAvg(SGD), fed, task, rounds=1, evaluate_every=1, evaluate_clients=0)
