"""Steps that protect rows: gradients and clips as opacus has them, noise as stated, and a row moves a sum by its clip."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import coterie as ct
from coterie.learning.batched.gradients import Model
from coterie.learning.batched.protected import RowNoise, row_gradients
from coterie.learning.batched.sgd import Plan, train, train_one
from coterie.learning.batches import Walk
from coterie.learning.update_rules import Momentum
from coterie.privacy import JointSum, SimulationNoise, noise_multiplier

SIZE = 4 * 5 + 5 + 5 * 3 + 3


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def made(
    z: float, clip: float = 0.7, sampling: float = 1.0, steps: int = 1, dtype: torch.dtype = torch.float64
) -> tuple[Plan, dict[str, torch.Tensor]]:
    task = ct.Task(net, loss="cross_entropy")
    params = task.init(0, dtype)
    rows = RowNoise(JointSum("g", SIZE, clip, z, sampling=sampling), SimulationNoise(1))
    model = Model(task, tuple(params), tuple(range(len(params))))
    plan = Plan(model, Walk(steps, None, None), Momentum(0.0, False, 0.0), 1.0, rows=rows)
    return plan, params


def data(clients: int = 3, rows: int = 7) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    mask = torch.ones(clients, rows, dtype=torch.float64)
    mask[-1, 4:] = 0  # a smaller client is padded
    return 3 * torch.randn(clients, rows, 4).double(), torch.randint(0, 3, (clients, rows)), mask


def stacked(params: dict[str, torch.Tensor], clients: int) -> dict[str, torch.Tensor]:
    return {f"weight/{n}": t.expand(clients, *t.shape).clone() for n, t in params.items()}


def moved(plan: Plan, given: dict[str, torch.Tensor], out: Any) -> torch.Tensor:
    """By how much a step moved the parameters (clients, numbers)."""
    before = torch.cat([given[f"weight/{n}"].flatten(1) for n in plan.model.names], 1)
    return before - torch.cat([t.flatten(1) for t in out[: len(plan.model.names)]], 1)


def test_gradients_of_rows_and_their_clipped_sum_are_those_of_opacus() -> None:
    grad_sample = pytest.importorskip("opacus").GradSampleModule
    plan, params = made(1e-4)
    x, y, mask = data()
    given = stacked(params, 3)
    gradients, _ = row_gradients(plan, list(given.values()), x, y, torch.zeros(3, dtype=torch.int64))
    step = moved(plan, given, train(plan, x, y, mask, torch.zeros(3, dtype=torch.int64), given))
    for c, n in enumerate((7, 7, 4)):
        module = net().double()
        module.load_state_dict({name.removeprefix("module."): t for name, t in params.items()})
        module = grad_sample(module, loss_reduction="sum")
        torch.nn.functional.cross_entropy(
            module(x[c, :n].clone().requires_grad_()), y[c, :n], reduction="sum"
        ).backward()
        each = torch.cat([p.grad_sample.flatten(1) for p in module.parameters()], 1)
        assert torch.allclose(gradients[c, :n], each, atol=1e-9)
        factor = (0.7 / (each.norm(dim=1) + 1e-12)).clamp(max=1)  # opacus' clipping
        assert torch.allclose(step[c] * n, (each * factor[:, None]).sum(0), atol=2e-3)


def test_noise_for_a_budget_is_that_of_opacus() -> None:
    """Opacus' accountant by privacy loss distributions finds the ε for which the noise was made."""
    accountants = pytest.importorskip("opacus.accountants")
    z = noise_multiplier(3.0, 1e-5, 200, 0.1)
    other = accountants.PRVAccountant()
    for _ in range(200):
        other.step(noise_multiplier=z, sample_rate=0.1)
    assert other.get_epsilon(1e-5) == pytest.approx(3.0, rel=0.02)


def test_noise_has_the_stated_size_and_every_client_its_own() -> None:
    plan, params = made(50.0)
    x, y, mask = data(200, 3)
    mask[:] = 1
    given = stacked(params, 200)
    step = moved(plan, given, train(plan, x, y, mask, torch.zeros(200, dtype=torch.int64), given)).numpy() * 3
    assert abs(step.std() / (50 * 0.7) - 1) < 4 / math.sqrt(2 * step.size)
    assert abs(np.corrcoef(step[:100].ravel(), step[100:].ravel())[0, 1]) < 4 / math.sqrt(step.size / 2)


@pytest.mark.parametrize("seed", range(5))
def test_no_row_changes_the_sum_before_noise_by_more_than_the_clip(seed: int) -> None:
    """Rows are searched at random, huge and missing values among them; only that client's sum changes."""
    plan, params = made(1.0)
    assert plan.rows is not None
    mechanism, rng = plan.rows.mechanism, np.random.default_rng(seed)
    x, y, _ = data()
    given = list(stacked(params, 3).values())
    key = torch.zeros(3, dtype=torch.int64)

    def total(x: torch.Tensor, y: torch.Tensor) -> np.ndarray:
        flat, _ = row_gradients(plan, given, x, y, key)
        return np.stack([mechanism.integers(one.numpy()).sum(0) for one in flat])

    before = total(x, y)
    for scale in (0.1, 10.0, 1e6, np.inf, np.nan):
        other, label = x.clone(), y.clone()
        other[1, 2] = torch.from_numpy(rng.normal(size=4) * scale)
        label[1, 2] = int(rng.integers(3))
        change = total(other, label) - before
        assert (change[[0, 2]] == 0).all()
        assert np.linalg.norm(change[1].astype(float)) <= 2 * mechanism.lattice_sensitivity


def test_rows_are_drawn_by_their_own_coins() -> None:
    rows = RowNoise(JointSum("g", SIZE, 1.0, 1.0, sampling=0.3), SimulationNoise(3))
    mask = torch.ones(100, 100)
    mask[:, 90:] = 0
    drawn = rows.drawn(mask)
    assert not drawn[:, 90:].any()
    counts = drawn.sum(1).double()
    assert abs(float(counts.mean()) - 27) < 4 * math.sqrt(90 * 0.21 / 100)
    assert abs(float(counts.var()) / (90 * 0.21) - 1) < 4 * math.sqrt(2 / 100)


def test_one_client_and_a_chunk_take_the_same_step() -> None:
    plan, params = made(1e-5, steps=3)
    x, y, mask = data()
    given, key = stacked(params, 3), torch.zeros(3, dtype=torch.int64)
    together = train(plan, x, y, mask, key, given)
    for c in range(3):
        alone = train_one(plan, x[c], y[c], mask[c], key[c], {n: t[c] for n, t in given.items()})
        for one, many in zip(alone, together, strict=True):
            assert torch.allclose(one, many[c], atol=1e-3)


def test_a_rows_gradient_does_not_depend_on_which_other_rows_were_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32, where the last bits of a product depend on its shape: bit-equal whoever else is drawn."""
    plan, params = made(1e-4, dtype=torch.float32)
    given = stacked(params, 3)
    x, y, mask = data()
    seen: list[torch.Tensor] = []
    monkeypatch.setattr(RowNoise, "released", lambda self, g: seen.append(g.clone()) or g.sum(1).double())
    for others in (0, 1):
        drawn = torch.full(mask.shape, bool(others))
        drawn[:, 2] = True
        monkeypatch.setattr(RowNoise, "drawn", lambda self, m, drawn=drawn: drawn & (m > 0))
        train(plan, x.float(), y, mask.float(), torch.zeros(3, dtype=torch.int64), given)
    alone, among = seen
    assert alone.shape == among.shape
    assert torch.equal(alone[:, 2], among[:, 2])
    assert not alone[:, [0, 1, 3]].any()
