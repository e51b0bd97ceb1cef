"""A predictor survives being written down, and its module gives the same outputs as the function."""

import json

import pytest
import torch
from torch import nn

import coterie as ct
from coterie.learning.predictors import NearestNeighbours, build, describe


def test_a_described_predictor_is_built_again() -> None:
    rule = NearestNeighbours(0.25, 7)
    assert build(json.loads(json.dumps(describe(rule)))) == rule


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ct.errors.ConfigError, match=r"'oracle'.*no such name"):
        build({"name": "oracle", "settings": {}})


def test_the_module_predicts_like_the_function_and_ignores_padding() -> None:
    torch.manual_seed(0)
    task = ct.Task(lambda: nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4)))
    params, rule = task.init(0), NearestNeighbours(0.6, 3)
    own, labels, x = torch.randn(8, 3), torch.randint(0, 4, (8,)), torch.randn(6, 3)
    padded = torch.cat([own, x]), torch.cat([labels, torch.zeros(6, dtype=torch.int64)]), torch.arange(14) < 8
    with torch.no_grad():
        got = rule.module(task.module(params=params), own, labels)(x)
        torch.testing.assert_close(rule.outputs(task, params, x, padded), got)
        alone = rule.outputs(task, params, x, (own, labels, torch.ones(8)))
    torch.testing.assert_close(alone, got)
    torch.testing.assert_close(got.exp().sum(1), torch.ones(6), rtol=0, atol=1e-5)
