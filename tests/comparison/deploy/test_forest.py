"""Boosted trees as arrays predict what scikit-learn predicts, and stop where trees do not help."""

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from coterie.comparison.deploy.forest import Forest, _as_arrays, grow, grow_on_scores, probabilities


def _world(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4))
    return X, np.sin(3 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.3 * rng.normal(size=n)


def test_numbers_are_those_of_scikit_learn():
    X, y = _world(600)
    model = HistGradientBoostingRegressor(max_iter=30, early_stopping=False).fit(X, y)
    np.testing.assert_allclose(_as_arrays(model).raw(X)[:, 0], model.predict(X), rtol=0, atol=1e-12)


@pytest.mark.parametrize("cuts", [[0.0], [-0.7, 0.7]])
def test_probabilities_are_those_of_scikit_learn(cuts):
    X, y = _world(600)
    codes = np.digitize(y, cuts)
    model = HistGradientBoostingClassifier(max_iter=20, early_stopping=False).fit(X, codes)
    np.testing.assert_allclose(probabilities(_as_arrays(model).raw(X)), model.predict_proba(X), rtol=0, atol=1e-12)


def test_arrays_give_the_same_forest():
    X, y = _world(400)
    forest = grow(X, y, 0, seed=0)
    np.testing.assert_array_equal(Forest.of(forest.arrays()).raw(X), forest.raw(X))


def test_a_curve_is_learned_and_noise_is_not():
    X, y = _world(2000)
    new, truth = _world(1000, seed=1)
    forest = grow(X, y, 0, seed=0)
    assert ((forest.raw(new)[:, 0] - truth) ** 2).mean() < 0.4 * truth.var()
    noise = np.random.default_rng(2).normal(size=2000)
    flat = grow(X, noise, 0, seed=0)
    assert flat.raw(new)[:, 0].std() < 0.2  # hardly any trees


def test_trees_on_scores_add_what_the_scores_lack():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(3000, 3))
    eta = X[:, 0] + 2 * np.sign(X[:, 1] * X[:, 2])
    y = (rng.random(3000) < 1 / (1 + np.exp(-eta))).astype(float)
    linear = X[:, :1]
    forest = grow_on_scores(X[:2000], y[:2000], linear[:2000], seed=0)
    before, after = (
        probabilities(s)[np.arange(1000), y[2000:].astype(int)]
        for s in (linear[2000:], linear[2000:] + forest.raw(X[2000:]))
    )
    assert -np.log(after).mean() < -np.log(before).mean() - 0.1


def test_trees_on_scores_of_several_classes_leave_right_scores_alone():
    rng = np.random.default_rng(4)
    X = rng.normal(size=(1500, 3))
    chance = probabilities(2 * X)
    y = (rng.random(1500)[:, None] > chance.cumsum(1)).sum(1).astype(float)
    forest = grow_on_scores(X, y, 2 * X, seed=0)
    assert np.abs(probabilities(2 * X + forest.raw(X)) - chance).mean() < 0.05


def test_names_of_clients_are_split_as_scikit_learn_does() -> None:
    """Among 13 clients number 5 is never seen in training; −1 is a client that nobody knows."""
    rng = np.random.default_rng(0)
    client = rng.integers(0, 12, 2000)
    client = client[client != 5]
    x = rng.normal(size=(len(client), 2))
    X = np.column_stack([client, x]).astype(float)
    model = HistGradientBoostingRegressor(categorical_features=[0], max_iter=20)
    model.fit(X, np.sin(7 * client) + x[:, 0] * (client % 2))
    ours, theirs = X.copy(), X.copy()
    ours[:60, 0], theirs[:60, 0] = np.repeat([5, -1, 12], 20), np.repeat([5, np.nan, 12], 20)
    made = _as_arrays(model, 13, np.unique(client)).raw(ours)[:, 0]
    np.testing.assert_allclose(made, model.predict(theirs), rtol=0, atol=1e-12)
