"""Runs that would give wrong numbers without a word: each is right now, or refused, or says so."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import coterie as ct
from coterie.algorithms.families import FedAvgState
from coterie.base.tree import Params, row
from coterie.exchange.channels.attacks import SignFlip
from coterie.exchange.messages import Algorithm, Ask, Cohort, Context, Exchange, MeanBy, Population, Up

SGD = ct.LocalSGD(steps=3, lr=0.3)


def contrastive(outputs: Tensor, y: Tensor) -> Tensor:
    """Supervised contrastive loss: the loss of a sample is a function of all samples of its batch."""
    z = F.normalize(outputs, dim=-1)
    self_pairs = torch.eye(len(y), dtype=z.dtype)
    near = z @ z.T / 0.5 - 1e9 * self_pairs
    same = (y[:, None] == y[None, :]).to(z.dtype) - self_pairs
    return -((near - torch.logsumexp(near, 1, keepdim=True)) * same).sum(1) / same.sum(1).clamp(min=1)


def centred(outputs: Tensor, y: Tensor) -> Tensor:
    """A loss around the mean of its batch."""
    return F.cross_entropy(outputs - outputs.mean(0), y, reduction="none")


@pytest.fixture(scope="module")
def unequal() -> ct.Federation:
    rng = np.random.default_rng(0)
    return ct.Federation.from_arrays(
        {f"c{i}": (rng.normal(size=(9 + 4 * i, 5)), np.arange(9 + 4 * i) % 3) for i in range(6)}, dtype="float64"
    )


@pytest.mark.parametrize("loss", [contrastive, centred])
@pytest.mark.parametrize("local", [SGD, ct.LocalSGD(epochs=2, lr=0.3, batch_size=8)])
def test_a_loss_that_couples_rows_meets_no_padding(unequal: ct.Federation, loss: Any, local: Any) -> None:
    task = ct.Task(ct.models.mlp(5, 8, 3), loss=loss)
    fast, loop = (ct.fit(ct.FedAvg(local), unequal, task, rounds=2, engine=e, alone=False) for e in ("local", "loop"))
    assert task.alone
    for name, weights in fast.state.model.items():
        torch.testing.assert_close(weights, loop.state.model[name], rtol=1e-10, atol=1e-12)


def test_its_steps_are_those_of_plain_torch(unequal: ct.Federation) -> None:
    task = ct.Task(lambda: nn.Linear(5, 3), loss=contrastive)
    run = ct.fit(ct.Local(SGD), unequal, task, rounds=1, alone=False, seed=3)
    for client in unequal.clients:
        model = task.module(params=task.init(3, torch.float64))
        x, y = unequal.train(client)
        for _ in range(3):
            gradients = torch.autograd.grad(contrastive(model(x), y).mean(), list(model.parameters()))
            with torch.no_grad():
                for p, g in zip(model.parameters(), gradients, strict=True):
                    p -= 0.3 * g
        torch.testing.assert_close(run.model(client)(x), model(x))


def test_a_private_run_sees_the_coupling_without_looking_at_labels(unequal: ct.Federation) -> None:
    task = ct.Task(ct.models.mlp(5, 8, 3), loss=contrastive)
    task.check(unequal, look=False)
    assert task.alone
    plain = ct.Task(ct.models.mlp(5, 8, 3), loss=lambda z, y: F.cross_entropy(z, y, reduction="none"))
    plain.check(unequal)
    assert not plain.alone


# ---- clients that never took part ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def many() -> ct.Federation:
    """60 clients of one kind, so that everybody's model is good for a newcomer."""
    rng = np.random.default_rng(0)
    true = rng.normal(size=(6, 3))
    x = rng.normal(size=(60, 40, 6))
    return ct.Federation.from_arrays({f"c{i}": (x[i], (x[i] @ true).argmax(1)) for i in range(60)})


FAST = ct.LocalSGD(steps=10, lr=0.3)


@pytest.mark.parametrize(
    "algorithm",
    [
        ct.Ditto(FAST),
        ct.AdaPeD(local=FAST),
        ct.FederatedClustering(lr=2.0),
        ct.MomentumClustering(clusters=1, lr=2.0),
        ct.MyopicClustering(clusters=1, lr=2.0),
    ],
    ids=lambda a: type(a).__name__,
)
def test_newcomers_get_the_best_model_known(algorithm: Any, many: ct.Federation) -> None:
    task = ct.Task(lambda: nn.Linear(6, 3))
    run = ct.fit(algorithm, many, task, rounds=10, cohort=6, alone=False, seed=1)
    table = run.evaluate()
    start = ct.fit(algorithm, many, task, rounds=0, alone=False, seed=1).scores()["accuracy"]
    assert 0 < table["met"].sum() < 60
    gain = (table["accuracy"] - start)[~table["met"]]
    assert gain.mean() > 4 * gain.sem()
    assert gain.mean() > 0.05
    never = int((~table["met"]).sum())
    assert f"{never} of 60 clients never took part in a round. They are scored with the model" in run.about["notes"][-1]


def test_alone_says_that_they_have_the_start(many: ct.Federation) -> None:
    run = ct.fit(ct.Local(SGD), many, rounds=2, cohort=3, alone=False)
    assert "scored with the untrained start" in run.about["notes"][-1]
    everyone = ct.fit(ct.Local(SGD), many, rounds=1, alone=False)
    assert "met" not in everyone.evaluate()
    assert "notes" not in everyone.about


def test_who_took_part_survives_a_resume(many: ct.Federation, tmp_path: Path) -> None:
    how: dict[str, Any] = {"cohort": 4, "alone": False, "seed": 5}
    whole = ct.fit(ct.Ditto(SGD), many, rounds=4, **how)
    ct.fit(ct.Ditto(SGD), many, rounds=2, out=tmp_path, **how)
    resumed = ct.fit(ct.Ditto(SGD), many, rounds=4, out=tmp_path, resume=True, **how)
    assert whole.evaluate().equals(resumed.evaluate())


def test_a_private_run_does_not_tell_whom_it_asked(many: ct.Federation) -> None:
    private = ct.Privacy(epsilon=8, delta=1e-5, clip=1.0, noise="simulation")
    run = ct.fit(ct.FedAvg(SGD), many, rounds=1, cohort=0.1, alone=False, privacy=private)
    assert "met" not in run.evaluate()
    assert not any("took part" in note for note in run.about.get("notes", ()))


# ---- settings that were not looked at -----------------------------------------------------------------------------------


def test_another_schedule_is_another_run(many: ct.Federation, tmp_path: Path) -> None:
    def run(schedule: Any, **more: Any) -> ct.Result:
        local = ct.LocalSGD(steps=2, lr=0.1, schedule=schedule)
        return ct.fit(ct.FedAvg(local), many, rounds=2, alone=False, out=tmp_path, **more)

    run(lambda r, s: 1.0)
    with pytest.raises(ct.errors.ConfigError, match="other settings or data"):
        run(lambda r, s: 0.5, resume=True)
    run(lambda r, s: 1.0, resume=True)
    run(lambda r, s: [1.0, 0.5, 0.25][r], overwrite=True)  # a list that ends


def test_complex_parameters_are_refused() -> None:
    class Complex(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(4, 3, dtype=torch.complex64))

        def forward(self, x: Tensor) -> Tensor:
            return (x.to(self.w.dtype) @ self.w).abs()

    with pytest.raises(ct.errors.TaskError, match=r"'w' is complex.*imaginary part would be lost"):
        ct.Task(Complex)


def test_own_samplers_are_checked(many: ct.Federation) -> None:
    class Own:
        def __init__(self, drawn: Any) -> None:
            self.drawn = drawn

        def sample(self, federation: ct.Federation, seed: int, round: int) -> Any:
            return self.drawn

    for bad in ([0, 0, 1], [-1], [60], [0.5, 1.0], [[0, 1]], [True, False]):
        with pytest.raises(ct.errors.ConfigError, match=r"different places of clients.*from 0 to 59; Own returned"):
            ct.fit(ct.FedAvg(SGD), many, rounds=1, alone=False, cohort=Own(np.array(bad)))
    run = ct.fit(ct.FedAvg(SGD), many, rounds=1, alone=False, cohort=Own([3, 1]))
    assert run.evaluate()["met"].sum() == 2


@dataclass(frozen=True)
class Undeclared(Algorithm):
    """FedAvg that says its model is no update."""

    local: ct.LocalSGD = field(default_factory=lambda: SGD)

    def init(self, task: ct.Task, population: Population, seed: int, start: Params) -> FedAvgState:
        return FedAvgState(start, {})

    def round(self, state: FedAvgState, cohort: Cohort) -> Exchange[FedAvgState]:
        reply = yield Ask(self.train, cohort.clients, {"model": state.model}, reduce=MeanBy(), auxiliary=("model",))
        return FedAvgState(row(reply.values["model"], 0), {})

    def train(self, ctx: Context, model: Params) -> Up:
        trained, loss = self.local.fit(ctx, model)
        return Up(send={"model": trained}, info={"loss": loss})

    def personal(self, ctx: Context, state: FedAvgState) -> Params:
        return state.model


def test_an_attack_that_finds_no_update_says_so(many: ct.Federation) -> None:
    attack = SignFlip(["c0"])
    with pytest.warns(ct.errors.CoterieWarning, match=r"SignFlip forges updates, and no answer.*changed nothing"):
        ct.fit(Undeclared(), many, rounds=1, alone=False, channels=[attack])
    ct.fit(ct.FedAvg(SGD), many, rounds=1, alone=False, channels=[attack])


def test_every_seed_has_a_folder(many: ct.Federation, tmp_path: Path) -> None:
    runs = ct.fit_seeds(ct.FedAvg(SGD), many, seeds=[3, 7], rounds=1, alone=False, out=tmp_path)
    for seed, result in zip((3, 7), runs.results, strict=True):
        assert ct.Result.load(tmp_path / f"seed-{seed}").scores().equals(result.scores())


def test_an_evaluation_makes_the_states_of_few_newcomers_at_a_time(many: ct.Federation) -> None:
    """A block of large models is as small as its bytes say, be it one client."""
    from coterie.training import evaluation

    run = ct.fit(ct.Ditto(SGD), many, rounds=1, cohort=3, alone=False)
    size = sum(t.numel() * t.element_size() for t in run.state.model.values())
    blocks = run.evaluation.blocks(run.evaluation.everyone())
    assert len(blocks) == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "_BLOCK_BYTES", 2 * size)
        assert {len(block) for block in run.evaluation.blocks(run.evaluation.everyone())} == {2}
