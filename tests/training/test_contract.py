"""Algorithms that are none get one sentence."""

from __future__ import annotations

from typing import Any

import pytest

import coterie as ct
from coterie.base.tree import Params
from coterie.exchange.messages import Ask, Cohort, Population

SGD = ct.LocalSGD(steps=3, lr=0.1, batch_size=8)


class NoYield(ct.FedAvg):
    def round(self, state: Any, cohort: Cohort) -> Any:
        return state


class YieldsNoAsk(ct.FedAvg):
    def round(self, state: Any, cohort: Cohort) -> Any:
        yield {"model": 1}


class ForgetsToReturn(ct.FedAvg):
    def round(self, state: Any, cohort: Cohort) -> Any:
        yield Ask(self.train, cohort.clients, {"model": state.model})


class BareState(ct.FedAvg):
    def init(self, task: ct.Task, population: Population, seed: int, start: Params) -> Any:
        return {"model": start}


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (NoYield, r"NoYield\.round must be a generator; it returned a \w+State\. Ask clients with"),
        (YieldsNoAsk, r"YieldsNoAsk\.round must yield Ask\(…\); it yielded a dict"),
        (ForgetsToReturn, r"must be a dataclass; ForgetsToReturn\.round gave a NoneType"),
        (BareState, r"must be a dataclass; BareState\.init gave a dict"),
    ],
)
def test_an_algorithm_that_breaks_the_contract_gets_one_sentence(
    algorithm: Any, message: str, fed: ct.Federation, task: ct.Task
) -> None:
    with pytest.raises(ct.errors.ConfigError, match=message):
        ct.fit(algorithm(SGD), fed, task, rounds=1, alone=False)
