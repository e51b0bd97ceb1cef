"""The share of clients that gain, its interval, and shrunken gains."""

import numpy as np

from coterie.evidence.gainers import gainers
from coterie.evidence.gains import Gains


def measured(truth: np.ndarray, error: np.ndarray, rng: np.random.Generator) -> Gains:
    many = np.full(len(truth), 50.0)
    return Gains(truth + error * rng.normal(size=len(truth)), error, many, many)


def test_the_interval_covers_the_true_share() -> None:
    """300 worlds of normal and skewed gains at 95 %; four standard errors below 95 % are 90 %."""
    rng, hits = np.random.default_rng(0), 0
    for world in range(300):
        m = int(rng.integers(6, 40))
        truth = rng.normal(0.3, 1, m) if world % 2 else rng.exponential(1, m) - 0.5
        found = gainers(measured(truth, rng.uniform(0.3, 1.5, m), rng))
        assert found is not None
        hits += found.low <= (truth > 0).mean() <= found.high
    assert hits >= 270


def test_shrunken_gains_are_closer_to_the_truth() -> None:
    rng = np.random.default_rng(1)
    truth = rng.normal(0.2, 0.5, 50)
    noisy = measured(truth, np.full(50, 1.0), rng)
    found = gainers(noisy)
    assert found is not None
    assert ((found.gains - truth) ** 2).mean() < 0.6 * ((noisy.mean - truth) ** 2).mean()


def test_everybody_gains_or_nobody() -> None:
    rng = np.random.default_rng(2)
    error = np.full(20, 0.1)
    high, low = (gainers(measured(np.full(20, centre), error, rng)) for centre in (1.0, -1.0))
    assert high is not None
    assert low is not None
    assert (high.share, low.share) == (1.0, 0.0)


def test_few_clients_and_missing_scores() -> None:
    rng = np.random.default_rng(3)
    assert gainers(measured(np.ones(3), np.ones(3), rng)) is None
    some = measured(np.ones(6), np.ones(6), rng)
    some.mean[2] = np.nan
    found = gainers(some)
    assert found is not None
    assert np.isnan(found.gains).tolist() == [False, False, True, False, False, False]
