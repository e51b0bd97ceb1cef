"""A prior variance per coefficient: lme4's fits, coverage with few clients, full covariances, Algorithm 4."""

import numpy as np
import pytest

import coterie as ct
from coterie.estimation.regression.mixture_prior import prior_gradient
from reproductions.generate import regression_clients

# lme4's data set sleepstudy (Belenky et al., 2003): reaction time in ms after 0 … 9 days of little sleep, 18 persons
SLEEP = np.fromstring(
    """
249.56 258.7047 250.8006 321.4398 356.8519 414.6901 382.2038 290.1486 430.5853 466.3535
222.7339 205.2658 202.9778 204.707 207.7161 215.9618 213.6303 217.7272 224.2957 237.3142
199.0539 194.3322 234.32 232.8416 229.3074 220.4579 235.4208 255.7511 261.0125 247.5153
321.5426 300.4002 283.8565 285.133 285.7973 297.5855 280.2396 318.2613 305.3495 354.0487
287.6079 285.0 301.8206 320.1153 316.2773 293.3187 290.075 334.8177 293.7469 371.5811
234.8606 242.8118 272.9613 309.7688 317.4629 309.9976 454.1619 346.8311 330.3003 253.8644
283.8424 289.555 276.7693 299.8097 297.171 338.1665 332.0265 348.8399 333.36 362.0428
265.4731 276.2012 243.3647 254.6723 279.0244 284.1912 305.5248 331.5229 335.7469 377.299
241.6083 273.9472 254.4907 270.8021 251.4519 254.6362 245.4523 235.311 235.7541 237.2466
312.3666 313.8058 291.6112 346.1222 365.7324 391.8385 404.2601 416.6923 455.8643 458.9167
236.1032 230.3167 238.9256 254.922 250.7103 269.7744 281.5648 308.102 336.2806 351.6451
256.2968 243.4543 256.2046 255.5271 268.9165 329.7247 379.4445 362.9184 394.4872 389.0527
250.5265 300.0576 269.8939 280.5891 271.8274 304.6336 287.7466 266.5955 321.5418 347.5655
221.6771 298.1939 326.8785 346.8555 348.7402 352.8287 354.4266 360.4326 375.6406 388.5417
271.9235 268.4369 257.2424 277.6566 314.8222 317.2135 298.1353 348.1229 340.28 366.5131
225.264 234.5235 238.9008 240.473 267.5373 344.1937 281.1481 347.5855 365.163 372.2288
269.8804 272.4428 277.8989 281.7895 279.1705 284.512 259.2658 304.6306 350.7807 369.4692
269.4117 273.474 297.5968 310.6316 287.1726 329.6076 334.4818 343.2199 369.1417 364.1236
""",
    sep=" ",
).reshape(18, 10)
DAYS, PERSON = np.tile(np.arange(10.0), 18)[:, None], np.repeat(np.arange(18), 10)


def test_sleepstudy_is_lme4_s_fit():
    """lmer(Reaction ~ Days + (Days || Subject)), and with correlated slopes, of lme4 1.1-31."""
    model = ct.LinearModels().fit(DAYS, SLEEP.ravel(), PERSON)
    assert model.covariance_type_ == "diag"
    assert model.mean_intercept_ == pytest.approx(251.405, abs=1e-3)
    assert model.mean_[0] == pytest.approx(10.467, abs=1e-3)
    assert np.sqrt(model.prior_intercept_variance_) == pytest.approx(25.051, abs=0.01)
    assert np.sqrt(model.prior_variance_[0]) == pytest.approx(5.988, abs=0.01)
    assert np.sqrt(model.noise_variance_) == pytest.approx(25.565, abs=0.01)
    full = ct.LinearModels(covariance_type="full").fit(DAYS, SLEEP.ravel(), PERSON).prior_covariance_
    np.testing.assert_allclose(np.sqrt(np.diag(full)), [5.922, 24.741], rtol=2e-3)
    assert full[0, 1] / np.sqrt(full[0, 0] * full[1, 1]) == pytest.approx(0.066, abs=0.005)


def test_held_out_error_of_sleepstudy():
    """Every fifth day held out in turn; the diagonal fit of lme4 1.1-31 has 812.291 on these folds."""
    fold, y = np.tile(np.arange(10) % 5, 18), SLEEP.ravel()
    error = {"auto": [], "spherical": []}
    for kind, found in error.items():
        for f in range(5):
            train, test = fold != f, fold == f
            model = ct.LinearModels(covariance_type=kind).fit(DAYS[train], y[train], PERSON[train])
            found.append(np.square(model.predict(DAYS[test], PERSON[test]) - y[test]).mean())
    assert np.mean(error["auto"]) == pytest.approx(812.291, rel=1e-4)
    assert np.mean(error["auto"]) < 0.95 * np.mean(error["spherical"])


def world(seed, m, n, logistic=False):
    rng = np.random.default_rng(seed)
    owner, X = np.repeat(np.arange(m), n), rng.normal(size=(m * n, 2)) * [1.0, 20.0]
    truth = rng.normal([1.0, -0.05, 2.0], [0.8, 0.03, 1.0], (m, 3))
    score = truth[owner, 2] + (X * truth[owner, :2]).sum(1)
    y = score + rng.logistic(size=m * n) > 0 if logistic else score + rng.normal(size=m * n)
    return X, y, owner, truth


def coverage(kind, clients, sets):
    """Share of coefficients and intercepts inside 90% intervals, one number per data set."""
    covered = []
    for seed in range(sets):
        X, y, owner, truth = world(seed, clients, 20, kind is ct.LogisticModels)
        model = kind().fit(X, y, owner)
        pairs = zip(model.interval(0.9), model.intercept_interval(0.9), strict=True)
        low, high = (np.column_stack(pair) for pair in pairs)
        covered.append(((low < truth) & (truth < high)).mean())
    return np.array(covered)


@pytest.mark.parametrize(("kind", "sets"), [(ct.LinearModels, 25), (ct.LogisticModels, 8)])
def test_intervals_cover_with_ten_clients(kind, sets):
    """Columns of different sizes and spreads; a prior variance plugged in covers less, one for all far less."""
    covered = coverage(kind, 10, sets)
    assert abs(covered.mean() - 0.9) < 4 * covered.std() / np.sqrt(sets)


@pytest.mark.slow
@pytest.mark.parametrize("clients", [10, 30])
@pytest.mark.parametrize("kind", [ct.LinearModels, ct.LogisticModels])
def test_intervals_cover_within_two_percent(kind, clients):
    covered = coverage(kind, clients, 200)
    assert abs(covered.mean() - 0.9) < 0.02 + 2 * covered.std() / np.sqrt(200)


def test_units_do_not_matter_and_few_clients_are_not_understated():
    X, y, owner, _ = world(0, 30, 20)
    one, other = ct.LinearModels().fit(X, y, owner), ct.LinearModels().fit(X * [1e-3, 1e4], y * 50 + 1e6, owner)
    np.testing.assert_allclose(other.coef_ * [1e-3, 1e4] / 50, one.coef_, rtol=1e-3)
    np.testing.assert_allclose((other.intercept_ - 1e6) / 50, one.intercept_, rtol=1e-3)
    variances = []
    for seed in range(25):
        X, y, owner, _ = world(seed, 6, 20)
        variances.append(ct.LinearModels().fit(X, y, owner).prior_intercept_variance_)
    assert abs(np.mean(variances) - 1.0) < 4 * np.std(variances) / np.sqrt(25)


def test_without_groups_it_is_least_squares():
    X, y, _, _ = world(1, 10, 20)
    model = ct.LinearModels().fit(X, y)
    best = np.linalg.lstsq(np.column_stack([X, np.ones(200)]), y)[0]
    np.testing.assert_allclose(np.append(model.coef_[0], model.intercept_[0]), best, rtol=1e-6)
    np.testing.assert_allclose(model.predict(X), np.column_stack([X, np.ones(200)]) @ best, rtol=1e-6)


def test_known_prior_variances():
    X, y, owner, _ = world(2, 20, 5)
    mean, variance = np.array([1.0, -0.05, 2.0]), np.square([0.8, 0.03, 1.0])
    for given in (variance, np.diag(variance)):
        model = ct.LinearModels((mean, given), noise_variance=1.0).fit(X, y, owner)
        Z = np.column_stack([X, np.ones(len(X))])[owner == 3]
        M = np.linalg.inv(np.diag(1 / variance) + Z.T @ Z)
        np.testing.assert_allclose(
            np.append(model.coef_[3], model.intercept_[3]), M @ (Z.T @ y[owner == 3] + mean / variance)
        )
        np.testing.assert_allclose(model.standard_errors_[3], np.sqrt(np.diag(M))[:2])
    logistic = ct.LogisticModels((mean, variance)).fit(X, y > np.median(y), owner)
    assert np.isfinite(logistic.interval(0.9)).all()


def test_gradient_of_the_mixture_prior():
    """Finite differences of −log Σ_l p_l N(θ; μ_l, σ_l² I) (erratum E14)."""
    rng = np.random.default_rng(0)
    theta, p, mu, s2 = rng.normal(size=(1, 3)), np.array([0.3, 0.7]), rng.normal(size=(2, 3)), np.array([0.5, 2.0])

    def objective(at):
        density = p * (2 * np.pi * s2) ** -1.5 * np.exp(-np.square(at - mu).sum(1) / (2 * s2))
        return -np.log(density.sum())

    steps = 1e-6 * np.eye(3)
    slopes = [(objective(theta[0] + h) - objective(theta[0] - h)) / 2e-6 for h in steps]
    np.testing.assert_allclose(prior_gradient(theta, p, mu, s2)[0], slopes, rtol=1e-6)


@pytest.mark.parametrize("noise", [1.0, None])
def test_mixture_models_find_the_groups(noise):
    """Algorithm 4 (L-3)."""
    rng, rows = np.random.default_rng(0), 12 if noise else 60
    centers = [[2, 0, 0], [-2, 1, 0]]
    data = regression_clients(60, rows, 3, prior_variance=0.05, noise_variance=noise, centers=centers, rng=rng)
    model = ct.estimation.MixtureModels(2, fit_intercept=False, rounds=20).fit(data.X, data.y, data.groups)
    same = (model.labels_ == data.labels).mean()
    assert max(same, 1 - same) == 1
    kind = ct.LinearModels if noise else ct.LogisticModels
    one = kind(fit_intercept=False).fit(data.X, data.y, data.groups)
    error = [np.square(m.coef_ - data.truth).sum(1).mean() for m in (model, one)]
    assert error[0] < 0.8 * error[1]
    assert model.score(data.X, data.y, data.groups) > 0.6
    with pytest.raises(ValueError, match="at most the number of clients"):
        ct.estimation.MixtureModels(61).fit(data.X, data.y, data.groups)
    with pytest.raises(ValueError, match="floor"):
        ct.estimation.MixtureModels(floor=0).fit(data.X, data.y, data.groups)
