"""Who clearly loses: error rates with many and with few clients."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from coterie.decision.coalitions.judging import Gains, clear_losers, gains_of, interval, shrunk


def drawn(true_gain, rows, seed):
    rng = np.random.default_rng(seed)
    value = np.asarray(true_gain)[:, None] + rng.normal(size=(len(true_gain), rows))
    return gains_of(value.ravel(), np.repeat(np.arange(len(true_gain)), rows), len(true_gain))


def test_gains_are_means_and_variances():
    rng = np.random.default_rng(0)
    value, owner = rng.normal(size=30), rng.integers(3, size=30)
    found = gains_of(np.where(np.arange(30) == 4, np.nan, value), owner, 4)
    for i in range(3):
        mine = np.delete(value, 4)[np.delete(owner, 4) == i]
        assert found.mean[i] == pytest.approx(mine.mean())
        assert found.variance[i] == pytest.approx(mine.var(ddof=1))
    assert np.isnan(found.mean[3])
    twice = gains_of(value, owner, 3, np.full(30, 2.0))
    np.testing.assert_allclose(twice.mean, gains_of(value, owner, 3).mean)


def test_of_a_hundred_who_gain_a_little_nobody_is_told_to_leave():
    """Uncorrected 90 % intervals would send one away in three runs of four."""
    sent = [clear_losers(drawn(np.full(100, 0.1), 30, s)).sum() for s in range(100)]
    plain = [(interval(drawn(np.full(100, 0.1), 30, s), correct=False)[1] < 0).any() for s in range(100)]
    assert np.mean(np.array(sent) > 0) <= 0.02
    assert np.mean(plain) > 0.5


def test_true_losers_are_found_among_many():
    truth = np.r_[np.full(90, 0.3), np.full(10, -0.5)]
    found = np.array([clear_losers(drawn(truth, 30, s)) for s in range(50)])
    assert found[:, :90].mean() < 0.002
    assert found[:, 90:].mean() > 0.4


def test_few_clients_are_corrected_by_holm():
    """Five clients without gain: anybody called clear, on either side, in at most 10 % of runs."""
    runs = 600
    wrong = 0
    for s in range(runs):
        low, high, _ = interval(drawn(np.zeros(5), 20, s))
        wrong += bool(((high < 0) | (low > 0)).any())
    assert wrong / runs <= 0.1 + 4 * np.sqrt(0.09 / runs)


def test_the_interval_leaves_zero_out_exactly_where_holm_rejects():
    for s in range(40):
        gains = drawn(np.array([-0.9, -0.5, -0.2, 0.0, 0.4, 0.8]), 15, s)
        p = 2 * stats.t.sf(np.abs(gains.mean / gains.error), 14)
        order, rejected = np.argsort(p), np.zeros(6, bool)
        for k, i in enumerate(order):
            if p[i] > 0.1 / (6 - k):
                break
            rejected[i] = True
        low, high, _ = interval(gains)
        assert (((low > 0) | (high < 0)) == rejected).all()


def test_few_rows_are_not_judged_and_nothing_known_is_nan():
    gains = Gains(np.array([-1.0, -1.0, np.nan]), np.full(3, 1e-6), np.array([9.0, 10.0, 0.0]))
    assert clear_losers(gains).tolist() == [False, True, False]
    assert np.isnan(interval(gains)[0][2])


def test_gains_are_drawn_together_by_how_little_they_differ():
    gains = drawn(np.zeros(200), 20, 0)
    centre, sd = shrunk(gains)
    assert np.ptp(centre) < 0.5 * np.ptp(gains.mean)
    wide = drawn(np.linspace(-5, 5, 200), 20, 0)
    np.testing.assert_allclose(shrunk(wide)[0], wide.mean, atol=0.1)
    assert (sd >= 0).all()
