"""The estimator of the whole: scikit-learn's checks, routing, pipelines, searches; it never fits one client by accident."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import coterie as ct
from coterie.errors import ConfigError, DataError

REFUSED = "needs the client of every row"
IN_OTHER_WORDS = {  # scikit-learn's own sentence stands in front of the refusal, or in its place
    "check_positive_only_tag_during_fit",
    "check_classifiers_one_label",
    "check_fit2d_1sample",
    "check_fit2d_1feature",
}


def hashed(X: Any) -> Any:
    """A client for every row that depends on the row alone, so that scikit-learn's checks can fit."""
    try:
        values = np.asarray(X, float)
    except (TypeError, ValueError):
        return np.zeros(len(X) if hasattr(X, "__len__") else X.shape[0])
    many = values.ndim == 2 and values.shape[1] > 0
    return np.floor(np.abs(values[:, 0]) * 3) % 2 if many else np.zeros(len(values))


class Regressor(ct.CoterieRegressor):
    def fit(self, X, y, clients=None):
        return super().fit(X, y, hashed(X))

    def predict(self, X, clients=None):
        return super().predict(X, hashed(X))


class Classifier(ct.CoterieClassifier):
    def fit(self, X, y, clients=None):
        return super().fit(X, y, hashed(X))

    def predict_proba(self, X, clients=None):
        return super().predict_proba(X, hashed(X))


def rows(seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(seed)
    who = np.repeat([f"shop {i}" for i in range(8)], 25)
    slope = np.repeat(np.random.default_rng(1).normal(size=8), 25)
    X = pd.DataFrame({"shop": who, "x": rng.normal(size=200), "kind": rng.choice(["a", "b"], 200)})
    return X, 2 * slope * X["x"].to_numpy() + (X["kind"] == "a") + 0.3 * rng.normal(size=200)


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


@pytest.mark.parametrize("estimator", [ct.CoterieRegressor(), ct.CoterieClassifier()], ids=["regressor", "classifier"])
@pytest.mark.filterwarnings("ignore")
def test_the_only_checks_that_fail_without_clients_are_those_that_fit(estimator) -> None:
    found = check_estimator(estimator, on_fail=None, on_skip=None)
    failed = [r for r in found if r["status"] == "failed"]
    assert sum(r["status"] == "passed" for r in found) >= 20
    for result in failed:
        said = f"{result['exception']} {result['exception'].__cause__} {result['exception'].__context__}"
        assert REFUSED in said or result["check_name"] in IN_OTHER_WORDS, result["check_name"]


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [Regressor(family="linear"), Classifier(family="linear")], ids=str)
@pytest.mark.filterwarnings("ignore")
def test_scikit_learns_checks_hold_with_clients(estimator) -> None:
    ours = {"check_dtype_object": "What is no number gets a DataError, which is a ValueError, not a TypeError."}
    check_estimator(estimator, expected_failed_checks=ours, on_skip=None)


def test_clients_are_a_column_or_an_argument_and_give_the_same() -> None:
    X, y = rows()
    named = ct.CoterieRegressor(client="shop", family="linear").fit(X, y)
    given = ct.CoterieRegressor(family="linear").fit(X.drop(columns="shop"), y, clients=X["shop"])
    np.testing.assert_array_equal(named.predict(X), given.predict(X.drop(columns="shop"), clients=X["shop"]))
    new, truth = rows(1)
    assert named.score(new, truth) > 0.8
    bounds = named.predict_interval(new)
    assert 0.8 < ((bounds[:, 0] <= truth) & (truth <= bounds[:, 1])).mean() < 0.98
    assert set(named.basis(new)) == {"own"}
    assert set(named.basis(new.assign(shop="new"))) == {"population"}


def test_classes_have_probabilities() -> None:
    X, y = rows()
    labels = np.where(y > 0, "up", "down")
    model = ct.CoterieClassifier(client="shop", family="linear").fit(X, labels)
    np.testing.assert_allclose(model.predict_proba(X).sum(1), 1)
    assert list(model.classes_) == ["down", "up"]
    assert model.score(X, labels) > 0.8


def test_without_clients_it_refuses_instead_of_fitting_one_client() -> None:
    X, y = rows()
    numbers = X[["x"]].to_numpy()
    with pytest.raises(ConfigError, match=REFUSED):
        ct.CoterieRegressor().fit(numbers, y)
    model = ct.CoterieRegressor(family="linear").fit(numbers, y, clients=X["shop"])
    with pytest.raises(ConfigError, match=REFUSED):
        model.predict(numbers)
    with pytest.raises(DataError, match="2 clients need 4 rows"):
        ct.CoterieRegressor().fit(numbers, y, clients=np.zeros(len(y)))
    with pytest.raises(DataError, match="must name a column"):
        ct.CoterieRegressor(client="who").fit(X, y)
    with pytest.raises((ValueError, ConfigError)):  # a pipeline without routing cannot hand clients on
        make_pipeline(StandardScaler(), ct.CoterieRegressor()).fit(numbers, y, clients=X["shop"])


def test_a_pipeline_and_a_search_hand_clients_on(routing) -> None:
    X, y = rows()
    numbers, shops = X[["x"]].to_numpy(), X["shop"].to_numpy()
    pipe = make_pipeline(StandardScaler(), ct.CoterieRegressor(family="linear")).fit(numbers, y, clients=shops)
    own = pipe.score(numbers, y, clients=shops)
    assert own > pipe.score(numbers, y, clients=shops[::-1]) + 0.2
    search = GridSearchCV(ct.CoterieRegressor(), {"family": ["linear"], "random_state": [0, 1]}, cv=2)
    search.fit(numbers, y, clients=shops)
    assert set(search.cv_results_["param_random_state"]) == {0, 1}
    scores = cross_val_score(ct.CoterieRegressor(family="linear"), numbers, y, cv=2, params={"clients": shops})
    assert np.isfinite(scores).all()


def test_its_model_can_be_saved(tmp_path) -> None:
    X, y = rows()
    model = ct.CoterieRegressor(client="shop", family="linear").fit(X, y)
    again = ct.load_model(model.model_.save(tmp_path / "model"))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
