"""Whose fault it is: the user's own line, tensors that are not a client's to write into, answers that are none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import coterie as ct
from coterie.base.tree import Params
from coterie.engines.base import ClientStates, Env
from coterie.exchange.messages import Context


def env(fed: ct.Federation, task: ct.Task, **changes: Any) -> Env:
    initial = task.init(0, fed.x.dtype if fed.x.is_floating_point() else torch.float32)
    return Env(task, fed, initial, 0, **({"states": ClientStates(len(fed))} | changes))


def test_the_line_is_the_users_also_inside_a_loss_of_their_own(fed: ct.Federation) -> None:
    def loss(outputs: Tensor, y: Tensor) -> Tensor:
        if outputs.shape[0] != 64:  # not yet in the check before the first round
            return outputs[:, 7]
        return nn.functional.cross_entropy(outputs, y, reduction="none")

    line = loss.__code__.co_firstlineno + 2
    e = env(fed, ct.Task(lambda: nn.Linear(4, 3), loss=loss))
    algorithm = ct.FedAvg(ct.LocalSGD(steps=1))
    question = ct.exchange.Ask(algorithm.train, np.arange(12), {"model": e.initial})
    for engine in (ct.engines.LocalEngine(), ct.engines.LoopEngine()):
        with pytest.raises(
            ct.errors.ClientError, match=rf"'train' .*at .*test_error_location\.py:{line} \(return outputs\[:, 7\]\)"
        ):
            engine.run(question, e)


def adds_to_the_model(ctx: Context, model: Params) -> ct.exchange.Up:
    model["0.bias"] += ctx.n
    return ct.exchange.Up(send={"model": model})


def adds_to_its_data(ctx: Context, model: Params) -> ct.exchange.Up:
    ctx.x.mul_(2.0)
    return ct.exchange.Up(send={"x": ctx.x.sum()})


def adds_behind_its_back(ctx: Context, model: Params) -> ct.exchange.Up:
    model["0.bias"].data.add_(ctx.n)
    return ct.exchange.Up(send={"bias": model["0.bias"]})


@pytest.mark.parametrize("engine", [ct.engines.LocalEngine(), ct.engines.LoopEngine()], ids=["local", "loop"])
@pytest.mark.parametrize("phase", [adds_to_the_model, adds_to_its_data])
def test_a_client_that_writes_into_what_others_use_is_refused(
    engine: Any, phase: Any, fed: ct.Federation, task: ct.Task
) -> None:
    e = env(fed, task)
    with pytest.raises(ct.errors.ClientError, match=rf"'{phase.__name__}' (writes into|failed .*0\.bias.* \+= )"):
        engine.run(ct.exchange.Ask(phase, np.arange(12), {"model": e.initial}), e)


def test_the_plain_engine_gives_every_client_a_model_of_its_own(fed: ct.Federation, task: ct.Task) -> None:
    e = env(fed, task)
    before = e.initial["0.bias"].clone()
    reply = ct.engines.LoopEngine().run(ct.exchange.Ask(adds_behind_its_back, np.arange(12), {"model": e.initial}), e)
    assert torch.equal(e.initial["0.bias"], before)
    added = reply.values["bias"] - before
    torch.testing.assert_close(added[:, 0], torch.from_numpy(fed.n_train).float())


@pytest.mark.parametrize("engine", [ct.engines.LocalEngine(), ct.engines.LoopEngine()], ids=["local", "loop"])
def test_a_client_function_that_returns_no_up_is_refused(engine: Any, fed: ct.Federation, task: ct.Task) -> None:
    def bare(ctx: Context) -> Any:
        return {"x": ctx.n}

    with pytest.raises(ct.errors.ClientError, match=r"returns Up\(send=…\); 'bare' returned a dict\. Wrap it in Up\."):
        engine.run(ct.exchange.Ask(bare, np.arange(12)), env(fed, task))
