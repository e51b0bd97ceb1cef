"""Ray: the same numbers as in one process, actors that die, checkpoints that move, a cluster of two nodes.

One Ray session serves the file; `make test-ray` runs it, and continuous integration does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conformance_settings import COHORT, NAMES, PAIR, PAIRS, ROUNDS, close, configured, difference, same_course, some
from neighbour_settings import CHANGES, clients, unstable, unstable_task
from torch import nn

import coterie as ct
from coterie.errors import EngineError
from coterie.exchange.channels.base import Channel, Where
from coterie.exchange.messages import Context
from coterie.training.run import Run

pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore::coterie.errors.CoterieWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # Ray's own sockets
]
ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'coterie[ray]' to run these tests")
QUIET: dict[str, Any] = {"alone": False, "progress": False}


@pytest.fixture(scope="module")
def engine() -> Iterator[ct.engines.RayEngine]:
    for module in (__name__, "neighbour_settings"):  # actors cannot import a test file
        ray.cloudpickle.register_pickle_by_value(sys.modules[module])
    made = ct.engines.RayEngine(actors=2)
    yield made
    made.close()
    ray.shutdown()


def pids(engine: ct.engines.RayEngine) -> list[int]:
    return ray.get([actor.call.remote("ready") for actor in engine._pool.actors])


# ---- the same numbers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_every_algorithm_gives_the_numbers_of_the_local_engine(
    name: str, engine: ct.engines.RayEngine, fed: ct.Federation, make_fed: Any, task: ct.Task
) -> None:
    fed = make_fed(sizes=PAIR) if name in PAIRS else fed
    how: dict[str, Any] = {"rounds": ROUNDS, "cohort": some(fed, COHORT), **QUIET}
    here, there = (ct.fit(configured(name), fed, task, engine=e, **how) for e in ("local", engine))
    close(here, there, 1e-5)
    same_course(here, there)
    np.testing.assert_allclose(here.scores()["log_loss"], there.scores()["log_loss"], rtol=1e-4, atol=1e-4)


def test_bit_for_bit_where_products_do_not_depend_on_their_company(
    engine: ct.engines.RayEngine, fed: ct.Federation
) -> None:
    task = ct.Task(ct.models.mlp(4, (16, 8), 3))
    algorithm = ct.Ditto(local=ct.LocalSGD(steps=4, lr=0.1, batch_size=None))
    here, there = (
        ct.fit(algorithm, fed, task, rounds=3, engine=e, **QUIET) for e in (ct.engines.LocalEngine(chunk=1), engine)
    )
    assert difference(here, there) < 1e-7


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_modules_that_run_alone_and_other_types(dtype: str, engine: ct.engines.RayEngine, make_fed: Any) -> None:
    """What `check` found about a network travels with the task."""

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.2), nn.Linear(6, 3))

    fed = make_fed(dtype=dtype)
    here, there = (
        ct.fit(ct.FedAvg(ct.LocalSGD(steps=3, batch_size=8)), fed, ct.Task(model), rounds=2, engine=e, **QUIET)
        for e in ("local", engine)
    )
    close(here, there, 1e-5 if dtype == "float32" else 1e-10)


def test_by_name_with_evaluation_gains_and_groups(
    fed: ct.Federation, task: ct.Task, engine: ct.engines.RayEngine
) -> None:
    """Several runs on one engine keep their states apart: the clients are trained alone while the run's states wait."""
    algorithm = ct.Ditto(local=ct.LocalSGD(steps=3, lr=0.1))
    how: dict[str, Any] = {"rounds": 3, "evaluate_every": 1, "progress": False, "alone": "equal budget"}
    here, there = (ct.fit(algorithm, fed, task, engine=e, **how) for e in ("local", engine))
    before = there.evaluation.personal(np.arange(12))
    np.testing.assert_allclose(here.evaluate(), there.evaluate(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(here.history["test_log_loss"], there.history["test_log_loss"], rtol=1e-5)
    after = there.evaluation.personal(np.arange(12))
    assert all(torch.equal(before[k], after[k]) for k in before)
    named = ct.fit(ct.FedAvg(), fed, task, rounds=1, engine="ray", **QUIET)
    assert named.about["finished"]


# ---- channels and privacy --------------------------------------------------------------------------------------------

CHANNELS = {
    "dropout": lambda: [ct.exchange.Dropout(0.4)],
    "sign flip": lambda: [ct.exchange.attacks.SignFlip(["c1", "c9"])],
    "label flip": lambda: [ct.exchange.attacks.LabelFlip(["c1", "c9"])],
    "noise": lambda: [ct.exchange.attacks.GaussianNoise(["c0"]), ct.exchange.Dropout(0.2)],
    "seen by all": lambda: [ct.exchange.attacks.ALIE(["c1", "c9"], z=1.0)],
}


@pytest.mark.parametrize("kind", CHANNELS)
@pytest.mark.parametrize("name", ["ifca", "ifca, robust", "ditto"])
def test_channels_act_as_they_do_in_one_process(
    kind: str, name: str, engine: ct.engines.RayEngine, fed: ct.Federation, task: ct.Task
) -> None:
    here, there = (
        ct.fit(configured(name), fed, task, rounds=2, channels=CHANNELS[kind](), engine=e, **QUIET)
        for e in ("local", engine)
    )
    close(here, there, 1e-5)
    same_course(here, there)


@pytest.mark.parametrize("name", ["fedavg", "ifca", "ditto"])
def test_private_sums_are_made_in_the_actors_and_booked_here(
    name: str, engine: ct.engines.RayEngine, fed: ct.Federation, task: ct.Task
) -> None:
    privacy = ct.Privacy(3.0, 1e-6, clip=0.3, noise="simulation")
    here, there = (
        ct.fit(configured(name), fed, task, rounds=2, privacy=privacy, engine=e, **QUIET) for e in ("local", engine)
    )
    close(here, there, 1e-5)
    assert here.receipt.epsilon == there.receipt.epsilon
    exact = ct.fit(
        configured(name), fed, task, rounds=1, privacy=ct.Privacy(3.0, 1e-6, clip=0.3), engine=engine, **QUIET
    )
    assert exact.about["finished"]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["fedavg", "ifca", "ditto", "scaffold"])
def test_a_clients_share_of_a_private_sum_does_not_depend_on_the_others(
    name: str, dtype: str, engine: ct.engines.RayEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the first client's data change in the sum is one number, whatever the last client's data are."""
    totals: list[np.ndarray] = []
    monkeypatch.setattr(
        ct.privacy.ExactNoise, "gaussian", lambda self, total, sigma: totals.append(total) or np.zeros_like(total)
    )

    def summed(first: str | None, last: str | None) -> np.ndarray:
        totals.clear()
        how: dict[str, Any] = {"rounds": 1, "engine": engine, "privacy": ct.Privacy(3.0, 1e-5, clip=1.0), **QUIET}
        ct.fit(unstable(name), clients(first, dtype, last=last), unstable_task(), **how)
        return np.concatenate([np.ravel(t) for t in totals])

    before = summed(None, None) - summed(None, "grown")
    for change in CHANGES:
        np.testing.assert_array_equal(summed(change, None) - summed(change, "grown"), before)


@dataclass(frozen=True)
class Broken(Channel):
    """The second client sends NaN."""

    def up(self, send: Any, clients: Any, ask: ct.exchange.Ask, where: Where) -> Any:
        bad = torch.from_numpy(clients == 1)
        spoil = lambda t: torch.where(bad.reshape(-1, *[1] * (t.dim() - 1)), torch.nan, t)  # noqa: E731
        return {"model": {k: spoil(t) for k, t in send["model"].items()}}


def test_a_client_that_sends_nan_is_named(engine: ct.engines.RayEngine, fed: ct.Federation, task: ct.Task) -> None:
    here, there = (
        ct.fit(ct.FedAvg(), fed, task, rounds=2, channels=[Broken()], engine=e, **QUIET) for e in ("local", engine)
    )
    assert here.about["dropped"] == there.about["dropped"]
    close(here, there, 1e-5)


# ---- what is sent ----------------------------------------------------------------------------------------------------


def test_additive_asks_bring_back_sums_only_and_data_are_sent_once(
    engine: ct.engines.RayEngine, fed: ct.Federation, task: ct.Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[Any] = []
    puts: list[Any] = []
    call, put = engine._pool.call, engine._pool.put

    def spied(calls: Any) -> Any:
        got = call(calls)
        answers.extend(dict(answer) for answer in got.values() if isinstance(answer, dict))
        return got

    monkeypatch.setattr(engine._pool, "call", spied)
    monkeypatch.setattr(engine._pool, "put", lambda value: puts.append(value) or put(value))
    fresh = fed.subset(fed.clients)
    ct.fit(ct.FedAvg(), fresh, task, rounds=4, engine=engine, **QUIET)
    shares = [answer for answer in answers if "clients" in answer]
    assert len(shares) == 8  # two actors, four rounds
    for share in shares:
        assert not {"send", "weight", "group"} & share.keys()
        assert share["sums"]["model"]["0.weight"].shape == (1, 6, 4)
        assert share["sums"]["model"]["0.weight"].dtype == torch.float64
    data = [value for value in puts if isinstance(value, dict) and "arrays" in value]
    assert sum(len(shard["arrays"]["y"]) for shard in data) == len(fed.y)  # every row once, in one shard
    assert [shard["present"] for shard in data] == [8, 4]  # about as many rows each


# ---- errors ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fragile(ct.Local):
    """Trains alone, and fails in its third round."""

    def train(self, ctx: Context) -> ct.exchange.Up:
        if ctx.round == 2:
            raise ZeroDivisionError("on purpose")
        return super().train(ctx)


def test_an_error_in_a_client_function_is_said_as_in_one_process(
    engine: ct.engines.RayEngine, fed: ct.Federation, task: ct.Task
) -> None:
    texts = []
    for e in ("local", engine):
        with pytest.raises(ct.errors.ClientError, match="on purpose") as caught:
            ct.fit(Fragile(), fed, task, rounds=4, engine=e, **QUIET)
        texts.append(str(caught.value))
    assert texts[0] == texts[1]


def test_a_round_that_fails_leaves_no_trace(engine: ct.engines.RayEngine, fed: ct.Federation, task: ct.Task) -> None:
    run = Run(Fragile(), fed, task, 0, ct.training.FixedSize(7), (), engine, None)
    run.begin(resume=False, overwrite=False)
    run.one_round()
    run.one_round()
    row, values = run.env.states.packed()
    with pytest.raises(ct.errors.ClientError, match="on purpose"):
        run.one_round()
    row_after, after = run.env.states.packed()
    assert row.tolist() == row_after.tolist()
    assert all(torch.equal(values["model"][k], after["model"][k]) for k in after["model"])


def test_a_program_is_in_one_cluster(engine: ct.engines.RayEngine) -> None:
    with pytest.raises(ct.errors.ConfigError, match=r"its own Ray and cannot also join the one at 127\.0\.0\.1:1"):
        ct.engines.RayEngine(address="127.0.0.1:1")


# ---- actors that die -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Assassin(Channel):
    """Kills an actor of the engine when an ask is about to go out (so in the middle of a round for later asks)."""

    victims: tuple[tuple[int, int, tuple[int, ...]], ...]  # round, ask, actors
    processes: Any

    def ask(self, ask: ct.exchange.Ask, where: Where) -> ct.exchange.Ask:
        for round, number, actors in self.victims:
            if (where.round, where.ask) == (round, number):
                alive = self.processes()
                for actor in actors:
                    os.kill(alive[actor], signal.SIGKILL)
        return ask

    def __reduce__(self) -> Any:
        return Channel, ()


@pytest.mark.parametrize("name", ["momentum_clustering", "scaffold"])
def test_a_killed_actor_is_rebuilt_and_the_result_is_the_same(
    name: str, engine: ct.engines.RayEngine, fed: ct.Federation, task: ct.Task
) -> None:
    """In the middle of a round, after the first of its asks has changed states, and both actors between rounds. The clients
    of the cohorts change, so states come from several commits."""
    how: dict[str, Any] = {"rounds": 5, "cohort": 8, **QUIET}
    whole = ct.fit(configured(name), fed, task, engine=engine, **how)
    before = pids(engine)
    channel = Assassin(((2, 1, (1,)), (3, 0, (0, 1))), lambda: pids(engine))
    torn = ct.fit(configured(name), fed, task, engine=engine, channels=[channel], **how)
    assert not set(before) & set(pids(engine))
    assert difference(whole, torn) == 0.0
    same_course(whole, torn)


@dataclass(frozen=True)
class Suicide(Channel):
    """An actor's process ends while its clients work, once."""

    flag: str

    def up(self, send: Any, clients: Any, ask: ct.exchange.Ask, where: Where) -> Any:
        if where.round == 2 and 10 in clients and not Path(self.flag).exists():
            Path(self.flag).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return send


def test_an_actor_that_dies_at_work_costs_nothing_but_time(
    engine: ct.engines.RayEngine, fed: ct.Federation, task: ct.Task, tmp_path: Path
) -> None:
    algorithm = configured("ditto")
    torn = ct.fit(algorithm, fed, task, rounds=4, engine=engine, channels=[Suicide(str(tmp_path / "dead"))], **QUIET)
    assert (tmp_path / "dead").exists()
    whole = ct.fit(algorithm, fed, task, rounds=4, engine=engine, **QUIET)
    assert difference(whole, torn) == 0.0


@dataclass(frozen=True)
class Always(Channel):
    def up(self, send: Any, clients: Any, ask: ct.exchange.Ask, where: Where) -> Any:
        if 10 in clients:
            os.kill(os.getpid(), signal.SIGKILL)
        return send


def test_an_actor_that_dies_every_time_ends_the_run_in_a_sentence(
    engine: ct.engines.RayEngine, fed: ct.Federation, task: ct.Task
) -> None:
    with pytest.raises(ct.errors.EngineError, match=r"died 3 times in a row.*resume from the last checkpoint"):
        ct.fit(ct.FedAvg(), fed, task, rounds=1, engine=engine, channels=[Always()], **QUIET)
    assert ct.fit(ct.FedAvg(), fed, task, rounds=1, engine=engine, **QUIET).about["finished"]


# ---- checkpoints -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ditto", "ifca", "fedbn"])
def test_checkpoints_move_between_engines(
    name: str, engine: ct.engines.RayEngine, fed: ct.Federation, task: ct.Task, tmp_path: Path
) -> None:
    how: dict[str, Any] = {"cohort": 5, "seed": 4, "channels": [ct.exchange.Dropout(0.2)], **QUIET}
    whole = ct.fit(configured(name), fed, task, rounds=6, **how)
    for rounds, e in ((2, "local"), (4, engine), (6, "local")):
        moved = ct.fit(configured(name), fed, task, rounds=rounds, out=tmp_path, resume=rounds > 2, engine=e, **how)
    close(whole, moved, 1e-5)
    same_course(whole, moved)
    back = ct.fit(configured(name), fed, task, rounds=6, out=tmp_path / "there", engine=engine, **how)
    again = ct.fit(configured(name), fed, task, rounds=6, out=tmp_path / "there", resume=True, engine="loop", **how)
    assert difference(back, again) == 0.0


# ---- clusters --------------------------------------------------------------------------------------------------------

TWO_NODES = """
import os
os.environ |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
import ray
from ray.cluster_utils import Cluster
import coterie as ct

if __name__ == "__main__":
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    second = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    federation = ct.datasets.heart()
    algorithm = ct.Ditto(local=ct.LocalSGD(steps=5, lr=0.1))
    engine = ct.engines.RayEngine(address=cluster.address, actors=2)
    there = ct.fit(algorithm, federation, rounds=3, engine=engine, alone=False)
    here = ct.fit(algorithm, federation, rounds=3, alone=False)
    from ray._private.state import actors
    nodes = {a["Address"]["NodeID"] for a in actors().values() if a["State"] == "ALIVE"}
    print("nodes", len(nodes))
    lose = lambda run: cluster.remove_node(second, allow_graceful=False) if run.done == 2 else None
    torn = ct.fit(algorithm, federation, rounds=3, engine=engine, alone=False, callbacks=[lose])
    for name, other in (("difference", there), ("torn", torn)):
        one, two = (r.evaluation.personal(r.evaluation.everyone()) for r in (here, other))
        print(name, max(float((one[k] - two[k]).abs().max()) for k in one))
    ray.shutdown()
    cluster.shutdown()
"""


def test_two_nodes_one_of_which_is_lost(tmp_path: Path) -> None:
    file = tmp_path / "two_nodes.py"
    file.write_text(textwrap.dedent(TWO_NODES))
    env = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=400, env=env)
    said = dict(line.split() for line in done.stdout.splitlines() if line.startswith(("nodes", "difference", "torn")))
    assert done.returncode == 0, done.stderr[-2000:]
    assert said["nodes"] == "2"
    assert float(said["difference"]) < 1e-5
    assert float(said["torn"]) < 1e-5


def test_a_closed_engine_says_so_and_the_next_one_has_actors_of_its_own() -> None:
    fed = ct.datasets.digits(clients=4, seed=0)
    engine = ct.engines.RayEngine(actors=1)
    ct.fit(ct.FedAvg(), fed, rounds=1, engine=engine, alone=False, progress=False)
    engine.close()
    with pytest.raises(EngineError, match="ended by close"):
        ct.fit(ct.FedAvg(), fed, rounds=1, engine=engine, alone=False, progress=False)
    again = ct.engines.RayEngine(actors=1)
    ct.fit(ct.FedAvg(), fed, rounds=1, engine=again, alone=False, progress=False)
    again.close()
