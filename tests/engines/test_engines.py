"""The fast engine against the plain one; what numbers may and may not depend on; errors that lead to the line."""

from __future__ import annotations

import gc
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import coterie as ct
from coterie.base.tree import Params, Tree, flatten
from coterie.engines.base import ClientStates, Env, first_contact, gather, padded_sizes
from coterie.exchange.channels import Channel, Where
from coterie.exchange.messages import Context
from coterie.learning import models

SGD = ct.LocalSGD(steps=4, lr=0.1, batch_size=6, momentum=0.5)


def env(fed: ct.Federation, task: ct.Task, **changes: Any) -> Env:
    initial = task.init(0, fed.x.dtype if fed.x.is_floating_point() else torch.float32)
    return Env(task, fed, initial, 0, **({"states": ClientStates(len(fed))} | changes))


def train(ctx: Context, model: Params) -> ct.exchange.Up:
    model, loss = SGD.fit(ctx, model)
    return ct.exchange.Up(send={"model": model}, weight=ctx.n, group=ctx.index % 3, info={"loss": loss})


def ask(e: Env, clients: Any = None, reduce: Any = None) -> ct.exchange.Ask:
    who = np.arange(len(e.federation)) if clients is None else np.asarray(clients)
    return ct.exchange.Ask(train, who, {"model": e.initial}, reduce=reduce)


def equal(a: Tree, b: Tree) -> bool:
    one, two = flatten(a), flatten(b)
    return one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)


# ---- what numbers may depend on --------------------------------------------------------------------------------------

NETWORKS = {
    "logistic": lambda: nn.Linear(4, 3),
    "network": models.mlp(4, (16, 8), 3),
    "norm (vmap)": lambda: nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 3)),
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(9, 3)
    ),
}


@pytest.mark.parametrize("network", NETWORKS)
def test_chunk_size_workers_and_company_do_not_change_a_bit(network: str, fed: ct.Federation) -> None:
    """Batched products give a client the same numbers in any company; float64 sums of float32 numbers of like size are
    exact. In float32 all of this is bit-identical."""
    e = env(fed, ct.Task(NETWORKS[network]))
    for reduce in (None, ct.exchange.MeanBy(3)):
        reference = ct.engines.LocalEngine(workers=1).run(ask(e, reduce=reduce), e)
        for engine in (
            ct.engines.LocalEngine(workers=2),
            *(ct.engines.LocalEngine(chunk=c, workers=2) for c in (1, 2, 5, 100)),
        ):
            assert equal(engine.run(ask(e, reduce=reduce), e).values, reference.values), engine
            engine.close()
    everyone = ct.engines.LocalEngine().run(ask(e), e).values["model"]
    for who in ([3], [7, 1, 4], [11, 10, 9, 8, 0]):
        some = ct.engines.LocalEngine().run(ask(e, who), e)
        assert some.clients.tolist() == who
        assert equal(some.values["model"], {k: t[who] for k, t in everyone.items()})
        sums = ct.engines.LocalEngine().run(ask(e, who, ct.exchange.SumBy(3)), e)
        assert equal(sums.values, ct.engines.LocalEngine().run(ask(e, who[::-1], ct.exchange.SumBy(3)), e).values)
        assert sums.clients.tolist() == sorted(who)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("reduce", [None, ct.exchange.MeanBy(3), ct.exchange.SumBy(3)], ids=str)
def test_both_engines_agree(network: str, reduce: Any, fed: ct.Federation, fed64: ct.Federation) -> None:
    for federation, tolerance in ((fed, 2e-5), (fed64, 1e-10)):
        e = env(federation, ct.Task(NETWORKS[network]))
        fast, plain = (
            engine.run(ask(e, [5, 2, 11, 0], reduce), e)
            for engine in (ct.engines.LocalEngine(), ct.engines.LoopEngine())
        )
        one, two = flatten(fast.values), flatten(plain.values)
        for name in one:
            assert one[name].dtype == two[name].dtype == federation.x.dtype
            torch.testing.assert_close(one[name], two[name], rtol=tolerance, atol=tolerance)
        assert torch.equal(fast.weight, plain.weight)
        assert torch.equal(fast.count, plain.count)
        assert fast.clients.tolist() == plain.clients.tolist()
        assert (fast.bytes_up, fast.bytes_down) == (plain.bytes_up, plain.bytes_down)
        assert fast.info["loss"] == pytest.approx(plain.info["loss"], rel=tolerance)


def test_float64_sums_depend_on_the_chunks_only_by_rounding(fed64: ct.Federation) -> None:
    e = env(fed64, ct.Task(NETWORKS["network"]))
    one, two = (
        ct.engines.LocalEngine(chunk=c).run(ask(e, reduce=ct.exchange.MeanBy(3)), e).values["model"] for c in (1, 5)
    )
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-13, atol=1e-15)


# ---- asks ------------------------------------------------------------------------------------------------------------


def test_an_additive_ask_returns_sums_over_groups_and_nothing_of_a_client(fed: ct.Federation, task: ct.Task) -> None:
    e = env(fed, task)
    each = ct.engines.LoopEngine().run(ask(e), e)
    who = np.arange(len(fed))
    for engine in (ct.engines.LocalEngine(), ct.engines.LoopEngine()):
        for reduce in (ct.exchange.SumBy(3), ct.exchange.MeanBy(3), ct.exchange.MeanBy(5)):
            reply = engine.run(ask(e, reduce=reduce), e)
            assert all(len(t) == reduce.groups for t in (*flatten(reply.values).values(), reply.weight, reply.count))
            assert reply.count.tolist() == [4, 4, 4, 0, 0][: reduce.groups]
            for g in range(3):
                mine = who % 3 == g
                total = (each.values["model"]["0.bias"][mine] * each.weight[mine].unsqueeze(1)).sum(0)
                assert reply.weight[g] == fed.n_train[mine].sum()
                expected = total if isinstance(reduce, ct.exchange.SumBy) else total / each.weight[mine].sum()
                torch.testing.assert_close(reply.values["model"]["0.bias"][g], expected, rtol=1e-4, atol=1e-4)
            if reduce.groups == 5:
                assert not reply.values["model"]["0.bias"][3:].any()
                old = {k: torch.full((5, *t.shape), 7.0) for k, t in e.initial.items()}
                kept = reply.or_keep("model", old)
                assert torch.equal(kept["0.bias"][3:], old["0.bias"][3:])
                assert torch.equal(kept["0.bias"][:3], reply.values["model"]["0.bias"][:3])


def test_a_group_that_does_not_exist_is_an_error(fed: ct.Federation, task: ct.Task) -> None:
    e = env(fed, task)
    for engine in (ct.engines.LocalEngine(), ct.engines.LoopEngine()):
        with pytest.raises(ct.errors.ClientError, match=r"group=…\) must be in 0 … 1, .* got 2"):
            engine.run(ask(e, reduce=ct.exchange.MeanBy(2)), e)


def test_an_empty_ask_and_a_single_client(fed: ct.Federation, task: ct.Task) -> None:
    e = env(fed, task)
    for engine in (ct.engines.LocalEngine(), ct.engines.LoopEngine()):
        for reduce in (None, ct.exchange.MeanBy(2)):
            reply = engine.run(ask(e, np.zeros(0, np.int64), reduce), e)
            assert len(reply.clients) == 0
            assert reply.values == {}
            old = {"x": torch.ones(2)}
            assert reply.or_keep("model", old) is old
        one = engine.run(ask(e, [4]), e)
        assert one.values["model"]["0.weight"].shape == (1, 6, 4)


@dataclass(frozen=True)
class Centre(Channel):
    """Must see all messages at once: takes their mean off."""

    whole = True

    def up(self, send: Tree, clients: Any, ask: ct.exchange.Ask, where: Where) -> Tree:
        assert clients.tolist() == ask.clients.tolist()
        return {"model": {k: t - t.mean(0) for k, t in send["model"].items()}}


def test_a_channel_that_needs_all_messages_gets_them_in_the_order_asked(fed: ct.Federation, task: ct.Task) -> None:
    e = env(fed, task, channels=(Centre(),))
    for engine in (ct.engines.LocalEngine(chunk=2), ct.engines.LoopEngine()):
        each = engine.run(ask(e, [9, 2, 5]), e)
        assert each.values["model"]["0.bias"].mean(0).abs().max() < 1e-6
        one, two = (engine.run(ask(e, who, ct.exchange.SumBy(3)), e) for who in ([9, 2, 5], [2, 5, 9]))
        assert one.values["model"]["0.bias"].shape == (3, 6)
        torch.testing.assert_close(one.values["model"]["0.bias"], two.values["model"]["0.bias"], rtol=1e-5, atol=1e-6)


# ---- data ------------------------------------------------------------------------------------------------------------


def test_padding_depends_on_the_federation_alone_and_stays_small() -> None:
    rng = np.random.default_rng(0)
    n = rng.integers(1, 3000, 5000)
    sizes = padded_sizes(n)
    assert (sizes >= n).all()
    assert sizes.sum() < 1.25 * n.sum()
    assert len(np.unique(sizes)) < 60
    assert padded_sizes(np.zeros(3, np.int64)).tolist() == [1, 1, 1]
    assert padded_sizes(np.array([7])).tolist() == [7]


def test_gathered_rows_are_the_clients_own(fed: ct.Federation, task: ct.Task) -> None:
    e = env(fed, task)
    for split, rows in (("train", fed.train), ("test", fed.test)):
        data = gather(e, np.array([11, 3]), 70, split)  # type: ignore[arg-type]
        for i, client in enumerate(("c11", "c3")):
            x, y = rows(client)
            assert torch.equal(data["x"][i, : len(x)], x)
            assert torch.equal(data["y"][i, : len(y)], y)
            assert data["mask"][i].sum() == data["n"][i] == len(x)


def test_an_engine_may_serve_one_federation_after_another(make_fed: Any, task: ct.Task) -> None:
    engine = ct.engines.LocalEngine()
    for seed in range(6):  # a new federation may lie where the last one was
        fed = make_fed(seed=seed)
        e = env(fed, task)
        fresh = ct.engines.LocalEngine().run(ask(e), e)
        assert equal(engine.run(ask(e), e).values, fresh.values)
        del fed, e
        gc.collect()


def test_only_whole_rounds_are_kept_in_memory(fed: ct.Federation, task: ct.Task) -> None:
    e, engine = env(fed, task), ct.engines.LocalEngine()
    for i in range(5):
        engine.run(ask(e, [i, i + 1]), e)
    assert not engine._cache
    engine.run(ask(e), e)
    assert engine._cache
    for small, there in (
        (ct.engines.LocalEngine(cache_bytes=0), e),
        (ct.engines.LocalEngine(), env(replace(fed, mapped=True), task)),
    ):
        small.run(ask(there), there)  # what is on disk because it is large stays there
        assert not small._cache
    engine.close()
    assert not engine._cache
    for wrong in ({"workers": 0}, {"chunk": 0}):
        with pytest.raises(ct.errors.ConfigError, match="≥ 1"):
            ct.engines.LocalEngine(**wrong)  # type: ignore[arg-type]


# ---- states ----------------------------------------------------------------------------------------------------------


def test_states_are_made_at_first_contact(fed: ct.Federation, task: ct.Task) -> None:
    e, engine, made = env(fed, task), ct.engines.LocalEngine(), []

    class Counting(ct.Local):
        def client(self, ctx: Context) -> Tree:
            made.append(1)
            return {"model": ctx.initial, "n": ctx.n}

    first_contact(Counting(), np.array([4, 2]), e, engine)
    assert e.states.used == 2
    assert e.states.missing(np.arange(6)).tolist() == [0, 1, 3, 5]
    first_contact(Counting(), np.array([2, 4, 0]), e, engine)
    assert e.states.get(np.array([0, 2, 4]))["n"].tolist() == fed.n_train[[0, 2, 4]].tolist()
    before = len(made)
    first_contact(Counting(), np.array([0, 2, 4]), e, engine)
    assert len(made) == before


def test_a_rolled_back_round_leaves_no_trace() -> None:
    states = ClientStates(40)
    states.add(np.array([3, 1]), {"a": torch.tensor([[1.0], [2.0]])})
    states.commit()
    states.set(np.array([1, 3]), {"a": torch.tensor([[9.0], [8.0]])})
    states.add(np.arange(5, 40), {"a": torch.arange(35.0).unsqueeze(1)})  # grows the store
    states.set(np.array([1]), {"a": torch.tensor([[7.0]])})
    assert states.get(np.array([1, 3, 6]))["a"].flatten().tolist() == [7, 8, 1]
    states.rollback()
    assert states.get(np.array([1, 3]))["a"].flatten().tolist() == [2, 1]
    assert states.missing(np.array([1, 3, 6])).tolist() == [6]
    states.rollback()
    assert states.used == 2


# ---- errors ----------------------------------------------------------------------------------------------------------


def clumsy(ctx: Context) -> ct.exchange.Up:
    if ctx.n > 40:
        return ct.exchange.Up(send={"x": ctx.x @ torch.ones(5)})  # the line a user looks for
    return ct.exchange.Up(send={"x": ctx.n})


def shapeless(ctx: Context) -> ct.exchange.Up:
    return ct.exchange.Up(send={"x": ctx.x @ torch.ones(5)})


def test_the_plain_engine_names_client_phase_and_line_the_fast_one_points_to_it(make_fed: Any, task: ct.Task) -> None:
    e = env(make_fed(ids=list(range(12))), task)
    question = ct.exchange.Ask(clumsy, np.arange(12))
    line = clumsy.__code__.co_firstlineno + 2
    message = (
        rf"Client 8 failed in 'clumsy' at .*test_engines\.py:{line} \(return ct\.exchange\.Up.*\): "
        "RuntimeError: .*size mismatch"
    )
    with pytest.raises(ct.errors.ClientError, match=message):
        ct.engines.LoopEngine().run(question, e)
    for phase in (clumsy, shapeless):
        line = phase.__code__.co_firstlineno + (2 if phase is clumsy else 1)
        place = rf"test_engines\.py:{line}" if phase is shapeless else r"test_engines\.py:\d+"
        with pytest.raises(
            ct.errors.ClientError, match=rf"'{phase.__name__}' failed .*{place} .* engine='loop' to see"
        ):
            ct.engines.LocalEngine().run(ct.exchange.Ask(phase, np.arange(12)), e)


class Poison(ct.exchange.channels.base.Channel):
    """Client 3 sends infinity, whatever it computed."""

    def __init__(self, whole: bool) -> None:
        self.whole = whole

    def up(self, send: Any, clients: Any, ask: ct.exchange.Ask, where: Any) -> Any:
        bad = torch.from_numpy(clients == 3)
        return {"x": torch.where(bad, torch.inf, send["x"])}


@pytest.mark.parametrize("reduce", [None, ct.exchange.MeanBy(2), ct.exchange.SumBy(2)])
@pytest.mark.parametrize("whole", [None, False, True])
def test_replies_that_are_no_numbers_are_dropped_and_named(
    reduce: Any, whole: bool | None, fed: ct.Federation, task: ct.Task
) -> None:
    """Of the client's own making (7), by a channel (3), or because its state broke (5); the state stays what it was."""

    def bad(ctx: Context) -> ct.exchange.Up:
        x = torch.where(ctx.index == 7, torch.nan, 1.0 + ctx.index)
        state = torch.where(ctx.index == 5, torch.inf, 1.0)
        info = {"seen": torch.where(ctx.index == 7, torch.inf, 1.0)}
        return ct.exchange.Up(send={"x": x}, group=ctx.index % 2, state={"s": state}, info=info)

    lost = [5, 7] if whole is None else [3, 5, 7]
    kept = [i for i in range(12) if i not in lost]
    for engine in (ct.engines.LocalEngine(chunk=2), ct.engines.LocalEngine(), ct.engines.LoopEngine()):
        e = env(fed, task)
        e.channels = () if whole is None else (Poison(whole),)
        e.states = ClientStates(12)
        e.states.add(np.arange(12), {"s": torch.zeros(12)})
        reply = engine.run(ct.exchange.Ask(bad, np.arange(12)[::-1].copy(), reduce=reduce), e)
        assert reply.dropped.tolist() == lost
        assert sorted(reply.clients.tolist()) == kept
        if reduce is None:
            assert torch.equal(reply.values["x"], 1.0 + torch.from_numpy(reply.clients))
        else:
            sums = torch.tensor([float(sum(1 + i for i in kept if i % 2 == g)) for g in (0, 1)])
            counts = torch.tensor([len([i for i in kept if i % 2 == g]) for g in (0, 1)])
            torch.testing.assert_close(reply.values["x"], sums / counts if reduce == ct.exchange.MeanBy(2) else sums)
            assert torch.equal(reply.count, counts)
        assert np.isfinite(reply.info["seen"][0])
        assert e.states.values["s"][:12].tolist() == [0.0 if i == 5 else 1.0 for i in range(12)]


@pytest.mark.parametrize("reduce", [None, ct.exchange.MeanBy()])
def test_when_no_reply_is_a_number_the_run_has_diverged(reduce: Any, fed: ct.Federation, task: ct.Task) -> None:
    def bad(ctx: Context) -> ct.exchange.Up:
        return ct.exchange.Up(send={"x": torch.full((2,), torch.nan)})

    asked = np.array([9, 4, 6])
    for engine in (ct.engines.LocalEngine(chunk=1), ct.engines.LoopEngine()):
        with pytest.raises(ct.errors.Diverged) as caught:
            engine.run(ct.exchange.Ask(bad, asked, reduce=reduce), env(fed, task))
        assert (caught.value.client, caught.value.phase) == (4, "bad")
        reply = engine.run(ct.exchange.Ask(bad, asked, reduce=reduce, optional=True), env(fed, task))
        assert not len(reply.clients)
        assert reply.dropped.tolist() == [4, 6, 9]


def test_a_client_function_cannot_draw_from_a_global_generator(fed: ct.Federation, task: ct.Task) -> None:
    def noisy(ctx: Context) -> ct.exchange.Up:
        return ct.exchange.Up(send={"x": torch.rand(3)})

    with pytest.raises(ct.errors.ClientError, match="random"):
        ct.engines.LocalEngine().run(ct.exchange.Ask(noisy, np.arange(12)), env(fed, task))


def test_a_context_gives_each_client_its_own_numbers(fed: ct.Federation, task: ct.Task) -> None:
    def draw(ctx: Context) -> ct.exchange.Up:
        return ct.exchange.Up(
            send={
                "u": ctx.uniform("a", 3),
                "z": ctx.normal("b", 2),
                "loss": ctx.loss(ctx.initial),
                "g": ctx.grad(ctx.initial),
            }
        )

    for federation in (fed,):
        fast, plain = (
            engine.run(ct.exchange.Ask(draw, np.arange(12)), env(federation, task)).values
            for engine in (ct.engines.LocalEngine(), ct.engines.LoopEngine())
        )
        assert torch.equal(fast["u"], plain["u"])
        assert torch.equal(fast["z"], plain["z"])
        assert len(fast["u"].unique()) == 36
        torch.testing.assert_close(fast["loss"], plain["loss"])
        for name in fast["g"]:
            torch.testing.assert_close(fast["g"][name], plain["g"][name], rtol=1e-4, atol=1e-6)


def test_map_keeps_the_order_given(fed: ct.Federation, task: ct.Task) -> None:
    who = np.array([8, 0, 11, 3])

    def both(ctx: Context, test: Context) -> Tree:
        return {"index": ctx.index, "n": ctx.n, "test": test.mask.sum()}

    for engine in (ct.engines.LocalEngine(chunk=2), ct.engines.LoopEngine()):
        out = engine.map(both, who, env(fed, task), test=True)
        assert out["index"].tolist() == who.tolist()
        assert out["n"].tolist() == fed.n_train[who].tolist()
        assert out["test"].tolist() == fed.n_test[who].tolist()
        halved = engine.map(both, who, env(fed, task), test=True, post=lambda o: {"half": o["n"] / 2})
        assert halved["half"].tolist() == (fed.n_train[who] / 2).tolist()


def test_random_keys_are_of_the_seed_the_client_and_the_round(fed: ct.Federation, task: ct.Task) -> None:
    def keys(seed: int, round: int) -> torch.Tensor:
        return Env(task, fed, task.init(0), seed, round).keys(np.arange(len(fed)))

    drawn = torch.cat([keys(0, 0), keys(0, 1), keys(1, 0)])
    assert len(drawn.unique()) == 3 * len(fed)
    assert torch.equal(keys(0, 1), keys(0, 1))
