"""Tasks: what does not fit is said before training starts."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import coterie as ct
from coterie.learning import models


def linear(n_in: int = 4, n_out: int = 3) -> Any:
    return lambda: nn.Linear(n_in, n_out)


# ---- refused -----------------------------------------------------------------------------------------------------------


def test_batch_norm_over_all_batches_ever_met_is_refused() -> None:
    with pytest.raises(
        ct.errors.TaskError, match=r"BatchNorm1d at '1' averages over all batches.*momentum such as 0\.1"
    ):
        ct.Task(lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=None), nn.Linear(4, 3)))


class Hidden(nn.Module):
    """A draw that cannot be replaced: the library makes it inside."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(nn.functional.rrelu(x, training=True))
        return out


def test_a_forward_pass_that_draws_from_the_global_generator_is_refused(fed: ct.Federation) -> None:
    before = torch.get_rng_state()
    with pytest.raises(ct.errors.TaskError, match="global random generator"):
        ct.fit(ct.Local(), fed, ct.Task(Hidden), rounds=1)
    assert torch.equal(before, torch.get_rng_state())


class Pair(nn.Module):
    """Returns what is asked for, and something else."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer, self.kind = nn.Linear(4, 3), kind

    def forward(self, x: Tensor) -> Any:
        out = self.layer(x)
        return (out, x) if self.kind == "tuple" else {"logits": out}


@pytest.mark.parametrize("kind", ["tuple", "dict"])
def test_several_outputs_are_refused_in_one_sentence(fed: ct.Federation, kind: str) -> None:
    with pytest.raises(ct.errors.TaskError, match=f"must return one tensor; this one returns a {kind}"):
        ct.fit(ct.Local(), fed, ct.Task(lambda: Pair(kind)), rounds=1)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"model": linear(), "loss": "hinge"}, r"loss must be one of \['bce', 'cross_entropy', 'mse'\].*'hinge'"),
        ({"model": linear(), "metric": "f2"}, r"no metric 'f2'. Known: accuracy, .*f1"),
        ({"model": linear(), "metric": ()}, "at least one metric"),
        ({"model": nn.Linear(2, 2)}, "function that makes a fresh .* got a Linear"),
        ({"model": 3}, "function that makes a fresh nn.Module"),
        ({"model": lambda: 3}, "must return an nn.Module; got int"),
    ],
)
def test_bad_tasks_are_refused(task: dict[str, Any], message: str) -> None:
    with pytest.raises(ct.errors.TaskError, match=message):
        ct.Task(**task)


@pytest.mark.parametrize(
    ("data", "task", "message"),
    [
        ("fed", {"model": linear(5)}, r"cannot take this federation's samples of shape \(4,\)"),
        ("fed", {"model": linear(4, 2)}, "2 outputs for 3 classes"),
        ("fed", {"model": linear(4, 3), "loss": "mse"}, "mse needs a model with one output; this one has 3"),
        ("fed", {"model": linear(4, 1), "loss": "bce"}, "bce needs two classes; this federation has 3"),
        ("fed", {"model": linear(4, 3), "metric": "r2"}, "metric r2 needs a model with one output"),
        ("fed", {"model": linear(), "loss": nn.functional.cross_entropy}, "one number per sample.*reduction='none'"),
        ("numbers", {"model": linear(4, 1)}, "cross_entropy needs classes"),
        ("numbers", {"model": linear(4, 1), "loss": "mse", "metric": "accuracy"}, "metric accuracy needs classes"),
        ("fed", {"model": lambda: nn.Flatten()}, "no parameters to learn"),
    ],
)
def test_a_misfit_is_said_before_training(
    data: str, task: dict[str, Any], message: str, request: pytest.FixtureRequest
) -> None:
    with pytest.raises(ct.errors.TaskError, match=message):
        ct.fit(ct.FedAvg(), request.getfixturevalue(data), ct.Task(**task), rounds=1)


# ---- parameters --------------------------------------------------------------------------------------------------------


def test_the_start_is_a_function_of_the_seed_and_the_global_generator_stays() -> None:
    task = ct.Task(linear())
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one, again, other = task.init(1), task.init(1), task.init(2)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(one["weight"], again["weight"])
    assert not torch.equal(one["weight"], other["weight"])
    assert task.init(1, torch.float64)["weight"].dtype == torch.float64


def test_a_module_holds_the_parameters_it_is_given_in_their_precision() -> None:
    task = ct.Task(linear())
    params = {k: torch.rand_like(v, dtype=torch.float64, generator=torch.Generator()) for k, v in task.init(0).items()}
    module = task.module(params=params)
    assert all(torch.equal(p, params[name]) for name, p in module.named_parameters())


def test_frozen_weights_are_not_trained(fed: ct.Federation) -> None:
    def make() -> nn.Module:
        module = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
        module[0].requires_grad_(False)
        return module

    task = ct.Task(make)
    assert list(task.init(0)) == ["2.weight", "2.bias"]
    result = ct.fit(ct.FedAvg(ct.LocalSGD(steps=3)), fed, task, rounds=2)
    trained, start = result.model("c0"), task.module()
    assert torch.equal(trained[0].weight, start[0].weight)  # type: ignore[index, union-attr]
    assert not torch.equal(trained[2].weight, start[2].weight)  # type: ignore[index, union-attr]


def test_the_metric_follows_the_loss_unless_given(numbers: ct.Federation) -> None:
    assert ct.Task(linear()).metrics == ("accuracy",)
    assert ct.Task(linear(4, 1), loss="mse").metrics == ("mse",)
    assert ct.Task(linear(4, 1), loss="mse", metric="r2").sign == 1
    assert ct.Task(linear(4, 1), loss="mse").sign == ct.Task(linear(), metric=["log_loss", "auc"]).sign == -1


def test_defaults_follow_the_data(fed: ct.Federation, numbers: ct.Federation, make_fed: Any) -> None:
    assert ct.Task.default(fed).metrics == ("accuracy", "balanced_accuracy", "log_loss")
    assert ct.Task.default(numbers).metrics == ("mse", "r2")
    two = ct.Federation.from_arrays({"a": (np.eye(4), [0, 1, 0, 1])})
    assert "auc" in ct.Task.default(two).metrics
    images = ct.Federation.from_arrays({"a": (np.zeros((4, 1, 6, 6), np.uint8), [0, 1, 0, 1])})
    assert sum(p.numel() for p in ct.Task.default(images).module().parameters()) == 37 * 100 + 101 * 2
    for federation in (fed, numbers, two, images):
        ct.Task.default(federation).check(federation)


@pytest.mark.parametrize(
    ("factory", "shape", "parameters"),
    [
        (models.linear(20, 3), (20,), 63),
        (models.mlp(60, 32, 10), (60,), 61 * 32 + 33 * 10),
        (models.mlp(784, (200, 100), 10), (1, 28, 28), 785 * 200 + 201 * 100 + 101 * 10),
        (models.small_cnn(), (1, 28, 28), 44_426),
        (models.lenet5(), (1, 28, 28), 61_706),
        (models.two_conv(10), (3, 32, 32), 1_259_786),
    ],
)
def test_ready_made_models(factory: Any, shape: tuple[int, ...], parameters: int) -> None:
    module = factory()
    width = 3 if shape == (20,) else 10
    assert module(torch.zeros(2, *shape)).shape == (2, width)
    assert sum(p.numel() for p in module.parameters()) == parameters


# ---- before training -------------------------------------------------------------------------------------------------


def test_start_models_are_right_in_many_threads(fed: ct.Federation) -> None:
    task = ct.Task(lambda: nn.Sequential(nn.Linear(4, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 3)))
    right = [task.init(seed) for seed in range(20)]

    def work(thread: int) -> int:
        wrong = 0
        for k in range(100):
            seed = (k + 3 * thread) % 20
            wrong += any(not torch.equal(t, right[seed][name]) for name, t in task.init(seed).items())
            if k % 10 == 0:
                task.check(fed)  # no false alarm about random numbers
        return wrong

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(work, range(8))) == 0


class Remembers(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.linear, self.how = nn.Linear(4, 3), how
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "assigns":
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        elif self.how == "writes":
            self.mean.mul_(0.9).add_(0.1 * x.mean(0))
        out: Tensor = self.linear(x - self.mean)
        return out


def test_a_model_that_changes_its_buffers_is_refused(fed: ct.Federation) -> None:
    for how in ("assigns", "writes"):
        with pytest.raises(ct.errors.TaskError, match="changes its buffer 'mean' when it runs"):
            ct.Task(lambda how=how: Remembers(how)).check(fed)
    ct.Task(lambda: Remembers("only reads")).check(fed)


class LateWriter(nn.Module):
    """Writes into what is not its to write, after more calls than a trial makes."""

    def __init__(self, part: str, calls: int) -> None:
        super().__init__()
        self.linear, self.frozen, self.count = nn.Linear(4, 3), nn.Linear(4, 4).requires_grad_(False), 0
        self.register_buffer("scale", torch.ones(()))
        self.part, self.calls = part, calls

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        if self.count > self.calls:
            with torch.no_grad():
                self.get_parameter(self.part).mul_(1.01) if "." in self.part else self.scale.mul_(1.01)
        out: Tensor = self.linear(self.frozen(x) * self.scale)
        return out


@pytest.mark.parametrize("engine", ["local", "loop"])
@pytest.mark.parametrize(("part", "kind"), [("scale", "buffer"), ("frozen.weight", "frozen parameter")])
def test_a_buffer_or_frozen_part_that_changes_late_is_refused(
    part: str, kind: str, engine: str, fed: ct.Federation
) -> None:
    task = ct.Task(lambda: LateWriter(part, 30))
    task.check(fed)
    with pytest.raises(ct.errors.TaskError, match=f"changes its {kind} '{part}' when it runs"):
        ct.fit(ct.FedAvg(), fed, task, rounds=5, engine=engine, alone=False)


class Attribute(nn.Module):
    """Keeps what it saw where no buffer is."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.linear, self.how, self.seen = nn.Linear(4, 3), how, torch.zeros(4)
        self.calls, self.first = 0, [torch.zeros(4)] * 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        out: Tensor = self.linear(x)
        if self.how == "mean":
            self.seen = 0.9 * self.seen + 0.1 * x.detach().mean(0)
            out = self.linear(x - self.seen)
        elif self.how == "first batch":
            self.first.append(x.detach().mean(0))
            out = self.linear(x - self.first[0])
        elif self.how == "calls":
            out = out * (1 + 0.01 * self.calls)
        return out


def test_a_model_whose_outputs_depend_on_what_it_saw_before_is_refused(fed: ct.Federation) -> None:
    for how in ("mean", "first batch", "calls"):
        with pytest.raises(ct.errors.TaskError, match="it keeps what it saw in an attribute"):
            ct.Task(lambda how=how: Attribute(how)).check(fed)
    ct.Task(lambda: Attribute("counts only")).check(fed)


class Draws(nn.Module):
    def __init__(self, draw: Any) -> None:
        super().__init__()
        self.linear, self.draw = nn.Linear(4, 3), draw

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x * self.draw())
        return out


def test_numbers_that_are_not_torchs_are_refused(fed: ct.Federation) -> None:
    for draw in (lambda: random.random(), lambda: np.random.random()):  # noqa: NPY002
        with pytest.raises(ct.errors.TaskError, match="draws from a global random generator"):
            ct.Task(lambda draw=draw: Draws(draw)).check(fed)
    with pytest.raises(ct.errors.TaskError, match="draws its own random numbers"):
        ct.Task(lambda: Draws(np.random.default_rng(0).random)).check(fed)


class Clamped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.linear.weight.data.clamp_(min=0)
        out: Tensor = self.linear(x)
        return out


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_networks_that_cannot_be_used_are_refused_in_one_sentence(fed: ct.Federation) -> None:
    cases: dict[str, Any] = {
        "changes its parameter 'linear.weight' when it runs": Clamped,
        "rescales its own weights when it is used": lambda: nn.Embedding(5, 3, max_norm=1.0),
        "'0.weight' has no size yet": lambda: nn.Sequential(nn.LazyLinear(3)),
        "cannot be copied": lambda: nn.utils.weight_norm(nn.Linear(4, 3)),
    }
    for sentence, model in cases.items():
        with pytest.raises(ct.errors.TaskError, match=sentence):
            ct.Task(model).check(fed)


def test_a_loss_that_is_no_number_is_refused_and_the_client_named(make_fed: Any) -> None:
    fed = make_fed(kind="regression", ids=list(range(100, 112)))
    y = fed.y.clone()
    y[fed.offsets[4] : fed.offsets[5]] = -5.0
    fed = replace(fed, y=y)

    def loss(outputs: Tensor, y: Tensor) -> Tensor:
        return (outputs.squeeze(-1) - (y + 4.9).log()) ** 2

    with pytest.raises(ct.errors.TaskError, match="finite number for every sample; it is nan for one of client 104"):
        ct.Task(lambda: nn.Linear(4, 1), loss=loss, metric="mse").check(fed)
