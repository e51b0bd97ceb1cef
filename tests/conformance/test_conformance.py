"""What every algorithm in the registry must do. A new algorithm joins by being in the registry.

The settings are in `conformance_settings.py`. An algorithm whose defaults cannot train the small model here overrides
`example`; one made for two clients says `exactly = 2`, and one without a private form `individual = True`; one that needs
classes, or a network of several layers, says so with a ConfigError or TaskError that contains the word "class" or "layers".
One file, so that it can be read as the list of what is demanded.
"""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conformance_settings import (
    COHORT,
    INDIVIDUAL,
    NAMES,
    PAIR,
    PAIRS,
    ROUNDS,
    TOLERANCE,
    close,
    configured,
    same_course,
    some,
    tensors,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import coterie as ct
from coterie.algorithms import ALGORITHMS
from coterie.base.settings import with_setting
from coterie.base.tree import flatten
from coterie.exchange.channels.base import Channel, Where
from coterie.exchange.channels.updates import references
from coterie.exchange.messages import Ints
from coterie.training.run import Run


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def algorithm(name: str) -> Any:
    return configured(name)


@pytest.fixture
def fed(name: str, fed: ct.Federation, make_fed: Any) -> ct.Federation:
    return make_fed(sizes=PAIR) if name in PAIRS else fed


@pytest.fixture
def fed64(name: str, fed64: ct.Federation, make_fed: Any) -> ct.Federation:
    return make_fed(sizes=PAIR, dtype="float64") if name in PAIRS else fed64


@pytest.fixture
def numbers(name: str, numbers: ct.Federation, make_fed: Any) -> ct.Federation:
    return make_fed(sizes=PAIR, kind="regression") if name in PAIRS else numbers


def assert_same(a: ct.Result, b: ct.Result) -> None:
    """Bit for bit."""
    one, two = tensors(a), tensors(b)
    assert one.keys() == two.keys()
    for name in one:
        assert torch.equal(one[name], two[name]), name
    drop = [c for c in a.history.columns if c == "seconds"]
    assert a.history.drop(columns=drop).equals(b.history.drop(columns=drop))
    assert a.clusters.equals(b.clusters)


def test_the_registry_holds_every_public_algorithm_by_a_name_the_command_line_can_take() -> None:
    public = {v for n in ct.__all__ if ct.exchange.Algorithm in getattr(v := getattr(ct, n), "__mro__", ())}
    assert public - {ct.exchange.Algorithm} == set(ALGORITHMS.values())
    assert all(name == name.lower() and name.isidentifier() for name in ALGORITHMS)
    assert all(dataclasses.is_dataclass(a) and a.__dataclass_params__.frozen for a in ALGORITHMS.values())  # type: ignore[attr-defined]


def test_same_seed_same_numbers_other_seed_others(algorithm: Any, fed: ct.Federation, task: ct.Task) -> None:
    def run(seed: int) -> ct.Result:
        return ct.fit(algorithm, fed, task, rounds=ROUNDS, seed=seed, cohort=some(fed, 7))

    one = run(1)
    assert_same(one, run(1))
    other = tensors(run(2))
    assert any(not torch.equal(t, other[name]) for name, t in tensors(one).items() if t.is_floating_point())


def test_a_round_changes_neither_the_state_it_was_given_nor_the_global_generators(
    algorithm: Any, fed: ct.Federation, task: ct.Task
) -> None:
    run = Run(algorithm, fed, task, 0, ct.training.Everyone(), (), ct.engines.LocalEngine(), None)
    run.begin(resume=False, overwrite=False)
    run.one_round()
    given, initial = run.state, run.env.initial
    before, start = copy.deepcopy(vars(given)), copy.deepcopy(initial)
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    run.one_round()
    for (name, old), (_, new) in zip(flatten(before).items(), flatten(vars(given)).items(), strict=True):
        assert torch.equal(old, new) if isinstance(old, torch.Tensor) else old == new, name
    assert all(torch.equal(start[name], initial[name]) for name in start)
    assert torch.equal(torch_state, torch.get_rng_state())
    assert np.array_equal(numpy_state, np.random.get_state()[1])  # noqa: NPY002


def test_equal_on_both_engines(algorithm: Any, fed: ct.Federation, task: ct.Task) -> None:
    fast, plain = (
        ct.fit(algorithm, fed, task, rounds=ROUNDS, cohort=some(fed, COHORT), engine=e) for e in ("local", "loop")
    )
    close(fast, plain)
    same_course(fast, plain)
    np.testing.assert_allclose(fast.scores()["log_loss"], plain.scores()["log_loss"], rtol=1e-3, atol=1e-3)


def test_equal_on_both_engines_to_rounding_in_float64(algorithm: Any, fed64: ct.Federation, task: ct.Task) -> None:
    fast, plain = (ct.fit(algorithm, fed64, task, rounds=ROUNDS, engine=e) for e in ("local", "loop"))
    assert all(t.dtype == torch.float64 for n, t in tensors(fast).items() if n.startswith("personal/"))
    close(fast, plain, 1e-10)


def test_resumed_in_the_middle_it_ends_bit_identically(
    algorithm: Any, fed: ct.Federation, task: ct.Task, tmp_path: Path
) -> None:
    options: dict[str, Any] = {
        "cohort": some(fed, 5),
        "seed": 4,
        "channels": [ct.exchange.Dropout(0.2)],
        "alone": False,
    }
    whole = ct.fit(algorithm, fed, task, rounds=5, **options)
    ct.fit(algorithm, fed, task, rounds=2, out=tmp_path, **options)
    assert_same(whole, ct.fit(algorithm, fed, task, rounds=5, out=tmp_path, resume=True, **options))
    assert_same(
        whole, ct.fit(algorithm, fed, task, rounds=5, out=tmp_path, resume=True, **options)
    )  # nothing left to do


class Reversed:
    """The cohort in another order."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def sample(self, federation: ct.Federation, seed: int, round: int) -> Ints:
        order: Ints = self.inner.sample(federation, seed, round)[::-1].copy()
        return order


def test_the_order_of_the_cohort_does_not_matter(algorithm: Any, fed: ct.Federation, task: ct.Task) -> None:
    for inner in (ct.training.Everyone(), ct.training.FixedSize(some(fed, 7))):
        one = ct.fit(algorithm, fed, task, rounds=ROUNDS, cohort=inner)
        close(one, ct.fit(algorithm, fed, task, rounds=ROUNDS, cohort=Reversed(inner)), 1e-6)


def test_one_client(name: str, algorithm: Any, make_fed: Any, task: ct.Task) -> None:
    if name in PAIRS:
        with pytest.raises(ct.errors.ConfigError, match="exactly two"):
            ct.fit(algorithm, make_fed(sizes=(20,)), task, rounds=ROUNDS)
        return
    result = ct.fit(algorithm, make_fed(sizes=(20,)), task, rounds=ROUNDS)
    assert len(result.scores()) == 1
    assert np.isfinite(result.history["loss"]).all()


@pytest.mark.parametrize("nobody", ["empty cohort", "all replies lost"])
def test_a_round_with_nobody(algorithm: Any, fed: ct.Federation, task: ct.Task, nobody: str) -> None:
    options: dict[str, Any] = {"cohort": 1e-9} if nobody == "empty cohort" else {"channels": [ct.exchange.Dropout(1.0)]}
    result = ct.fit(algorithm, fed, task, rounds=2, **options)
    assert len(result.history) == 2
    assert (result.history["bytes_up"] == 0).all()
    if nobody == "all replies lost":
        assert (result.history["lost"] == len(fed)).all()
    assert np.isfinite(result.scores()["log_loss"]).all()
    start = ct.fit(algorithm, fed, task, rounds=0)
    for name, t in flatten(vars(start.state)).items():  # nothing was learnt
        assert not isinstance(t, torch.Tensor) or torch.equal(t, flatten(vars(result.state))[name]), name
    ct.fit(algorithm, fed, task, rounds=3, cohort=0.1)  # some rounds with nobody, some with few


def test_a_client_never_sampled_still_has_a_model_and_a_score(
    algorithm: Any, fed: ct.Federation, task: ct.Task
) -> None:
    result = ct.fit(algorithm, fed, task, rounds=2, cohort=2, seed=1, alone="equal budget")
    table = result.evaluate()
    assert list(table.index) == list(fed.clients)
    assert table[["accuracy", "log_loss", "gain"]].notna().all().all()
    last = fed.clients[some(fed, 4) - 1]
    x, _ = fed.test(last)
    assert result.model(last)(x).shape == (len(x), 3)
    assert len(result.clusters) == len(fed)


CANARIES = ("nothing", "as it is", "huge", "flipped", "empty")
BAD = st.floats(width=32, allow_nan=True, allow_infinity=True) | st.sampled_from([3e38, -1e30, 1e19, 0.0])


def with_rows(fed: ct.Federation, x: Any, y: Any = None) -> ct.Federation:
    """The federation with other rows of its second client."""
    rows = slice(int(fed.offsets[1]), int(fed.offsets[2]))
    new_x, new_y = fed.x.clone(), fed.y.clone()
    new_x[rows] = torch.as_tensor(x, dtype=new_x.dtype)
    if y is not None:
        new_y[rows] = y
    return dataclasses.replace(fed, x=new_x, y=new_y)


def with_canary(fed: ct.Federation, canary: str) -> tuple[ct.Federation, list[Channel]]:
    """The federation with a canary as its second client; "nothing" lets it contribute nothing at all."""
    rows = slice(int(fed.offsets[1]), int(fed.offsets[2]))
    x, y = fed.x[rows], fed.y[rows]
    made = {
        "huge": lambda: with_rows(fed, 1e30 * torch.sign(x)),
        "flipped": lambda: with_rows(fed, -50 * x, y.flip(0)),
        "empty": lambda: with_rows(fed, 0.0, torch.zeros_like(y)),
    }
    return made.get(canary, lambda: fed)(), [Broken("data")] if canary == "nothing" else []


@pytest.fixture
def spied(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """(mechanism, integers before noise) of every release."""
    seen: list[tuple[Any, Any]] = []
    for kind in (ct.privacy.JointSum, ct.privacy.GroupSums):

        def spy(self: Any, total: Any, *given: Any, release: Any = kind.give_out, **more: Any) -> Any:
            seen.append((self, total.astype(np.float64)))
            return release(self, total, *given, **more)

        monkeypatch.setattr(kind, "give_out", spy)
    return seen


def limit(mechanism: Any, adjacency: str) -> float:
    """Δ of the integers."""
    made = dataclasses.replace(mechanism, adjacency=adjacency)
    return float(getattr(made, "lattice_sensitivity", made.sensitivity / made.lattice.step))


@pytest.mark.filterwarnings("ignore::coterie.errors.CoterieWarning")
def test_one_clients_data_move_the_released_integers_by_at_most_the_sensitivity(
    name: str, algorithm: Any, fed: ct.Federation, task: ct.Task, spied: list[tuple[Any, Any]]
) -> None:
    """Canaries and arbitrary rows (NaN, infinity, anything) of one client, on the integers that noise is added to.

    Zero-out: nothing at all against each of them; replace: any two. This is the mode that earns a receipt."""
    privacy = ct.Privacy(3.0, 1e-6, clip=0.3)
    options: dict[str, Any] = {"rounds": 1, "privacy": privacy, "alone": False}
    if name in INDIVIDUAL:
        with pytest.raises(
            ct.errors.ConfigError, match=r"Privacy (needs sums|clips updates)|robust aggregate needs clear"
        ):
            ct.fit(algorithm, fed, task, **options)
        return
    shape = (int(fed.offsets[2] - fed.offsets[1]), fed.n_features)
    for canary in ("nothing", "flipped"):
        other, channels = with_canary(fed, canary)
        ct.fit(algorithm, other, task, channels=channels, **options)

    @settings(max_examples=2)
    @given(arrays(np.float32, shape, elements=BAD))
    def anything(x: Any) -> None:
        ct.fit(algorithm, with_rows(fed, x), task, **options)

    anything()
    if name == "local":
        assert not spied
        return
    mechanism, nothing = spied[0]
    far = max(float(np.linalg.norm(total - nothing)) for _, total in spied)
    assert 0.03 * limit(mechanism, "zero-out") < far <= limit(mechanism, "zero-out")  # and the data did move it
    for i, (_, one) in enumerate(spied):
        for _, two in spied[:i]:
            assert float(np.linalg.norm(one - two)) <= limit(mechanism, "replace")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::coterie.errors.CoterieWarning")
@pytest.mark.parametrize("adjacency", ["zero-out", "replace"])
@pytest.mark.parametrize("noise", ["simulation", "exact"])
def test_every_canary_in_every_setting_moves_the_integers_by_at_most_the_sensitivity(
    name: str,
    algorithm: Any,
    fed: ct.Federation,
    task: ct.Task,
    adjacency: str,
    noise: str,
    spied: list[tuple[Any, Any]],
) -> None:
    if name in INDIVIDUAL | {"local"}:
        return
    privacy = ct.Privacy(3.0, 1e-6, clip=0.3, noise=noise, adjacency=adjacency)
    for canary in CANARIES:
        other, channels = with_canary(fed, canary)
        ct.fit(algorithm, other, task, rounds=1, privacy=privacy, channels=channels, alone=False)
    assert len(spied) == len(CANARIES)
    mechanism, totals = spied[0][0], [total for _, total in spied]
    rounding = 0.0 if noise == "exact" else np.sqrt(totals[0].size)
    pairs = [(i, j) for i in range(len(totals)) for j in range(i) if adjacency == "replace" or j == 0]
    assert max(float(np.linalg.norm(totals[i] - totals[j])) for i, j in pairs) <= limit(mechanism, adjacency) + rounding


@pytest.mark.filterwarnings("ignore::coterie.errors.CoterieWarning")
def test_a_simulation_with_other_data_of_one_client_ends_within_the_sensitivity(
    name: str, algorithm: Any, fed: ct.Federation, task: ct.Task
) -> None:
    """From outside: same seed, one round, the server's state against that without the client. Where counts are released
    with the sums, the noisy count divides, so only methods with one group are bounded by Δ / the number of clients."""
    if name in INDIVIDUAL:
        return
    privacy = ct.Privacy(3.0, 1e-6, clip=0.3, noise="simulation")
    states = []
    for canary in ("nothing", "huge", "NaN"):
        other, channels = with_canary(fed, canary) if canary != "NaN" else (with_rows(fed, float("nan")), [])
        result = ct.fit(algorithm, other, task, rounds=1, privacy=privacy, channels=channels, alone=False)
        states.append({k: t.double() for k, t in flatten(vars(result.state)).items() if isinstance(t, torch.Tensor)})
        assert all(torch.isfinite(t).all() for t in states[-1].values())
    if name in ("ifca", "hypcluster", "oracle"):
        return
    scale = float(algorithm.server_lr) if hasattr(algorithm, "server_lr") else 1.0
    if name == "feddyn":  # the server goes as far again as the mean went, and h goes α times as far
        scale = float(np.hypot(2, algorithm.alpha))
    for state in states[1:]:
        moved = sum(float((state[k] - states[0][k]).square().sum()) for k in state) ** 0.5
        assert moved <= scale * 0.3 / len(fed) * (1 + 1e-4) + 1e-6


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::coterie.errors.CoterieWarning")
def test_private_runs_are_equal_on_both_engines(name: str, algorithm: Any, fed: ct.Federation, task: ct.Task) -> None:
    if name in INDIVIDUAL:
        return
    privacy = ct.Privacy(3.0, 1e-6, clip=0.3, noise="simulation")
    fast, plain = (
        ct.fit(algorithm, fed, task, rounds=2, privacy=privacy, engine=e, alone=False) for e in ("local", "loop")
    )
    close(fast, plain)


def test_it_learns(algorithm: Any, fed: ct.Federation, task: ct.Task) -> None:
    before, after = (ct.fit(algorithm, fed, task, rounds=r, alone=False).scores()["log_loss"].mean() for r in (0, 20))
    assert after < before - 0.02


def test_regression_works_or_is_refused_in_a_sentence(
    algorithm: Any, numbers: ct.Federation, number_task: ct.Task
) -> None:
    try:
        how: dict[str, Any] = {"rounds": 5, "alone": "equal budget"}
        results = [ct.fit(algorithm, numbers, number_task, engine=e, **how) for e in ("local", "loop")]
    except (ct.errors.ConfigError, ct.errors.TaskError) as error:
        if "class" not in str(error) and "layers" not in str(error):
            raise
        return
    close(*results)
    table = results[0].evaluate()
    better = ct.fit(algorithm, numbers, number_task, rounds=0).scores()["mse"].mean() - table["mse"].mean()
    assert better > 0
    np.testing.assert_allclose(table["gain"], table["alone"] - table["mse"])  # lower is better


class Watch(Channel):
    """Notes how far every update moved and checks the ask's declaration of it."""

    def __init__(self) -> None:
        self.moved: list[float] = []

    def up(self, send: Any, clients: Ints, ask: ct.exchange.Ask, where: Where) -> Any:
        assert not set(ask.updates) & set(ask.auxiliary)
        flat = flatten(send)
        for path, origin in references(send, clients, ask, where, "The conformance suite").items():
            assert origin.shape == flat[path].shape
            self.moved.append(float((flat[path].double() - origin).norm() / (flat[path].double().norm() + 1e-12)))
        return send


def test_what_clients_send_is_declared(algorithm: Any, fed: ct.Federation, task: ct.Task) -> None:
    """Every field is an update or auxiliary. Updates of models are measured from where the client started: with a tiny
    learning rate they nearly vanish beside the model (a gradient or a difference is all update)."""
    watch = Watch()
    slow = with_setting(algorithm, "local", ct.LocalSGD(steps=1, lr=1e-6, batch_size=None)) or algorithm
    if hasattr(slow, "solve"):
        slow = dataclasses.replace(slow, solve=slow.local)
    ct.fit(slow, fed, task, rounds=ROUNDS, channels=[watch], alone=False)
    assert all(share < 1e-3 or share > 0.99 for share in watch.moved)


class Broken(Channel):
    """The second client is broken from the first round on: its messages are NaN, or its data are, or both."""

    def __init__(self, where: str) -> None:
        self.broken = where

    def data(self, x: torch.Tensor, y: torch.Tensor, clients: Ints, where: Where) -> Any:
        bad = torch.from_numpy(clients == 1).reshape(-1, *[1] * (x.dim() - 1))
        return (torch.where(bad, torch.nan, x), y) if self.broken == "data" else (x, y)

    def up(self, send: Any, clients: Ints, ask: ct.exchange.Ask, where: Where) -> Any:
        if self.broken == "data":
            return send
        bad = torch.from_numpy(clients == 1)

        def spoil(t: torch.Tensor) -> torch.Tensor:
            return torch.where(bad.reshape(-1, *[1] * (t.dim() - 1)), torch.nan, t) if t.is_floating_point() else t

        return {
            k: spoil(t) if isinstance(t, torch.Tensor) else {n: spoil(v) for n, v in t.items()} for k, t in send.items()
        }


@pytest.mark.parametrize("where", ["messages", "data"])
def test_a_client_that_sends_nan_is_named_and_ends_nobodys_run(
    name: str, algorithm: Any, fed: ct.Federation, task: ct.Task, where: str
) -> None:
    runs = [
        ct.fit(algorithm, fed, task, rounds=ROUNDS, channels=[Broken(where)], engine=e, alone=False)
        for e in ("local", "loop")
    ]
    others = np.delete(np.arange(len(fed)), 1)
    for run in runs:
        assert run.about["finished"]
        models = run.evaluation.personal(others)
        assert all(bool(torch.isfinite(t).all()) for t in models.values())
        if name == "local" and where == "messages":  # it sends nothing, so nothing can be spoilt
            assert "dropped" not in run.about
            continue
        assert {d["client"] for d in run.about["dropped"]} == {fed.clients[1]}
        assert run.about["dropped"][0]["round"] == 1
        assert (run.history["lost"] == 1).any()
    assert runs[0].about.get("dropped") == runs[1].about.get("dropped")
    assert runs[0].history["lost"].equals(runs[1].history["lost"])
    one, two = (r.evaluation.personal(others) for r in runs)
    for k in one:
        torch.testing.assert_close(one[k], two[k], rtol=TOLERANCE, atol=TOLERANCE)
