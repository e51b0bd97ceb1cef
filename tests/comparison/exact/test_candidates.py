"""Every candidate is exact where a closed form or scikit-learn tells the answer, and survives awkward tables."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge, RidgeCV

from coterie.comparison.exact.candidates import CANDIDATES, Rows
from coterie.comparison.exact.candidates.axes import Path
from coterie.comparison.exact.candidates.path import POOLED, fit_units
from coterie.estimation.blocks import blocks, grams

RNG = np.random.default_rng


def world(truth="partial", m=40, d=3, n=25, classification=False, seed=0):
    rng = RNG(seed)
    owner = np.repeat(np.arange(m), n)
    X = rng.normal(size=(m * n, d))
    coef = np.tile(rng.normal(size=d + 1), (m, 1))
    if truth == "partial":
        coef = coef + 0.5 * rng.normal(size=coef.shape)
    if truth == "groups":
        coef = (np.array([[2.0], [-2.0]]) * np.ones((2, d + 1)))[np.arange(m) % 2]
    eta = coef[owner, 0] + (X * coef[owner, 1:]).sum(1)
    y = (rng.random(len(eta)) < 1 / (1 + np.exp(-eta))) * 1.0 if classification else eta + rng.normal(size=len(eta))
    return Rows(X, y[:, None], owner, m, classification), coef


def test_blocks_hold_every_row_once():
    owner = RNG(0).permutation(np.repeat(np.arange(50), RNG(1).integers(1, 200, 50)))
    seen = np.concatenate([b.rows[b.mask > 0] for b in blocks(owner, 60, 3)])
    assert np.array_equal(np.sort(seen), np.arange(len(owner)))
    for block in blocks(owner, 60, 3):
        assert (owner[block.rows] == block.units[:, None]).all()


def test_grams_equal_a_loop():
    rows, _ = world()
    A, c = grams(rows.Z, rows.y[:, 0], np.full(len(rows.y), 2.0), rows.owner, 40)
    for i in range(40):
        Z = rows.Z[rows.owner == i]
        np.testing.assert_allclose(A[i], 2 * Z.T @ Z)
        np.testing.assert_allclose(c[i], Z.T @ rows.y[rows.owner == i, 0])


@pytest.mark.parametrize("d", [3, 40])
def test_a_single_ridge_penalty_equals_scikit_learn(d):
    rows, _ = world(d=d, m=6)
    coef, converged = fit_units(rows.X, rows.y, rows.owner, 6, Path((3.0,), False, False), False)
    assert converged
    for i in range(6):
        X, y = rows.X[rows.owner == i], rows.y[rows.owner == i, 0]
        sd = X.std(0)
        ridge = Ridge(3.0).fit((X - X.mean(0)) / sd, y)
        np.testing.assert_allclose(coef[i, 1:, 0], ridge.coef_ / sd, atol=1e-8)
        np.testing.assert_allclose(coef[i, 0, 0] + coef[i, 1:, 0] @ X.mean(0), y.mean(), atol=1e-8)


def test_the_pooled_penalty_is_the_one_ridge_cv_takes():
    rows, _ = world("same", m=10, d=30, n=5)
    X = (rows.X - rows.X.mean(0)) / rows.X.std(0)
    search = RidgeCV([p * len(X) for p in POOLED if np.isfinite(p)]).fit(X, rows.y[:, 0])
    fit = CANDIDATES["together"].fit(Rows(X, rows.y, rows.owner, 10, False), RNG(0))
    np.testing.assert_allclose(fit.coef[0, 1:, 0], search.coef_, atol=1e-6)


def test_a_logistic_penalty_equals_scikit_learn():
    rows, _ = world(classification=True, m=4, n=60)
    coef, converged = fit_units(rows.X, rows.y, rows.owner, 4, Path((2.0,), False, False), True)
    assert converged
    for i in range(4):
        X, y = rows.X[rows.owner == i], rows.y[rows.owner == i, 0]
        sd = X.std(0)
        Z = np.vstack([(X - X.mean(0)) / sd, np.zeros((2, 3))])
        model = LogisticRegression(C=0.5, tol=1e-10, max_iter=1000)
        model.fit(Z, np.append(y, [0, 1]), sample_weight=np.append(np.ones(len(y)), [0.5, 0.5]))
        np.testing.assert_allclose(coef[i, 1:, 0] * sd, model.coef_[0], atol=1e-4)


def classes(m=4, n=90, d=3, q=4, seed=0):
    rng = RNG(seed)
    X = rng.normal(size=(m * n, d))
    label = (X @ (2 * rng.normal(size=(d, q))) + rng.gumbel(size=(m * n, q))).argmax(1)
    return Rows(X, np.eye(q)[label], np.repeat(np.arange(m), n), m, True), label


@pytest.mark.parametrize("penalty", [0.02, 2.0])
def test_a_softmax_penalty_equals_scikit_learn(penalty):
    rows, label = classes()
    coef, converged = fit_units(rows.X, rows.y, rows.owner, 4, Path((penalty,), False, False), True)
    assert converged
    for i in range(4):
        X, y = rows.X[rows.owner == i], label[rows.owner == i]
        sd = X.std(0)
        Z = np.vstack([(X - X.mean(0)) / sd, np.zeros((4, 3))])
        model = LogisticRegression(C=1 / penalty, tol=1e-10, max_iter=5000)
        model.fit(Z, np.append(y, range(4)), sample_weight=np.append(np.ones(len(y)), np.full(4, 0.5)))
        np.testing.assert_allclose(coef[i, 1:].T * sd, model.coef_, atol=2e-4)


def test_a_separable_client_with_several_classes_converges():
    """Newton's full step overshoots here; halved steps do not."""
    rows, label = classes(m=3, n=12, d=6)
    X = rows.X + 6 * np.eye(6)[label % 6] * (rows.owner == 1)[:, None]
    for name in ("alone", "together", "shrunk", "groups"):
        fit = CANDIDATES[name].fit(Rows(X, rows.y, rows.owner, 3, True), RNG(0))
        assert fit.notes == ()
        assert np.isfinite(fit.outputs(X, rows.owner)).all()


def test_the_prior_of_few_clients_with_many_columns_converges():
    rng = RNG(0)
    owner = np.repeat(np.arange(4), 60)
    X = rng.normal(size=(240, 20))
    y = (X @ rng.normal(size=20) / 3 + owner - 1.5 + rng.logistic(size=240) > 0) * 1.0
    assert CANDIDATES["shrunk"].fit(Rows(X, y[:, None], owner, 4, True), RNG(0)).notes == ()


@pytest.mark.parametrize("classification", [False, True])
def test_shrunk_comes_closest_to_partly_alike_clients(classification):
    rows, truth = world(classification=classification, m=80)
    error = {}
    for name in ("alone", "together", "shrunk"):
        fit = CANDIDATES[name].fit(rows, RNG(0))
        error[name] = ((fit.client_coefficients()[..., 0] - truth) ** 2).mean()
        assert fit.notes == ()
    assert error["shrunk"] < 0.95 * min(error["alone"], error["together"])


def test_shrunk_finds_the_prior_variance():
    rows, _ = world(m=400)
    theta = CANDIDATES["shrunk"].fit(rows, RNG(0)).details["prior_variance"][:, 0]
    np.testing.assert_allclose(theta, 0.25, atol=4 * 0.025)


@pytest.mark.parametrize("classification", [False, True])
def test_groups_finds_two(classification):
    rows, _ = world("groups", classification=classification)
    fit = CANDIDATES["groups"].fit(rows, RNG(0))
    assert len(fit.coef) == 2
    assert len({(i % 2, g) for i, g in enumerate(fit.of_client)}) == 2
    assert (np.sign(fit.coef[0]) == -np.sign(fit.coef[1])).all()


def test_groups_of_one_world_are_one():
    rows, _ = world("same")
    assert len(CANDIDATES["groups"].fit(rows, RNG(0)).coef) == 1


@pytest.mark.parametrize("name", list(CANDIDATES))
@pytest.mark.parametrize("classification", [False, True])
def test_awkward_rows_stay_finite(name, classification):
    """One huge client, clients of one row, one without rows, a client of one class, collinear and wide columns."""
    rng = RNG(0)
    owner = np.concatenate([np.zeros(500, int), np.arange(1, 12), np.repeat([13, 14, 15], 8)])
    X = rng.normal(size=(len(owner), 40))
    X[:, 5], X[:, 6], X[:, 7] = X[:, 4], 0, (owner == 13)
    y = (rng.random(len(owner)) < 0.5) * 1.0
    y[owner == 14] = 1
    fit = CANDIDATES[name].fit(Rows(X, y[:, None], owner, 16, classification), RNG(0))
    out = fit.outputs(X, owner)
    assert np.isfinite(out).all()
    assert np.isfinite(fit.outputs(X[:3], np.array([12, -1, -1]))).all()


@pytest.mark.parametrize("name", ["alone", "together", "shrunk", "groups"])
def test_three_classes_give_probabilities(name):
    rng = RNG(0)
    owner = np.repeat(np.arange(10), 40)
    X = rng.normal(size=(400, 2))
    label = (np.column_stack([2 * X, np.zeros(400)]) + rng.gumbel(size=(400, 3))).argmax(1)
    chance = CANDIDATES[name].fit(Rows(X, np.eye(3)[label], owner, 10, True), RNG(0)).outputs(X, owner)
    np.testing.assert_allclose(chance.sum(1), 1)
    assert (chance.argmax(1) == label).mean() > 0.6


def test_a_wide_table_is_shrunk_to_the_model_for_all():
    """More columns than a client has rows: the search must not end where every client keeps its own noise."""
    rng = RNG(0)
    owner = np.repeat(np.arange(10), 30)
    X = rng.normal(size=(300, 100))
    y = X @ rng.normal(size=100) / 10 + rng.normal(size=300)
    fit = CANDIDATES["shrunk"].fit(Rows(X, y[:, None], owner, 10, False), RNG(0))
    assert fit.details["prior_variance"][1:].max() < 1e-3
    assert fit.notes == ()
