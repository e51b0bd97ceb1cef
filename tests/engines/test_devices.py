"""Devices: client functions and all they make are on the device they are told to run on.

There is no accelerator here. torch's `meta` device computes shapes only, and refuses to mix its tensors with those of main
memory (but for single numbers and indices, as an accelerator does), so a tensor made in the wrong place is found."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conformance_settings import NAMES, PAIR, PAIRS, configured
from torch import Tensor, nn

import coterie as ct
from coterie.base.tree import flatten, tree_map
from coterie.engines import devices, loop, vectorised

QUIET: dict[str, Any] = {"alone": False, "progress": False}


class Answers(list[str]):
    fill = 1.0  # what every number of an answer is


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    """The devices of all that client functions answer, which is then replaced by plain numbers of main memory.

    The code of local steps asks a chunk's tensors for numbers (how many batches there are, whether a client is ragged). A
    tensor without numbers is given some: they only decide how many steps are taken."""
    seen = Answers()

    def fetched(value: Any, device: Any) -> Any:
        if device is None:
            return value
        seen.extend(t.device.type for t in flatten(value).values() if t.dim() > 1)
        return tree_map(lambda t: torch.full(t.shape, seen.fill if t.is_floating_point() else 0, dtype=t.dtype), value)

    def listed(t: Tensor) -> Any:
        return [listed(row) for row in t] if t.dim() else 2

    numbers = {"__bool__": lambda t: True, "__int__": lambda t: 2, "item": lambda t: 2, "tolist": listed}
    for name, instead in numbers.items():
        real = getattr(Tensor, name)

        def given(t: Tensor, *, real: Any = real, instead: Any = instead) -> Any:
            return instead(t) if t.device.type == "meta" else real(t)

        monkeypatch.setattr(Tensor, name, given)
    for module in (vectorised, loop):
        monkeypatch.setattr(module, "fetched", fetched)
    return seen


def on_meta(kind: type) -> Any:
    engine = kind()
    engine.device = "meta"  # a user is refused it: it holds no numbers
    return engine


@pytest.mark.parametrize("name", NAMES)
def test_every_algorithm_runs_wholly_on_its_device(
    name: str, answers: Answers, fed: ct.Federation, make_fed: Any, task: ct.Task
) -> None:
    fed = make_fed(sizes=PAIR) if name in PAIRS else fed
    answers.fill = 0.0 if name in PAIRS else 1.0  # its clients would say that they are empty
    result = ct.fit(configured(name), fed, task, rounds=2, engine=on_meta(ct.engines.LocalEngine), **QUIET)
    result.scores()
    assert set(answers) == {"meta"}


NETWORKS = {
    "by hand": lambda: ct.models.mlp(4, (16, 8), 3)(),
    "norm (vmap)": lambda: nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Dropout(0.1), nn.Linear(8, 3)),
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(27, 3)
    ),
    "frozen": lambda: nn.Sequential(nn.Linear(4, 8).requires_grad_(False), nn.Tanh(), nn.Linear(8, 3)),
}


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("steps", [ct.LocalSGD(steps=3, batch_size=4), ct.LocalAdam(epochs=1, batch_size=4)], ids=repr)
@pytest.mark.parametrize("engine", [ct.engines.LocalEngine, ct.engines.LoopEngine])
def test_every_kind_of_network_runs_wholly_on_its_device(
    network: str, steps: Any, engine: type, answers: Answers, make_fed: Any
) -> None:
    fed = make_fed(sizes=(12, 12, 12))
    result = ct.fit(ct.FedAvg(steps), fed, ct.Task(NETWORKS[network]), rounds=1, engine=on_meta(engine), **QUIET)
    result.scores()
    assert set(answers) == {"meta"}


class Misplaced(ct.FedAvg):
    """Adds a tensor of main memory that no client function made."""

    def train(self, ctx: Any, model: Any) -> ct.exchange.Up:
        up = super().train(ctx, model)
        return ct.exchange.Up(send=tree_map(lambda t: t + ELSEWHERE[: t.shape[-1]], up.send), weight=up.weight)


ELSEWHERE = torch.zeros(6)


def test_a_tensor_in_the_wrong_place_is_found(answers: Answers, fed: ct.Federation, task: ct.Task) -> None:
    with pytest.raises(ct.errors.ClientError, match="device"):
        ct.fit(Misplaced(), fed, task, rounds=1, engine=on_meta(ct.engines.LocalEngine), **QUIET)
    assert not answers


def test_the_cpu_is_the_cpu(fed: ct.Federation, task: ct.Task) -> None:
    one, two = (ct.fit(ct.FedAvg(), fed, task, rounds=2, device=d, **QUIET) for d in (None, "cpu"))
    assert all(torch.equal(one.state.model[k], t) for k, t in two.state.model.items())
    assert ct.engines.LocalEngine(device="cpu").device is None


@pytest.mark.parametrize(
    ("device", "sentence"),
    [
        ("gpu", r"device must be one that torch knows, such as 'cpu' or 'cuda'; got 'gpu'\.$"),
        ("meta", r"The device 'meta' cannot be used here: .*\. Use device='cpu'\.$"),
        (3.5, r"device must be text such as 'cpu' or 'cuda'"),
    ],
)
def test_a_device_that_cannot_be_used_is_refused_in_a_sentence(
    device: Any, sentence: str, fed: ct.Federation, task: ct.Task
) -> None:
    for engine in ("local", "loop"):
        with pytest.raises(ct.errors.ConfigError, match=sentence):
            ct.fit(ct.FedAvg(), fed, task, engine=engine, device=device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is an accelerator here")
def test_a_missing_accelerator_is_said(fed: ct.Federation, task: ct.Task) -> None:
    with pytest.raises(ct.errors.ConfigError, match=r"'cuda' cannot be used here: .*Use device='cpu'"):
        ct.fit(ct.FedAvg(), fed, task, device="cuda")


def test_an_engine_object_has_its_own_device(
    fed: ct.Federation, task: ct.Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coterie.training.run.checked", lambda device: device)
    with pytest.raises(ct.errors.ConfigError, match=r"its own device; .*LocalEngine\(device='cuda'\)"):
        ct.fit(ct.FedAvg(), fed, task, engine=ct.engines.LocalEngine(), device="cuda")


def test_states_of_any_form_are_moved() -> None:
    state = ct.FedAvg().init(None, None, 0, {"w": torch.ones(2)})  # type: ignore[arg-type]
    there = devices.moved(state, "meta")
    assert isinstance(there, type(state))
    assert all(t.device.type == "meta" for t in flatten(vars(there)).values() if isinstance(t, Tensor))
