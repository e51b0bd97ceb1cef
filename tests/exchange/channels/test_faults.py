"""Clients that do not answer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

import coterie as ct
from coterie.base.tree import Params
from coterie.exchange.channels import Where
from coterie.exchange.messages import Cohort, Context, Exchange, Population, Reply


@dataclass(frozen=True)
class Seen:
    model: Params


@dataclass(frozen=True)
class Roll(ct.exchange.Algorithm):
    """Asks everyone for its number, twice, individually and in a turned order."""

    def init(self, task: ct.Task, population: Population, seed: int, start: Params) -> Seen:
        return Seen(start)

    def round(self, state: Seen, cohort: Cohort) -> Exchange[Seen]:
        replies: list[Reply] = []
        for _ in range(2):
            asked = cohort.clients[::-1].copy()
            replies.append((yield ct.exchange.Ask(self.call, asked, each={"number": torch.from_numpy(asked)})))
        LOG.append(replies)
        return state

    def call(self, ctx: Context, number: torch.Tensor) -> ct.exchange.Up:
        return ct.exchange.Up(send={"index": ctx.index, "number": number})

    def personal(self, ctx: Context, state: Seen) -> Params:
        return state.model


LOG: list[list[Reply]] = []


@pytest.mark.parametrize("engine", ["local", "loop"])
def test_a_reply_says_who_answered_and_who_was_lost(fed: ct.Federation, task: ct.Task, engine: str) -> None:
    LOG.clear()
    ct.fit(Roll(), fed, task, rounds=3, channels=[ct.exchange.Dropout(0.4)], engine=engine)
    lost = []
    for replies in LOG:
        for reply in replies:
            assert sorted([*reply.clients, *reply.lost]) == list(range(len(fed)))
            assert (np.diff(reply.clients) < 0).all()  # as asked
            if len(reply.clients):
                assert reply.values["index"].tolist() == reply.values["number"].tolist() == reply.clients.tolist()
            lost.append(tuple(reply.lost))
    assert len(set(lost)) > 3  # other clients in every ask


def test_the_rate_is_the_rate_and_the_draw_is_the_clients_own(fed: ct.Federation) -> None:
    everyone = np.arange(len(fed))
    ask = ct.exchange.Ask(Roll().call, everyone, each={"number": torch.from_numpy(everyone)})
    kept = [ct.exchange.Dropout(0.3).ask(ask, Where(fed, 0, r, a)) for r in range(200) for a in range(2)]
    share = np.mean([len(k.clients) for k in kept]) / len(fed)
    assert abs(share - 0.7) < 4 * np.sqrt(0.21 / (400 * len(fed)))
    for k in kept[:5]:
        assert k.each["number"].tolist() == k.clients.tolist()
    few = ct.exchange.Ask(Roll().call, everyone[::3], each={"number": torch.from_numpy(everyone[::3].copy())})
    where = Where(fed, 0, 7, 0)
    assert set(ct.exchange.Dropout(0.3).ask(few, where).clients) == set(
        ct.exchange.Dropout(0.3).ask(ask, where).clients
    ) & set(everyone[::3])


def test_all_or_none(fed: ct.Federation, task: ct.Task) -> None:
    LOG.clear()
    ct.fit(Roll(), fed, task, rounds=1, channels=[ct.exchange.Dropout(1.0)])
    assert all(len(r.clients) == 0 and len(r.lost) == len(fed) and r.values == {} for r in LOG[0])
    none = ct.fit(ct.FedAvg(), fed, task, rounds=2, channels=[ct.exchange.Dropout(0.0)])
    assert none.history["loss"].equals(ct.fit(ct.FedAvg(), fed, task, rounds=2).history["loss"])
    for wrong in (-0.1, 1.1):
        with pytest.raises(ct.errors.ConfigError, match=r"rate to be a number from 0 to 1"):
            ct.exchange.Dropout(wrong)
