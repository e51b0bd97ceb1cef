"""What tells two neighbouring federations, or a secret cohort, apart although no message moved: types, shapes, names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import coterie as ct
from coterie.algorithms import ALGORITHMS
from coterie.base.tree import flatten
from coterie.errors import ConfigError
from coterie.exchange.messages import Ask, Context, MeanBy, Up
from coterie.privacy import ExactNoise, public
from coterie.training.neighbours import Recorder
from coterie.training.private_run import Session

pytestmark = pytest.mark.filterwarnings("ignore::coterie.errors.CoterieWarning")
EXACT = ct.Privacy(3.0, 1e-6, clip=0.5)
FEW = ct.LocalSGD(steps=2, lr=0.1, batch_size=None)
WILD = ct.FedAvg(ct.LocalSGD(steps=30, lr=5.0, batch_size=None, clip=10.0))


def federation(first: Any, **options: Any) -> ct.Federation:
    """Four clients, the first with these rows."""
    rng = np.random.default_rng(0)
    data = {f"client {i}": (rng.normal(size=first.shape), np.arange(len(first)) % 3) for i in range(4)}
    data["client 0"] = (first, data["client 0"][1])
    return ct.Federation.from_arrays(data, classes=public([0, 1, 2]), **options)


def messages(fed: ct.Federation, task: Any, algorithm: Any = WILD) -> dict[Any, Any]:
    kept = Recorder()
    options: dict[str, Any] = {"rounds": 1, "alone": False, "progress": False, "privacy": EXACT}
    receipt = ct.fit(algorithm, fed, task, channels=[public(kept)], **options).receipt
    assert receipt is not None
    assert receipt.valid, receipt.reasons
    return kept.sent


def require_equal(one: dict[Any, Any], two: dict[Any, Any]) -> None:
    for client in (c for c in one if c != "client 0"):
        for (_, a), (_, b) in zip(one[client], two[client], strict=True):
            assert a.dtype == b.dtype
            assert torch.equal(a, b)


# ---- types -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_type_of_one_clients_images_is_not_that_of_all(dtype: Any) -> None:
    """Bytes of all clients stay bytes, and become float32; one client with floats must not make float64 of them."""
    rng = np.random.default_rng(1)
    images = {f"client {i}": (rng.integers(0, 256, (9, 1, 6, 6)).astype(np.uint8), np.arange(9) % 3) for i in range(4)}
    floats = images | {"client 0": (images["client 0"][0] / np.float32(255), images["client 0"][1])}
    task = ct.Task(ct.models.mlp(36, 16, 3))
    one, two = (ct.Federation.from_arrays(d, classes=public([0, 1, 2]), dtype=dtype) for d in (images, floats))
    require_equal(messages(one, task), messages(two, task))


@pytest.mark.parametrize("kind", [np.int64, np.float32, np.float64])
def test_whole_numbers_are_rounded_once_whatever_the_others_have(kind: Any) -> None:
    """2⁶⁰ + 2³⁶ + 1 rounds up to float32; by way of float64 it would round down."""
    large = np.full((6, 2), 2**60 + 2**36 + 1, np.int64)
    data = {"a": (np.ones((6, 2), kind), np.arange(6) % 2), "b": (large, np.arange(6) % 2)}
    fed = ct.Federation.from_arrays(data, test_fraction=0.0)
    assert (fed.train("b")[0] == float(2**60 + 2**37)).all()


@pytest.mark.parametrize("own", [True, False])
def test_an_id_out_of_range_does_not_reach_the_next_clients_embedding(own: bool) -> None:
    """Batched over clients, torch would look it up in another client's table, and train that."""
    words, many = 7, 300

    def network() -> nn.Module:
        return nn.Sequential(nn.Embedding(words, 3), nn.Flatten(), nn.Linear(12, 2))

    task = ct.Task(ct.models.transformer(words, 2, length=4, width=8, heads=2, layers=1) if own else network)
    rng = np.random.default_rng(0)
    data = {f"client {i}": (rng.integers(0, words, (8, 4)), np.arange(8) % 2) for i in range(many)}
    data["client 5"] = (np.full((8, 4), words), data["client 5"][1])  # no row of it is tried in advance
    fed = ct.Federation.from_arrays(data, classes=public([0, 1]), dtype="int64", test_fraction=0.0)
    with pytest.raises(ct.errors.ClientError, match="index out of range"):
        messages(fed, task)


class Waves(nn.Module):
    """A network that only autograd knows, whose batched form differs much at large numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(7, 32), nn.Linear(32, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(torch.cos(self.first(x)))
        return out


def test_what_a_plain_run_found_out_about_a_network_does_not_reach_a_private_one() -> None:
    """It was found on clients' rows: one client with large numbers would have all others run another way."""
    rows = np.random.default_rng(1).normal(size=(30, 7))
    found = []
    for size in (1.0, 1e6):
        task, fed = ct.Task(Waves), federation(size * rows)
        ct.fit(ct.FedAvg(FEW), fed, task, rounds=1, alone=False, progress=False)
        found.append(messages(fed, public(task)))
    require_equal(*found)


# ---- shapes and names ------------------------------------------------------------------------------------------------


def test_a_result_does_not_hold_a_checksum_of_all_rows() -> None:
    """Whoever knows all other clients' rows could tell by it which of two sets of rows the last one has."""
    first = np.random.default_rng(1).normal(size=(12, 4))
    task = ct.Task(ct.models.mlp(4, 3, 3))
    texts = []
    for rows in (first, first + 1):
        result = ct.fit(ct.FedAvg(FEW), federation(rows), task, rounds=1, alone=False, progress=False, privacy=EXACT)
        texts.append({k: str(v) for k, v in result.about.items()})
    assert texts[0] == texts[1]


@pytest.fixture
def nothing_released(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExactNoise, "gaussian", lambda self, total, sigma: np.zeros_like(total))


def ended(algorithm: Any, fed: ct.Federation, cohorts: list[list[int]], patch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """The server's state and the receipt's lines after rounds of these cohorts."""

    def drawn(session: Session, *_: Any) -> Any:
        session._asked = 0
        return np.array(cohorts.pop(0), np.int64)

    with patch.context() as patched:
        patched.setattr(Session, "drawn", drawn)
        task = ct.Task(ct.models.mlp(4, 3, 3))
        result = ct.fit(
            algorithm, fed, task, rounds=len(cohorts), cohort=0.3, alone=False, progress=False, privacy=EXACT
        )
    state = {k: t for k, t in flatten(vars(result.state)).items() if isinstance(t, torch.Tensor)}
    return state, [(line["dimension"], line["count"]) for line in result.receipt.releases]


_ADDITIVE = [
    "adaped", "apfl", "ditto", "fedavg", "fedem", "fedrep", "finetuned", "gaussian_prior", "hypcluster", "ifca", "knnper",
    "laplace_prior", "mutual_learning", "oracle", "perfedavg", "pfedme", "quped", "scaffold",
]  # fmt: skip


@pytest.mark.usefixtures("nothing_released")
@pytest.mark.parametrize("name", _ADDITIVE)
def test_neither_state_nor_receipt_tells_who_was_drawn_or_whether_anybody_was(
    name: str, make_fed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed = make_fed().declare_public("classes", "kind", "clusters")
    made = ALGORITHMS[name](**({"clusters": 2} if name in ("ifca", "hypcluster") else {}))
    before = ended(made, fed, [[0, 1], [2, 3], [4]], monkeypatch)
    for cohorts in ([[5], [6, 7], [8]], [[], [0], []]):
        after = ended(made, fed, cohorts, monkeypatch)
        assert before[1] == after[1]
        assert before[0].keys() == after[0].keys()
        for path, t in before[0].items():
            assert torch.equal(t, after[0][path]), path


@dataclass(frozen=True)
class State:
    model: Any


@dataclass(frozen=True)
class Odd(ct.exchange.Algorithm):
    """Sends an update by itself whose shape nobody but a client knows."""

    says: bool

    def init(self, task: Any, population: Any, seed: int, start: Any) -> State:
        return State(start)

    def round(self, state: State, cohort: Any) -> Any:
        known = {"odd": torch.zeros(5)} if self.says else {}
        yield Ask(self.train, cohort.clients, reduce=MeanBy(), updates={"odd": None}, known=known)
        return state

    def train(self, ctx: Context) -> Up:
        return Up({"odd": torch.ones(5) * ctx.n})

    def personal(self, ctx: Context, state: State) -> Any:
        return state.model


def test_an_ask_of_a_sampled_round_says_what_shape_its_answer_has(fed: ct.Federation, task: ct.Task) -> None:
    options: dict[str, Any] = {"rounds": 1, "alone": False, "progress": False, "privacy": EXACT}
    assert ct.fit(public(Odd(True)), fed, task, cohort=0.9, **options).receipt is not None
    assert ct.fit(public(Odd(False)), fed, task, **options).receipt is not None  # everybody: somebody is always there
    with pytest.raises(ConfigError, match="does not say what shape 'odd'"):
        ct.fit(public(Odd(False)), fed, task, cohort=0.9, **options)
