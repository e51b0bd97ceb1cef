"""What every algorithm in the registry must do. A new algorithm joins by being in the registry.

The checks are in `coterie.training.conformance`, and the settings in `conformance_settings.py`. An algorithm whose
defaults cannot train the small model here overrides `example`; one made for two clients says `exactly = 2`, and one
without a private form `individual = True`; one that needs classes, or a network of several layers, says so with a
ConfigError or TaskError that contains the word "class" or "layers".
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from conformance_settings import EXCHANGE_AS, INDIVIDUAL, NAMES, PAIR, PAIRS, close, configured
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import coterie as ct
from coterie.algorithms import ALGORITHMS
from coterie.base.tree import flatten
from coterie.exchange.channels.base import Channel
from coterie.training.conformance import CHECKS, Broken
from coterie.training.small_case import Case


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def algorithm(name: str) -> Any:
    return configured(name)


@pytest.fixture
def fed(name: str, fed: ct.Federation, make_fed: Any) -> ct.Federation:
    return make_fed(sizes=PAIR) if name in PAIRS else fed


def test_the_registry_holds_every_public_algorithm_by_a_name_the_command_line_can_take() -> None:
    public = {v for n in ct.__all__ if ct.exchange.Algorithm in getattr(v := getattr(ct, n), "__mro__", ())}
    assert public - {ct.exchange.Algorithm} == set(ALGORITHMS.values())
    assert all(name == name.lower() and name.isidentifier() for name in ALGORITHMS)
    assert all(dataclasses.is_dataclass(a) and a.__dataclass_params__.frozen for a in ALGORITHMS.values())  # type: ignore[attr-defined]


@pytest.mark.parametrize("check", CHECKS)
def test_it_conforms(algorithm: Any, check: str) -> None:
    """The checks that `ct.check` runs on anybody's algorithm."""
    CHECKS[check](Case(algorithm))


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
    if name in EXCHANGE_AS:
        pytest.skip(f"{name} exchanges what {EXCHANGE_AS[name]} does; the slow test below tries it")
    privacy = ct.Privacy(3.0, 1e-6, clip=0.3)
    options: dict[str, Any] = {"rounds": 1, "privacy": privacy, "alone": False}
    if name in INDIVIDUAL:
        with pytest.raises(
            ct.errors.ConfigError,
            match=r"Privacy (needs sums|clips updates)|robust aggregate needs clear|no additive form",
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
    if name in ("ifca", "hypcluster", "oracle", "discrete_prior"):
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
