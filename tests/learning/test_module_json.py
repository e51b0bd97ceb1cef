"""A network's architecture survives JSON, or is not written at all."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn

import coterie as ct
from coterie.learning import models, module_json


def shared_relu() -> nn.Module:
    relu = nn.ReLU()
    return nn.Sequential(nn.Linear(4, 5), relu, nn.Linear(5, 5), relu, nn.Linear(5, 2))


KNOWN: dict[str, tuple[Any, tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(4, 2, bias=False), (4,)),
    "mlp": (models.mlp(4, (5, 3), 2), (4,)),
    "small cnn": (models.small_cnn(), (1, 28, 28)),
    "lenet": (models.lenet5(), (1, 28, 28)),
    "one ReLU twice": (shared_relu, (4,)),
    "norms": (lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.GroupNorm(2, 6), nn.GELU("tanh")), (4,)),
    "pools": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, (3, 1), stride=2, padding="valid", groups=2), nn.AvgPool2d(2)),
        (2, 9, 9),
    ),
    "nested": (lambda: nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.LeakyReLU(0.3)), nn.Softplus(2.0)), (4,)),
}


@pytest.mark.parametrize("name", KNOWN)
def test_built_from_json_it_computes_the_same(name: str) -> None:
    make, shape = KNOWN[name]
    module = make()
    spec = json.loads(json.dumps(module_json.describe(module)))
    again = module_json.build(spec)
    again.load_state_dict(module.state_dict())
    x = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    assert torch.equal(module(x), again(x))


class Own(nn.Linear):
    pass


def frozen() -> nn.Module:
    module = nn.Linear(2, 2)
    module.bias.requires_grad_(False)
    return module


def tied() -> nn.Module:
    layer = nn.Linear(2, 2)
    return nn.Sequential(layer, layer)


@pytest.mark.parametrize(
    "make", [lambda: Own(2, 2), lambda: nn.Sequential(Own(2, 2)), frozen, tied, lambda: nn.LSTM(2, 2)]
)
def test_what_cannot_be_rebuilt_is_not_described(make: Any) -> None:
    assert module_json.describe(make()) is None


@pytest.mark.parametrize(
    "spec",
    [
        {"type": "Linear", "arguments": {"in_features": 10**6, "out_features": 10**6}},
        {"type": "BatchNorm1d", "arguments": {"num_features": 10**12, "affine": False}},
        {"type": "functional", "arguments": {}},
        {"type": "factory_kwargs", "arguments": {"kwargs": {}}},
        {"type": "os.system", "arguments": {}},
        {"type": "Linear", "arguments": {"x": 1}},
        {"type": 5},
        {},
    ],
)
def test_an_architecture_that_was_not_saved_here_is_refused_before_it_takes_memory(spec: dict[str, Any]) -> None:
    for nested in (spec, {"type": "Sequential", "parts": {"0": spec}}):
        with pytest.raises(ct.errors.ConfigError, match=r"architecture of this model cannot be built: .*\.$"):
            module_json.build(nested, 100)
