"""scikit-learn's own checks of every estimator, with the checks that do not fit and why; frames, dicts, new clients."""

import numpy as np
import pandas as pd
import pytest
from sklearn.utils.estimator_checks import check_estimator

import coterie as ct
from coterie.errors import DataError

OURS = {"check_dtype_object": "What is no number gets a DataError, which is a ValueError, not a TypeError."}
CLIENTS = OURS | dict.fromkeys(
    [
        "check_n_features_in_after_fitting",
        "check_n_features_in",
        "check_transformer_general",
        "check_fit2d_predict1d",
        "check_estimators_empty_data_messages",
        "check_fit2d_1feature",
        "check_fit2d_1sample",
    ],
    "A row of a plain (m, n) array is a client with n samples of one number, so that n may differ from call to call, one "
    "column shows no noise, and the messages speak of clients and samples.",
)
COUNTS = dict.fromkeys(
    [
        "check_fit_score_takes_y",
        "check_estimators_overwrite_params",
        "check_dont_overwrite_parameters",
        "check_estimators_fit_returns_self",
        "check_readonly_memmap_input",
        "check_n_features_in_after_fitting",
        "check_positive_only_tag_during_fit",
        "check_estimators_dtypes",
        "check_complex_data",
        "check_dtype_object",
        "check_estimators_empty_data_messages",
        "check_pipeline_consistency",
        "check_estimators_nan_inf",
        "check_estimator_sparse_tag",
        "check_estimator_sparse_array",
        "check_estimator_sparse_matrix",
        "check_estimators_pickle",
        "check_f_contiguous_array_estimator",
        "check_methods_sample_order_invariance",
        "check_methods_subset_invariance",
        "check_fit2d_1sample",
        "check_fit2d_1feature",
        "check_dict_unchanged",
        "check_fit_idempotent",
        "check_fit_check_is_fitted",
        "check_n_features_in",
        "check_fit2d_predict1d",
    ],
    "Successes and trials are counts, one of each per client; scikit-learn's checks fit features and a target.",
)
PROBABILITIES = "scikit-learn asks every estimator with predict_proba whether it is a classifier of many classes."
SOFT = OURS | dict.fromkeys(["check_estimator_sparse_array", "check_estimator_sparse_matrix"], PROBABILITIES)
ONE_ROW = {"check_fit2d_1sample": "One row is one client; the message speaks of clients."}
ESTIMATORS = [
    (ct.LinearModels(), OURS),
    (ct.LogisticModels(), OURS),
    (ct.estimation.MixtureModels(clusters=1, rounds=2, steps=2), OURS | ONE_ROW),
    (ct.GaussianMeans(), CLIENTS),
    (ct.MixtureMeans(n_init=2), CLIENTS),
    (ct.BernoulliRates(), COUNTS),
    (ct.HistogramMixture(2, threads=1), OURS),
    (ct.histograms.FedAvgHistogram(), OURS),
    (ct.histograms.LocalHistograms(), OURS),
    (ct.histograms.IFCAHistograms(2, max_iter=5, threads=1), OURS),
    (ct.histograms.DirichletMultinomialMixture(2, max_iter=5), SOFT),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("estimator", "excepted"), ESTIMATORS, ids=lambda e: type(e).__name__)
def test_scikit_learn_s_checks(estimator, excepted):
    results = check_estimator(estimator, on_fail=None, on_skip=None)
    failed = {r["check_name"]: r["exception"] for r in results if r["status"] == "failed"}
    assert set(failed) <= set(excepted), {k: str(v)[:300] for k, v in failed.items() if k not in excepted}
    assert len(results) > 35


def frame(seed=0, clients=8, n=10):
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({"age": rng.normal(50, 10, clients * n), "dose": rng.normal(size=clients * n)})
    table["site"] = np.repeat([f"s{i}" for i in range(clients)], n)
    site = np.repeat(rng.normal(0, 2, clients), n)
    return table, 3 + 0.1 * table["age"] - table["dose"] + site + rng.normal(size=clients * n)


@pytest.mark.parametrize("kind", [ct.LinearModels, ct.LogisticModels])
def test_reordered_columns_are_refused(kind):
    table, y = frame()
    y = y > y.median() if kind is ct.LogisticModels else y
    model = kind().fit(table, y, "site")
    assert model.n_features_in_ == 2
    assert model.feature_names_in_.tolist() == ["age", "dose"]
    np.testing.assert_allclose(model.predict(table, "site"), model.predict(table[["age", "dose"]], table["site"]))
    with pytest.raises(DataError, match="feature names should match"):
        model.predict(table[["dose", "age"]], table["site"])
    with pytest.raises(DataError, match="must name a column"):
        model.predict(table[["age", "dose"]], "hospital")


@pytest.mark.parametrize("kind", [ct.LinearModels, ct.LogisticModels])
def test_dicts_and_weights_and_new_clients(kind):
    table, y = frame(1, clients=12)
    y = (y > y.median()).to_numpy() if kind is ct.LogisticModels else y.to_numpy()
    X, site = table[["age", "dose"]].to_numpy(), table["site"].to_numpy()
    model = kind().fit(X, y, site)
    names = np.unique(site)
    parts = {s: X[site == s] for s in names}, {s: y[site == s] for s in names}
    np.testing.assert_allclose(kind().fit(*parts).coef_, model.coef_, rtol=1e-6)
    twice = kind().fit(np.vstack([X, X]), np.append(y, y), np.append(site, site))
    weighted = kind().fit(X, y, site, sample_weight=np.full(len(y), 2.0))
    if kind is ct.LogisticModels:  # as often as the weight says, but for one EP site instead of two
        np.testing.assert_allclose(weighted.coef_, twice.coef_, rtol=0.05)
        assert np.abs(weighted.coef_ / model.coef_ - 1).max() > 0.1
    else:  # noise of variance σ²/w: the same fit, and half the weight-1 noise at weight ½
        np.testing.assert_allclose(weighted.coef_, model.coef_, rtol=1e-5)
        assert weighted.noise_variance_ == pytest.approx(2 * model.noise_variance_, rel=1e-4)
    none = np.where(site == "s3", 0.0, 1.0)
    left = kind().fit(X, y, site, none)
    assert "s3" not in left.clients_
    new = left.personalise(X[site == "s3"], y[site == "s3"])
    assert new.coef_.shape == (1, 2)
    place = list(model.clients_).index("s3")
    np.testing.assert_allclose(new.intercept_[0], model.intercept_[place], atol=3 * new.intercept_standard_errors_[0])
    low, high = new.interval(0.9)
    assert (low < new.coef_).all()
    assert (new.coef_ < high).all()
    assert (left.coef_ != new.coef_[0]).any()
    alone = left.predict(X[:1], ["s3"])
    np.testing.assert_array_equal(alone, left.predict(X[:1]))  # clients never seen get the population's model


def test_means_of_frames_dicts_and_new_clients():
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(rng.normal(size=(60, 2)), columns=["a", "b"]).assign(who=np.repeat(list("uvwxyz"), 10))
    for kind in (ct.GaussianMeans(), ct.MixtureMeans(2, component_variance=None, n_init=2)):
        model = kind.fit(rows, groups="who")
        assert model.clients_.tolist() == list("uvwxyz")
        assert model.feature_names_in_.tolist() == ["a", "b"]
        with pytest.raises(DataError, match="feature names should match"):
            model.transform(rows[["b", "a"]], groups=rows["who"])
        one = {"new": pd.DataFrame({"a": [5.0, 4.0], "b": [5.0, 6.0]})}
        estimate = model.personalise(one)
        assert estimate.shape == (1, 2)
        assert (estimate < 5).all()
        as_dict = {w: part[["a", "b"]].to_numpy() for w, part in rows.groupby("who")}
        np.testing.assert_allclose(kind.fit(as_dict).estimates_, kind.fit(rows, groups="who").estimates_)
        np.testing.assert_allclose(kind.fit_transform(as_dict), kind.estimates_)
        with pytest.raises(DataError, match="is expecting 2 features"):
            model.transform([[1.0, 2.0]])


def test_rates_of_new_clients():
    model = ct.BernoulliRates().fit({"a": 3, "b": 9, "c": 5, "d": 1}, 10)
    assert model.clients_.tolist() == list("abcd")
    alpha, beta = model.prior_
    np.testing.assert_allclose(
        model.predict([4, 0], [7, 0]), [(alpha + 4) / (alpha + beta + 7), alpha / (alpha + beta)]
    )
    table = pd.DataFrame({"trials": [10, 10, 10, 10], "successes": [3, 9, 5, 1]}, index=list("abcd"))
    np.testing.assert_allclose(ct.BernoulliRates().fit(table).rates_, model.rates_)
    with pytest.raises(DataError, match="the same clients"):
        ct.BernoulliRates().fit({"a": 3, "b": 9, "c": 5}, {"a": 4, "b": 9, "x": 5})


@pytest.mark.parametrize(
    ("X", "y", "groups", "weight", "message"),
    [
        ({}, {}, None, None, "at least one client"),
        ({"a": [[1.0]], "b": [[2.0]]}, {"a": [1.0]}, None, None, "same clients"),
        ({"a": [[1.0]], "b": [[2.0, 3.0]]}, [1.0, 2.0], None, None, "same columns"),
        ({"a": [[1.0]], 3: [[2.0]]}, [1.0, 2.0], None, None, "one type"),
        ([[1.0], [2.0]], [1.0, 2.0], ["a", "b"], [1.0, -1.0], "sample_weight must hold"),
        ([[1.0], [2.0]], [1.0, 2.0], ["a", "b"], [0.0, 0.0], "sample_weight must hold"),
        ([[1.0], [2.0]], [1.0, 2.0], ["a", "b"], [1.0], "sample_weight must hold"),
        (np.ones((6, 1)), np.arange(6.0), np.arange(6), None, "every client has one row"),
        (np.array([[1j], [2.0], [3.0]]), [1.0, 2.0, 0.0], ["a", "b", "b"], None, "Complex"),
    ],
)
def test_odd_input_gets_one_sentence(X, y, groups, weight, message):
    with pytest.raises(DataError, match=message):
        ct.LinearModels().fit(X, y, groups, weight)
