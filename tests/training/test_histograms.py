"""Private histograms of clients whose rows stay where they are, with the noise of the server or of the sites."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import coterie as ct
from coterie.errors import ConfigError, EngineError
from coterie.flower.rehearsal import RehearsalEngine
from coterie.privacy.mechanisms.gaussian import GaussianMechanism
from coterie.privacy.mechanisms.noise import ExactNoise
from coterie.secure.settings import Secure

PRIVATE = ct.Privacy(epsilon=50.0, delta=1e-3, clip=1.0)
EXACT = Secure(4, colluding=0, least=4)  # every sum has the noise of four sites, which is just enough


def counts(users: int = 30, width: int = 6) -> Any:
    rng = np.random.default_rng(0)
    kinds = np.array([[5.0, 4, 3, 0.2, 0.2, 0.2], [0.2, 0.2, 0.2, 3, 4, 5]])[:, :width]
    found = np.stack([rng.multinomial(20 + i, rng.dirichlet(kinds[i % 2])) for i in range(users)])
    found[3] = 0  # a user without tokens
    return found.astype(np.float64)


def clients(told: Any) -> ct.Federation:
    """Each client's counts in two rows."""
    data = {f"u{i:02d}": (np.stack([row // 2, row - row // 2]), np.zeros(2)) for i, row in enumerate(told)}
    return ct.Federation.from_arrays(data, kind="regression", test_fraction=0.0)


@pytest.fixture
def sums(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Without noise; every sum that is released, in steps of its lattice."""
    found: list[Any] = []
    real = GaussianMechanism.noisy_steps

    def kept(self: Any, total: Any, noise: Any) -> Any:
        found.append(np.array(total))
        return real(self, total, noise)

    monkeypatch.setattr(ExactNoise, "gaussian", lambda self, total, sigma: total)
    monkeypatch.setattr(GaussianMechanism, "noisy_steps", kept)
    return found


@pytest.mark.parametrize("method", ["A+", "B+"])
@pytest.mark.parametrize("engine", ["loop", "sites"])
def test_before_noise_every_sum_is_that_of_the_same_rows_in_memory(engine: str, method: Any, sums: list[Any]) -> None:
    told = counts()
    made = ct.HistogramMixture(2, privacy=PRIVATE, method=method, rounds=2)
    here, mine = made.fit(told), list(sums)
    sums.clear()
    there = ct.fit(
        ct.HistogramMixture(2, privacy=PRIVATE, method=method, rounds=2), clients(told),
        engine="loop" if engine == "loop" else RehearsalEngine(EXACT),
    )  # fmt: skip
    assert len(sums) == len(mine) == {"A+": 20, "B+": 25}[method]
    for one, two in zip(mine, sums, strict=True):
        np.testing.assert_array_equal(one, two)
    for name in ("centers_", "weights_", "mean_", "concentration_"):
        np.testing.assert_array_equal(getattr(here, name), getattr(there, name))
    np.testing.assert_array_equal(here.predict(told), there.predict(told))


def test_the_receipt_says_whom_it_trusts() -> None:
    told = counts()
    fitted = {
        noise: ct.fit(
            ct.HistogramMixture(2, privacy=PRIVATE, rounds=1), clients(told),
            engine=RehearsalEngine(Secure(5, colluding=1, noise=noise)),
        ).receipt_
        for noise in ("sites", "server")
    }  # fmt: skip
    for receipt in fitted.values():
        assert receipt.valid, receipt.reasons
        assert receipt.verify().fault == ""
        assert receipt.epsilon <= 50.0
    assert fitted["sites"].trust.startswith(
        "the server saw only sums over at least 4 sites; each sum carries noise for (ε, δ) against a server that colludes "
        "with at most 1 sites"
    )
    assert any("one process" in line for line in fitted["sites"].not_covered)
    assert fitted["server"].trust.startswith("the server is trusted to clip, add noise and forget")
    assert {release["parts"] for release in fitted["sites"].releases} == {3}
    assert {release["parts"] for release in fitted["server"].releases} == {1}


def test_the_noise_of_a_sum_is_that_of_all_sites(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the sums of 5 sites, of which three honest ones suffice: 5/3 of the variance that the budget demands."""
    drawn: list[Any] = []
    real = GaussianMechanism.part

    def part(self: Any, total: Any, noise: Any) -> Any:
        found = real(self, total, noise)
        if self.name == "rounds":
            drawn.append((found - total) / (self.sigma / self.step))
        return found

    monkeypatch.setattr(GaussianMechanism, "part", part)
    made = ct.HistogramMixture(3, privacy=PRIVATE, rounds=20)
    ct.fit(made, clients(counts()), engine=RehearsalEngine(Secure(5, colluding=1)))
    noise = np.stack(drawn).reshape(20, 5, -1).sum(1).ravel()
    assert noise.var() == pytest.approx(5 / 3, abs=4 * 5 / 3 * np.sqrt(2 / noise.size))


def test_a_lost_site_leaves_its_users_out_and_too_few_stop_the_fit(sums: list[Any]) -> None:
    told = counts()
    made = ct.HistogramMixture(2, privacy=PRIVATE, rounds=2)
    ct.fit(made, clients(told), engine=RehearsalEngine(Secure(4, colluding=0), absent={9: [1]}))
    mean = sums[8]  # after eight counts for the quantile
    sums.clear()
    ct.HistogramMixture(2, privacy=PRIVATE, rounds=2).fit(told)
    whole = sums[8]
    sums.clear()
    rest = [i for i in range(len(told)) if i % 4 != 1]
    part = clients(told).subset([f"u{i:02d}" for i in rest])
    assert (mean != whole).any()
    assert abs(mean.sum() / whole.sum() - len(rest) / len(told)) < 0.05
    with pytest.raises(EngineError, match=r"2 of 4 sites answered, and a secure sum needs 3"):
        ct.fit(made, part, engine=RehearsalEngine(Secure(4, colluding=0), absent={3: [0, 1]}))


def test_rows_that_hold_no_counts_add_nothing(sums: list[Any]) -> None:
    told = counts()
    spoilt = told.copy()
    spoilt[5, 0] = -4
    none = told.copy()
    none[5] = 0
    fitted = [ct.fit(ct.HistogramMixture(2, privacy=PRIVATE, rounds=1), clients(x)) for x in (spoilt, none)]
    np.testing.assert_array_equal(fitted[0].centers_, fitted[1].centers_)


def test_what_needs_rows_of_users_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs rows of users for its seeds"):
        ct.fit(ct.HistogramMixture(2), clients(counts()))
    reduced = ct.HistogramMixture(2, privacy=PRIVATE, reduction=ct.histograms.TokenReduction(5))
    with pytest.raises(ConfigError, match="A reduction of the vocabulary needs users' rows"):
        ct.fit(reduced, clients(counts()))


def test_the_number_of_clusters_is_chosen_from_sums() -> None:
    several = ct.HistogramMixture([2, 3], privacy=PRIVATE, rounds=2)
    here, there = several.fit(counts()), ct.fit(several, clients(counts()))
    assert len(there.centers_) == len(here.centers_)
    assert {line["name"] for line in there.receipt_.releases} == {line["name"] for line in here.receipt_.releases}


def test_an_engine_of_the_users_own_voids_the_receipt() -> None:
    class Own(ct.engines.LocalEngine):
        pass

    made = ct.fit(ct.HistogramMixture(2, privacy=PRIVATE, rounds=1), clients(counts()), engine=Own())
    assert not made.receipt_.valid
    assert any("not this package's" in reason for reason in made.receipt_.reasons)
