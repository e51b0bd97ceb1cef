"""Local, FedAvg, FineTuned and Oracle against their definitions, computed plainly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import coterie as ct
from coterie.base.tree import Params, tree_map

SGD = ct.LocalSGD(steps=2, lr=0.2, batch_size=None)


def steps(task: ct.Task, fed: ct.Federation, client: str, model: Params, count: int = 2) -> Params:
    """Full-batch gradient descent on one client's training rows."""
    x, y = fed.train(client)
    for _ in range(count):
        gradient = torch.func.grad(lambda m: task.sample_losses(task.outputs(m, x), y).mean())(model)
        model = tree_map(lambda p, g: p - 0.2 * g, model, gradient)
    return model


def mean(models: list[Params], weights: np.ndarray) -> Params:
    share = weights / weights.sum()
    return {k: sum(float(w) * m[k] for w, m in zip(share, models, strict=True)) for k in models[0]}  # type: ignore[misc]


def close(a: Params, b: Params) -> None:
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-9, atol=1e-9)


def test_fedavg_is_the_sample_weighted_mean_with_a_server_step(fed64: ct.Federation, task: ct.Task) -> None:
    model = task.init(5, torch.float64)
    velocity = tree_map(torch.zeros_like, model)
    for _ in range(3):
        average = mean([steps(task, fed64, c, model) for c in fed64.clients], fed64.n_train)
        velocity = tree_map(lambda v, new, old: 0.6 * v + (new - old), velocity, average, model)
        model = tree_map(lambda m, v: m + 0.7 * v, model, velocity)
    result = ct.fit(ct.FedAvg(SGD, server_lr=0.7, server_momentum=0.6), fed64, task, rounds=3, seed=5)
    close(result.state.model, model)
    plain = ct.fit(ct.FedAvg(SGD), fed64, task, rounds=1, seed=5).state.model
    start = task.init(5, torch.float64)
    close(plain, mean([steps(task, fed64, c, start) for c in fed64.clients], fed64.n_train))


def test_local_trains_each_client_on_its_own_rows_when_it_is_sampled(fed64: ct.Federation, task: ct.Task) -> None:
    result = ct.fit(ct.Local(SGD), fed64, task, rounds=4, cohort=5, seed=1)
    times = np.bincount(
        np.concatenate([ct.training.FixedSize(5).sample(fed64, 1, r) for r in range(4)]), minlength=len(fed64)
    )
    assert times.min() == 0
    live = result.evaluation
    models = live.personal(live.everyone())
    for i, client in enumerate(fed64.clients):
        expected = steps(task, fed64, client, task.init(1, torch.float64), 2 * int(times[i]))
        close(tree_map(lambda t, i=i: t[i], models), expected)


def test_oracle_is_fedavg_inside_every_true_cluster(fed64: ct.Federation, task: ct.Task) -> None:
    result = ct.fit(ct.Oracle(SGD), fed64, task, rounds=2)
    for cluster in (0, 1):
        inside = fed64.subset([c for i, c in enumerate(fed64.clients) if i % 2 == cluster])
        alone = ct.fit(ct.FedAvg(SGD), inside, task, rounds=2)
        close(tree_map(lambda t, c=cluster: t[c], result.state.models), alone.state.model)
    plain = ct.Federation.from_arrays({"a": (np.eye(4), [0, 1, 2, 0])})
    with pytest.raises(ct.errors.ConfigError, match="Oracle needs the true clusters"):
        ct.fit(ct.Oracle(SGD), plain, task, rounds=1)


def test_fine_tuning_starts_from_the_bases_model(fed64: ct.Federation, task: ct.Task) -> None:
    base = ct.fit(ct.FedAvg(SGD), fed64, task, rounds=2)
    tuned = ct.fit(
        ct.FineTuned(base=ct.FedAvg(SGD), tune=ct.LocalSGD(steps=3, lr=0.2, batch_size=None)), fed64, task, rounds=2
    )
    close(tuned.state.model, base.state.model)
    for client in ("c0", "c7"):
        expected = steps(task, fed64, client, base.state.model, 3)
        close(dict(tuned.model(client).named_parameters()), expected)
    assert ct.FineTuned(base=ct.Oracle(SGD)).local == SGD
    clusters = ct.fit(ct.FineTuned(base=ct.Oracle(SGD)), fed64, task, rounds=1).clusters
    assert clusters.tolist() == fed64.clusters.tolist()  # type: ignore[union-attr]


def test_who_learns_with_its_like_learns_better(make_fed: Any, task: ct.Task) -> None:
    """Two clusters that disagree: the oracle beats one model for all, and fine-tuning repairs some of that."""
    fed = make_fed(sizes=(120, 60, 90, 150, 100, 80))
    sgd = ct.LocalSGD(steps=5, lr=0.3)
    scores = {
        name: ct.fit(a, fed, task, rounds=20, alone=False).evaluate()["log_loss"].mean()
        for name, a in (
            ("all", ct.FedAvg(sgd)),
            ("oracle", ct.Oracle(sgd)),
            ("tuned", ct.FineTuned(base=ct.FedAvg(sgd))),
        )
    }
    assert scores["oracle"] < scores["tuned"] < scores["all"]
