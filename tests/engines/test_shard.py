"""What runs in a Ray actor, called in this process; and what is said where Ray is missing."""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import coterie as ct
from coterie.base.tree import Params, flatten
from coterie.cli import main
from coterie.engines.base import Env
from coterie.engines.ray.pool import _join, _start_here
from coterie.engines.ray.shard import Place, Rows, Sent, Shard, Touched, cut
from coterie.engines.reduce import assemble
from coterie.exchange.messages import Context

BOUNDS = np.array([0, 5, 12])


def train(ctx: Context, model: Params) -> ct.exchange.Up:
    model, loss = ct.LocalSGD(steps=4, lr=0.1, batch_size=6).fit(ctx, model)
    return ct.exchange.Up(send={"model": model}, weight=ctx.n, group=ctx.index % 3, info={"loss": loss})


def both_shards(fed: ct.Federation, env: Env) -> list[tuple[Shard, Place]]:
    setting = Sent("setting", ((env.task, env.initial, env.seed, env.channels, env.private),))
    made = []
    for i in (0, 1):
        data = Sent("data", (cut(fed, BOUNDS, i),))
        made.append((Shard(), Place(setting, data, "states", env.round, env.ask)))
    return made


@pytest.mark.parametrize("reduce", [None, ct.exchange.MeanBy(3), ct.exchange.SumBy(3)], ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_two_shards_give_the_reply_of_one_process(
    reduce: Any, weighted: bool, fed: ct.Federation, task: ct.Task
) -> None:
    """Each shard holds its own clients' rows alone, and pads and draws as if all were there."""
    if weighted:
        pairs = {c: (*fed.train(c), torch.linspace(1, 2, len(fed.train(c)[1]))) for c in fed.clients}
        fed = ct.Federation.from_arrays(pairs, one_class="allow")
    env = Env(task, fed, task.init(0), seed=3, round=2)
    who = np.array([9, 2, 5, 4, 11, 0])
    question = ct.exchange.Ask(train, who, {"model": env.initial}, reduce=reduce)
    shares = []
    for (shard, place), mine in zip(both_shards(fed, env), (who < 5, who >= 5), strict=True):
        assert len(shard._env(place).federation.x) == (fed.offsets[5] if mine[1] else fed.offsets[-1] - fed.offsets[5])
        shares.append(shard.call("run", place, (question,), who[mine], {}))
        assert ("send" in shares[-1]) == (reduce is None)  # of an additive ask nothing but sums leaves the shard
    there, here = assemble(question, env, shares), ct.engines.LocalEngine(workers=1).run(question, env)
    assert there.clients.tolist() == here.clients.tolist()
    assert torch.equal(there.count, here.count)
    for name, t in flatten(here.values).items():
        torch.testing.assert_close(flatten(there.values)[name], t, rtol=1e-6, atol=1e-6)
    assert there.info["loss"] == pytest.approx(here.info["loss"])
    assert (there.bytes_up, there.bytes_down) == (here.bytes_up, here.bytes_down)


def test_states_committed_by_one_shard_bring_another_to_where_it_was() -> None:
    """In pieces or as a whole; what was written since the commit is gone."""
    one, two = Touched(12), Shard()
    shard = Shard(stores={"s": one})
    saved = []
    for round in range(4):
        who = np.array([round, 5, 7 - round])
        shard.put("s", 12, Rows(who, {"a": torch.full((3, 2), float(round))}))
        if round < 3:
            saved.append(shard.commit("s", False)[1])
    assert saved[2].clients.tolist() == [2, 5]  # and 5 once more: the last value counts
    two.restore("s", 12, saved)
    shard.rollback("s")
    met = np.flatnonzero(one.row >= 0)
    assert met.tolist() == [0, 1, 2, 5, 6, 7]
    assert torch.equal(shard.rows("s", met)["a"], two.rows("s", met)["a"])
    count, everything = shard.commit("s", True)
    assert count == 6
    assert everything.clients.tolist() == met.tolist()
    assert Shard().commit("s", False)[0] == 0


def test_an_error_comes_back_as_a_value_and_what_is_forgotten_is_gone(fed: ct.Federation, task: ct.Task) -> None:
    env = Env(task, fed, task.init(0), seed=0)
    (shard, place), _ = both_shards(fed, env)
    question = ct.exchange.Ask(train, np.arange(5), {"model": env.initial}, reduce=ct.exchange.MeanBy(2))
    failed = shard.call("run", place, (question,), np.arange(5), {})
    assert isinstance(failed.error, ct.errors.ClientError)
    assert "got 2" in str(failed.error)
    assert shard.kept
    shard.forget(["data", "setting", "states"])
    assert not shard.kept
    assert not shard.stores
    assert not shard.engines


def test_without_ray_there_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    sentence = "The Ray engine needs Ray, which is not installed. Run pip install 'coterie[ray]'."
    with pytest.raises(ct.errors.ConfigError) as caught:
        ct.fit(ct.FedAvg(), ct.datasets.heart(), rounds=1, engine="ray")
    assert str(caught.value) == sentence
    file = tmp_path / "run.toml"
    file.write_text('[data]\nname = "heart"\n[algorithm]\nname = "fedavg"\n[run]\nengine = "ray"\n')
    monkeypatch.setattr(sys, "argv", ["coterie", "run", str(file)])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main()
    assert " ".join(capsys.readouterr().err.split()) == sentence


@pytest.mark.parametrize("actors", [0, -1, "two", 1.5, True])
def test_impossible_numbers_of_actors_are_refused(actors: Any) -> None:
    with pytest.raises(ct.errors.ConfigError, match=f"actors must be a whole number ≥ 1; got {actors!r}"):
        ct.engines.RayEngine(actors=actors)


@pytest.mark.parametrize("engine", [ct.engines.RayEngine, None, 3])
def test_what_is_no_engine_is_refused_in_a_sentence(engine: Any) -> None:
    with pytest.raises(ct.errors.ConfigError, match=r"engine must be one of .* or an engine such as LocalEngine\(\)"):
        ct.fit(ct.FedAvg(), ct.datasets.heart(), rounds=1, engine=engine)


def test_a_cluster_that_is_not_there_is_said_at_once() -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'coterie[ray]' to run this test")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(ct.errors.EngineError, match=f"There is no Ray cluster at {address}: .*ray start --head"):
            _join(ray, address)
    assert time.monotonic() - began < 20


def test_a_machine_too_busy_for_ray_is_said() -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'coterie[ray]' to run this test")

    class Busy:
        def init(self, *_: Any, **__: Any) -> None:
            raise Exception("The current node timed out during startup. This could happen.\nMore.")

    with pytest.raises(
        ct.errors.EngineError, match=r"could not start on this machine: The current node timed out .* less busy"
    ):
        _start_here(Busy())
