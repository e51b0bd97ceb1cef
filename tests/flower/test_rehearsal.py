"""Secure sums below every additive ask: the numbers of plain sums, whoever is lost, without a line in an algorithm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conformance_settings import configured
from torch import nn

import coterie as ct
from coterie.algorithms import ALGORITHMS
from coterie.base.tree import flatten
from coterie.cli.config import Config
from coterie.errors import ConfigError, EngineError
from coterie.exchange.channels.base import Channel, Where
from coterie.exchange.messages import Ask
from coterie.flower.rehearsal import RehearsalEngine
from coterie.privacy.mechanisms.noise import ExactNoise
from coterie.secure.settings import Secure

FIVE = Secure(5, colluding=1)


def trained(fed: ct.Federation, algorithm: Any, engine: Any, **more: Any) -> Any:
    task = ct.Task(lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)))
    return ct.fit(algorithm, fed, task, rounds=2, alone=False, progress=False, engine=engine, **more)


def far(one: Any, two: Any) -> float:
    """The largest difference of two runs' states."""
    mine, other = (flatten(vars(r.state)) for r in (one, two))
    numbers = [k for k, t in other.items() if isinstance(t, torch.Tensor) and t.is_floating_point() and t.numel()]
    return max((float((mine[k] - other[k]).abs().max()) for k in numbers), default=0.0)


ADDITIVE = [n for n, a in ALGORITHMS.items() if not a.individual and a.exactly is None]


@pytest.mark.parametrize("name", ADDITIVE)
def test_every_additive_algorithm_trains_with_secure_sums(name: str, fed: ct.Federation) -> None:
    algorithm = configured(name).private()
    here, there = trained(fed, algorithm, "local"), trained(fed, algorithm, RehearsalEngine(FIVE))
    assert far(there, here) < 1e-4
    assert there.history["loss"].iloc[-1] == pytest.approx(here.history["loss"].iloc[-1], rel=1e-5, nan_ok=True)


def test_replies_of_single_clients_are_refused_with_what_to_do(fed: ct.Federation) -> None:
    with pytest.raises(ConfigError, match=r"the ask 'train' shows it every client's reply. Use an algorithm"):
        trained(fed, ct.FedAvg(aggregate=ct.robust.Median()), RehearsalEngine(FIVE))


class Away(Channel):
    """The clients of a site lost in one round."""

    def ask(self, ask: Ask, where: Where) -> Ask:
        return ask.only((ask.clients % 5 != 2) | (where.round != 1))


def test_a_site_that_is_lost_is_lost_with_its_clients_alone(fed: ct.Federation) -> None:
    algorithm = configured("ditto")
    there = trained(fed, algorithm, RehearsalEngine(FIVE, absent={1: [2]}))
    here = trained(fed, algorithm, "local", channels=[Away()])
    assert far(there, here) < 1e-6
    assert there.history["lost"].tolist() == here.history["lost"].tolist() == [0, 2]


def test_too_few_sites_stop_the_run_with_a_sentence(fed: ct.Federation) -> None:
    with pytest.raises(EngineError, match=r"^2 of 5 sites answered, and a secure sum needs 4\. Start again"):
        trained(fed, ct.FedAvg(), RehearsalEngine(FIVE, absent={0: [0, 2, 4]}))


PRIVATE = ct.Privacy(epsilon=20.0, delta=1e-3, clip=1.0)


@pytest.fixture
def known_noise(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, Any]]:
    """Exact noise from a seed that follows from the sum it is added to; all sums and noises are written down."""
    seen: list[tuple[float, Any]] = []

    def gaussian(self: Any, total: Any, sigma: float) -> Any:
        seed = np.frombuffer(np.ascontiguousarray(total).tobytes(), np.uint32)
        noise = np.rint(np.random.default_rng(seed).normal(scale=sigma, size=total.shape)).astype(np.int64)
        seen.append((sigma, total))
        return total + noise

    monkeypatch.setattr(ExactNoise, "gaussian", gaussian)
    return seen


@pytest.mark.filterwarnings("ignore:In this private run")
@pytest.mark.parametrize("name", ["fedavg", "ifca"])
def test_private_sums_carry_the_noise_of_every_site(name: str, fed: ct.Federation, known_noise: Any) -> None:
    """Each site adds σ²/(t − c), so the honest ones of t sites have the whole σ²; the receipt counts that and no more."""
    found = trained(fed, configured(name).private(), RehearsalEngine(FIVE), privacy=PRIVATE)
    (release,) = found.receipt.releases
    assert (release["parts"], release["count"]) == (FIVE.honest, 2)
    wanted = release["sigma"] / release["step"] / FIVE.honest**0.5
    assert [sigma for sigma, _ in known_noise] == pytest.approx([wanted] * 10)  # five sites, two rounds
    assert found.receipt.verify().fault == ""
    plain = trained(fed, configured(name).private(), "local", privacy=PRIVATE)
    assert plain.receipt.epsilon == found.receipt.epsilon
    assert known_noise[-1][0] == pytest.approx(release["sigma"] / release["step"])  # here the server adds all


@pytest.mark.filterwarnings("ignore:In this private run")
def test_noise_of_the_server_is_added_to_the_sum_of_all_sites(fed: ct.Federation, known_noise: Any) -> None:
    there = trained(fed, ct.FedAvg(), RehearsalEngine(Secure(5, noise="server")), privacy=PRIVATE)
    trained(fed, ct.FedAvg(), "local", privacy=PRIVATE)
    assert there.receipt.releases[0]["parts"] == 1
    sums = [total for _, total in known_noise]
    assert len(sums) == 4
    for one, other in zip(sums[:2], sums[2:], strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_file_with_secure_rehearses_it(tmp_path: Path) -> None:
    table = {"data": {"name": "digits", "clients": 8, "clusters": 2}, "algorithm": {"name": "ifca", "clusters": 2}}
    table |= {"run": {"rounds": 1}, "secure": {"sites": 4, "colluding": 0}}
    config = Config.parse(table)
    assert isinstance(config.engine(), RehearsalEngine)
    assert config.fit(out=tmp_path / "out").history["lost"].tolist() == [0]
    for wrong, why in (
        ({"secure": {"sites": 1}}, "2 to 200 sites"),
        ({"secure": {"sites": "ssh-ed25519 AAAA"}}, "a whole number or a list of texts"),
        ({"secure": {"colluding": 1}}, r"secure\.sites is missing"),
        ({"secure": {"sites": 5, "colluding": 4}}, "at least two honest sites"),
        ({"secure": {"sites": 5, "noise": "none"}}, "noise to be one of"),
        ({"run": {"engine": "loop"}}, "need the engine 'local'"),
    ):
        with pytest.raises(ConfigError, match=why) as refused:
            Config.parse(table | wrong).engine()
        assert len(str(refused.value).splitlines()) == 1
