"""A new algorithm is one file and one line; what it is written with is public."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

import coterie as ct
from coterie.algorithms import ALGORITHMS, NAMES
from coterie.comparison.methods import way
from coterie.evidence.scores import WAYS
from coterie.exchange import Algorithm, Ask, MeanBy, Population, Up, features, joined, split

ROOT = Path(__file__).parents[2]

FILE = '''
from dataclasses import dataclass, field
from coterie.exchange import Algorithm, Ask, From, LocalSGD, MeanBy, Up, row

@dataclass(frozen=True)
class HalfwayState:
    model: dict

@dataclass(frozen=True)
class Halfway(Algorithm):
    """The server goes half of the way to the clients' mean."""

    way = "together"
    local: LocalSGD = field(default_factory=LocalSGD)

    def init(self, task, population, seed, start):
        return HalfwayState(start)

    def round(self, state, cohort):
        ask = Ask(self.train, cohort.clients, {"model": state.model}, reduce=MeanBy(), updates={"model": From("model")})
        reply = yield ask
        if not len(reply.clients):
            return state
        mean = row(reply.values["model"], 0)
        return HalfwayState({name: (t + mean[name]) / 2 for name, t in state.model.items()})

    def train(self, ctx, model):
        model, loss = self.local.fit(ctx, model)
        return Up(send={"model": model}, weight=ctx.n, info={"loss": loss})

    def personal(self, ctx, state):
        return state.model
'''

CHECK = """
import coterie as ct
from conformance_settings import INDIVIDUAL, NAMES, PAIRS, close, configured, small_task
from coterie.algorithms import ALGORITHMS
from coterie.cli.config import Config
from coterie.cli import app
from coterie.comparison.methods import parse, way
from typer.testing import CliRunner

assert ALGORITHMS["halfway"] is ct.Halfway and "Halfway" in ct.__all__
assert way(ct.Halfway(), 5) == "together" and parse("halfway")["halfway"] is ct.Halfway
assert "halfway" in NAMES and "halfway" not in INDIVIDUAL | PAIRS
assert Config.parse({"data": {"name": "heart"}, "algorithm": {"name": "halfway"}}).algorithm() == ct.Halfway()
assert "halfway" in CliRunner().invoke(app, ["compare", "--help"], env={"COLUMNS": "2000"}).output
heart, made = ct.datasets.heart(), configured("halfway")
close(*(ct.fit(made, heart, rounds=2, engine=engine, alone=False) for engine in ("local", "loop")))
"""


def test_a_new_algorithm_is_one_file_and_one_line(tmp_path):
    """In a copy of the package: the public name, the command line, configurations, comparisons and the conformance suite."""
    package = tmp_path / "coterie"
    shutil.copytree(ROOT / "src" / "coterie", package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "algorithms" / "halfway.py").write_text(FILE, "utf-8")
    with (package / "algorithms" / "__init__.pyi").open("a", encoding="utf-8") as stub:
        stub.write("from coterie.algorithms.halfway import Halfway as Halfway\n")
    path = os.pathsep.join([str(tmp_path), str(ROOT / "tests" / "conformance")])
    done = subprocess.run(
        [sys.executable, "-c", CHECK],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_every_algorithm_says_in_which_way_clients_learn():
    for name, kind in ALGORITHMS.items():
        assert kind.way in WAYS, name
        assert way(kind, 1) == way(kind.example(), 7) == kind.way
        assert isinstance(kind.example(), kind)

    class Unknown:
        pass

    assert [way(Unknown(), groups) for groups in (1, 3)] == ["together", "groups"]


def test_one_algorithm_is_imported_without_the_others():
    code = (
        "import sys, coterie as ct; from coterie.algorithms import NAMES; assert 'torch' not in sys.modules;"
        "ct.FedAvg; names = [m for m in sys.modules if m.startswith(('coterie.incentives', 'coterie.algorithms.'))];"
        "assert names == ['coterie.algorithms.families', 'coterie.algorithms.fedavg'], names"
    )
    assert len(NAMES) == len(set(NAMES)) == len(ALGORITHMS)
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- body, head and features -----------------------------------------------------------------------------------------


class Branching(nn.Module):
    """A network that is no nn.Sequential; its head is `last`."""

    def __init__(self):
        super().__init__()
        self.left, self.right, self.last = nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(6, 3)

    def forward(self, x):
        return self.last(torch.cat([self.left(x).tanh(), self.right(x)], 1))


def layered():
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


@pytest.mark.parametrize(("made", "head"), [(layered, "2."), (Branching, "last.")])
def test_a_model_is_split_into_a_body_and_a_head_and_joined_again(made, head):
    params = ct.Task(made).init(0, torch.float32)
    body, own = split(params)
    assert list(own) == [head + "weight", head + "bias"]
    assert list(body) + list(own) == list(params)
    assert list(joined(body, own, params)) == list(params)
    first = next(iter(params)).partition(".")[0]
    assert list(split(params, [first])[1]) == [first + ".weight", first + ".bias"]
    with pytest.raises(ct.errors.ConfigError, match="got 'nowhere', none of"):
        split(params, ["nowhere"])
    whole = {"weight": torch.ones(2, 2), "bias": torch.ones(2)}
    assert split(whole) == ({}, whole)


@pytest.mark.parametrize("made", [layered, Branching, lambda: nn.Linear(4, 3)])
def test_features_are_what_the_head_is_given(made):
    """The head on the features gives the network's outputs."""
    torch.manual_seed(0)
    network, x = made(), torch.randn(5, 4)
    params = {name: t.detach() for name, t in network.named_parameters()}
    found = features(network, params, x)
    weight, bias = split(params)[1].values()
    torch.testing.assert_close(found @ weight.T + bias, network(x).detach())


@dataclass(frozen=True)
class SeenState:
    mean: torch.Tensor
    classes: int


@dataclass(frozen=True)
class Seen(Algorithm):
    """The mean features of all clients, at the start model."""

    def init(self, task, population, seed, start):
        return SeenState(torch.zeros(6), -1 if population.classes is None else len(population.classes))

    def round(self, state, cohort):
        reply = yield Ask(self.look, cohort.clients, reduce=MeanBy())
        return SeenState(reply.values["mean"][0], state.classes)

    def look(self, ctx):
        rows = ctx.features(ctx.initial)
        return Up(send={"mean": (rows * ctx.mask.unsqueeze(1)).sum(0) / ctx.mask.sum()}, weight=ctx.n)

    def personal(self, ctx, state):
        return ctx.initial


@pytest.mark.parametrize("made", [layered, Branching])
def test_a_client_function_sees_its_features_on_both_engines(make_fed, made):
    fed, task = make_fed(sizes=(12, 9, 20)), ct.Task(made)
    one, two = (ct.fit(Seen(), fed, task, rounds=1, engine=e, alone=False).state for e in ("local", "loop"))
    torch.testing.assert_close(one.mean, two.mean)
    start = task.init(0, torch.float32)
    rows = torch.cat([fed.train(i)[0] for i in fed.clients])
    torch.testing.assert_close(one.mean, features(task.module(params=start), start, rows).mean(0))


def test_a_private_run_tells_classes_that_were_declared_public(make_fed):
    told = []

    class Told(ct.FedAvg):
        def init(self, task, population, seed, start):
            told.append(population.classes)
            return super().init(task, population, seed, start)

    fed, budget = make_fed(sizes=(12, 9, 20)), ct.Privacy(60.0, 1e-3, 1.0)
    for data in (fed, fed.declare_public("classes", "kind")):
        ct.fit(Told(), data, ct.Task(layered), rounds=1, privacy=budget, alone=False)
    assert told == [None, fed.classes]


def test_the_population_tells_the_classes(make_fed):
    fed = make_fed(sizes=(12, 9, 20))
    assert ct.fit(Seen(), fed, ct.Task(layered), rounds=0, alone=False).state.classes == len(fed.classes) == 3
    numbers = make_fed(sizes=(12, 9), kind="regression")
    task = ct.Task(lambda: nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 1)), "mse")
    assert ct.fit(Seen(), numbers, task, rounds=0, alone=False).state.classes == -1
    assert Population(2, fed.n_train, None).classes is None
