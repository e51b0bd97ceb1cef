"""`ct.check` finds what is wrong with somebody's algorithm, and says it in a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

import coterie as ct
from coterie.algorithms.families import FedAvgState
from coterie.exchange import Ask, From, MeanBy, Up, row, tree_map


@dataclass(frozen=True, kw_only=True)
class Faulty(ct.FedAvg):
    """FedAvg with one fault."""

    fault: str = ""

    def round(self, state: FedAvgState, cohort: Any) -> Any:
        if self.fault == "changes its state":
            for t in state.model.values():
                t.mul_(1.0)
                t.add_(0.01)
        origin = {} if self.fault == "undeclared" else {"model": From("model")}
        ask = Ask(self.train, cohort.clients, {"model": state.model}, reduce=MeanBy(), updates=origin)
        reply = yield ask
        if not len(reply.clients) and self.fault != "nobody":
            return state
        if not len(reply.clients):
            return FedAvgState(tree_map(torch.zeros_like, state.model), {})
        return FedAvgState(row(reply.values["model"], 0), {})

    def train(self, ctx: Any, model: Any) -> Up:
        if self.fault == "padding":  # the mean over a chunk's places, not over samples
            model = tree_map(lambda t: t + 0.01 * ctx.y.to(t.dtype).mean(), model)
        if self.fault == "global generator":
            model = tree_map(lambda t: t + 0.01 * torch.rand(()), model)
        if self.fault == "learns nothing":
            return Up(send={"model": model}, weight=ctx.n)
        return super().train(ctx, model)

    def personal(self, ctx: Any, state: FedAvgState) -> Any:
        if self.fault == "raises":
            raise ValueError("no model today")
        return state.model


def test_an_algorithm_of_the_package_passes_every_check() -> None:
    found = ct.check(Faulty())
    assert found["holds"].all(), found.loc[~found["holds"], "found"].to_dict()
    assert (found["found"] == "").all()


@pytest.mark.parametrize(
    ("fault", "check", "words"),
    [
        ("changes its state", "a round changes neither its state nor the global generators", "changed model/0.weight"),
        ("undeclared", "what clients send is declared", "does not say whether"),
        ("nobody", "a round with nobody", "Return the state when reply.clients is empty"),
        ("padding", "equal on both engines", "not close"),
        ("global generator", "a round changes neither its state nor the global generators", "random"),
        ("learns nothing", "it learns", "Twenty rounds"),
        ("raises", "equal on both engines", "no model today"),
    ],
)
def test_a_fault_is_found_and_named(monkeypatch: pytest.MonkeyPatch, fault: str, check: str, words: str) -> None:
    from coterie.training import conformance

    name = check.replace(" ", "_")
    monkeypatch.setattr(conformance, "CHECKS", {name: conformance.CHECKS[name]})
    found = ct.check(Faulty(fault=fault))
    assert not found.loc[check, "holds"]
    assert words in found.loc[check, "found"]


def test_a_class_is_not_an_algorithm() -> None:
    with pytest.raises(ct.errors.ConfigError, match="Make an instance"):
        ct.check(ct.FedAvg)
