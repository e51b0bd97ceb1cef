"""Whole federations of the large networks: they learn, on both engines, and a resumed run ends bit-identically."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import coterie as ct


def tokens(rows: int = 40, clients: int = 4, per_token: bool = False) -> ct.Federation:
    """Class 1 where the token 1 is there; or for every token its own class."""
    rng = np.random.default_rng(0)
    data = {}
    for i in range(clients):
        x = rng.integers(0, 8, (rows + 5 * i, 10))
        data[f"c{i}"] = (x, x if per_token else (x == 1).any(1).astype(int))
    return ct.Federation.from_arrays(data, dtype="int64", classes=range(8) if per_token else None)


def pictures(rows: int = 40, clients: int = 4) -> ct.Federation:
    """Where the bright square is."""
    rng = np.random.default_rng(0)
    data = {}
    for i in range(clients):
        y = rng.integers(0, 2, rows + 5 * i)
        x = rng.normal(size=(len(y), 1, 12, 12)) * (1 + i)
        x[y == 0, :, :6] += 3
        x[y == 1, :, 6:] += 3
        data[f"c{i}"] = (x, y)
    return ct.Federation.from_arrays(data)


FEDERATIONS: dict[str, Any] = {
    "resnet8 group": (ct.models.resnet8(2, 1, drop=0.2), pictures, ct.FedAvg, 0.05, 8),
    "resnet8 batch": (ct.models.resnet8(2, 1, norm="batch"), pictures, ct.FedAvg, 0.05, 8),
    "resnet8 FedBN": (ct.models.resnet8(2, 1, norm="batch"), pictures, ct.FedBN, 0.05, 8),
    "resnet8 small": (ct.models.resnet8(2, 1, norm="batch"), lambda: pictures(10, 2), ct.FedBN, 0.05, 8),
    "resnet18 group": (ct.models.resnet18(2, 1), lambda: pictures(12, 2), ct.FedAvg, 0.0002, 3),
    "resnet18 batch": (ct.models.resnet18(2, 1, norm="batch"), lambda: pictures(12, 2), ct.FedAvg, 0.0002, 3),
    "lstm": (ct.models.lstm(8, 2, 8, 32, 2, dropout=0.1), tokens, ct.FedAvg, 0.02, 20),
    "transformer": (ct.models.transformer(8, 2, 10, 16, 2, 1), tokens, ct.FedAvg, 0.03, 30),
    "transformer, tied, per token": (
        ct.models.transformer(8, 8, 10, 16, 2, 1, per_token=True), lambda: tokens(per_token=True), ct.FedAvg, 0.03, 20,
    ),
}  # fmt: skip


# Rounding grows with every layer and round, and with a ReLU's corner it becomes other weights. Long runs are compared in
# double precision. Eighteen layers are too slow for that: they are compared on small steps and judged on larger ones.
LARGER_STEPS = {name: (lambda: pictures(24, 2), 0.002, 5) for name in FEDERATIONS if "18" in name}


def train(name: str, rounds: int, larger: bool = False, exact: bool = False, **options: Any) -> ct.Result:
    model, data, kind, lr, _ = FEDERATIONS[name]
    if larger:
        data, lr, _ = LARGER_STEPS[name]
    local = ct.LocalAdam(epochs=1, lr=lr, batch_size=8 if larger else 16, clip=5.0, eps=1e-3)
    task, fed = ct.Task(model, metric=("log_loss", "accuracy")), data()
    if exact:
        options["start"] = task.init(1, torch.float64)
        fed = replace(fed, x=fed.x.double()) if fed.x.is_floating_point() else fed
    return ct.fit(kind(local), fed, task, rounds=rounds, alone=False, seed=1, **options)


def personal(result: ct.Result) -> dict[str, torch.Tensor]:
    return result.evaluation.personal(result.evaluation.everyone())


def check(name: str, rounds: int, tmp_path: Path, exact: bool = False) -> ct.Result:
    how: dict[str, Any] = {"exact": exact, "engine": ct.engines.LocalEngine(workers=2)}
    fast = train(name, rounds, **how)
    one, two = personal(fast), personal(train(name, rounds, **how | {"engine": "loop"}))
    close = {"rtol": 1e-8, "atol": 1e-8} if exact else {"rtol": 2e-3, "atol": 2e-4}
    for key in one:
        torch.testing.assert_close(one[key], two[key], **close)
    train(name, rounds // 2, out=tmp_path, **how)
    again = personal(train(name, rounds, out=tmp_path, resume=True, **how))
    assert all(torch.equal(one[key], again[key]) for key in one)
    return fast


@pytest.mark.parametrize("name", ["resnet8 small", "lstm", "transformer, tied, per token"])
def test_two_rounds_are_equal_on_both_engines_and_after_a_resume(name: str, tmp_path: Path) -> None:
    check(name, 2, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", FEDERATIONS)
def test_it_learns_on_both_engines_and_can_be_resumed(name: str, tmp_path: Path) -> None:
    rounds = FEDERATIONS[name][-1]
    larger = name in LARGER_STEPS
    result = check(name, rounds, tmp_path, exact=not larger)
    if larger:
        result = train(name, LARGER_STEPS[name][-1], larger)
    losses = result.history["loss"]
    assert losses.iloc[-1] < 0.8 * losses.iloc[0]
    assert result.scores()["log_loss"].mean() < 0.8 * train(name, 0, larger).scores()["log_loss"].mean()
