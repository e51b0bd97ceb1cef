"""What clients bring: exact values, sums, and halves against the truth."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.comparison.exact.ridge_coalitions import PooledRidge
from coterie.data.coded_table import make_table
from coterie.evidence.coalitions import find
from coterie.evidence.coalitions.contributions import halves, leave_one_out, shapley, value
from coterie.evidence.coalitions.search import Bank


def additive(bring, rows=4):
    """A model is better for everybody by what its members bring."""
    m = len(bring)
    alone = np.full(m * rows, 9.0)

    def train(block):
        return [np.full(rows, 9.0 - sum(bring[i] for i in block)) for _ in range(m)]

    return Bank(train, alone, np.repeat(np.arange(m), rows), m, 1 << 20)


def test_in_an_additive_world_all_three_are_what_was_put_in():
    bring = np.array([1.0, 0.5, 0.0, -0.25, 2.0])
    np.testing.assert_allclose(leave_one_out(additive(bring), [frozenset(range(5))])[0], bring)
    np.testing.assert_allclose(shapley(additive(bring))[0], bring)
    found, error = halves(additive(bring), 20, np.random.default_rng(0))
    np.testing.assert_allclose(found, bring, atol=1e-9)
    np.testing.assert_allclose(error, 0, atol=1e-9)


def test_shapley_values_sum_to_the_value_of_all():
    rng = np.random.default_rng(0)
    X, clients = rng.normal(size=(90, 3)), np.repeat(list("abcdef"), 15)
    y = X @ np.ones(3) + rng.normal(size=90)
    model = PooledRidge(make_table(X, y, clients, "regression", None), 5, 0)
    alone = [model.losses(frozenset([i]))[i] for i in range(6)]
    bank = Bank(model.losses, np.concatenate(alone), np.repeat(np.arange(6), 15), 6, 1 << 20)
    values, _ = shapley(bank)
    assert values.sum() == pytest.approx(value(bank, frozenset(range(6))) - value(bank, frozenset()))
    assert bank.trainings == 2**6
    found = find(model.losses, alone, model.gradients(), list("abcdef"), thorough=True)
    np.testing.assert_allclose(found.table["brings"], values)
    assert found.contribution == "Shapley value, exact"


def test_halves_cover_the_banzhaf_value():
    """u = bring + pairs that add: the half-coalition value is bring_i + Σ_j pair_ij/2; 90 % bars should hold it."""
    rng = np.random.default_rng(1)
    m = 12
    bring, pair = rng.normal(size=m), np.triu(0.3 * rng.normal(size=(m, m)), 1)
    truth = bring + (pair + pair.T).sum(1) / 2

    def train(block):
        at = sorted(block)
        return [np.full(2, -bring[at].sum() - pair[np.ix_(at, at)].sum()) for _ in range(m)]

    bank = Bank(train, np.zeros(2 * m), np.repeat(np.arange(m), 2), m, 1 << 20)
    found, error = halves(bank, 60, np.random.default_rng(2))
    assert (np.abs(found - truth) < 1.645 * error).mean() >= 0.9 - 4 * np.sqrt(0.09 / m)
    assert np.corrcoef(found, truth)[0, 1] > 0.95
