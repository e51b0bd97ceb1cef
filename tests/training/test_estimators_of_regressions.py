"""Linear and logistic models fitted to what clients tell give the numbers of the same rows in memory, on every engine."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

import coterie as ct
from coterie.engines import LocalEngine
from coterie.errors import ConfigError, DataError
from coterie.exchange.messages import Ask, Reply

SAME = {"coef_", "intercept_", "mean_", "prior_covariance_", "standard_errors_", "client_risk_", "weights_"}


def clients(kind: str, m: int = 12, n: int = 30, seed: int = 0) -> ct.Federation:
    rng, data = np.random.default_rng(seed), {}
    for i in range(m):
        rows = n + i % 7
        x = rng.normal(size=(rows, 3)) * [1, 5, 0.1]
        score = x @ (np.array([1.0, -0.1, 3.0]) + rng.normal(size=3) * [0.5, 0.1, 1.0]) + 0.4 * rng.normal()
        y = (
            score + rng.normal(size=rows)
            if kind == "regression"
            else (rng.random(rows) < 1 / (1 + np.exp(-score))).astype(int)
        )
        data[f"c{i}"] = (x, y)
    return ct.Federation.from_arrays(data, kind=kind, dtype="float64", one_class="allow")


def here(estimator: Any, fed: ct.Federation) -> Any:
    X, y, owner = fed.rows("train")
    return clone(estimator).fit(X, y, fed.clients.to_numpy()[owner])


def apart(one: Any, other: Any) -> float:
    assert list(one.clients_) == list(other.clients_)
    return max(float(np.abs(getattr(one, name) - getattr(other, name)).max()) for name in SAME)


@dataclass
class Losing:
    """An engine that loses these clients from its `since`-th question on."""

    lost: Any
    since: int
    asked: list[str] = field(default_factory=list)
    engine: Any = field(default_factory=lambda: LocalEngine(workers=1))

    def run(self, ask: Ask, env: Any) -> Reply:
        self.asked.append(ask.name)
        keep = ~np.isin(ask.clients, self.lost if len(self.asked) > self.since else [])
        return replace(self.engine.run(ask.only(keep), env), lost=ask.clients[~keep])


@pytest.mark.parametrize("how", ["diag", "full", "shared", "spherical", "gradient"])
def test_linear_models_are_those_in_memory(how: str) -> None:
    fed, gradient = clients("regression"), how == "gradient"
    made = ct.LinearModels(covariance_type="auto" if gradient else how, method=how if gradient else "em")
    there = ct.fit(made, fed)
    assert there is made
    assert apart(here(made, fed), there) < 1e-10
    assert there.noise_variance_ == pytest.approx(here(made, fed).noise_variance_)
    x, _ = fed.train("c3")
    np.testing.assert_allclose(there.predict(x, ["c3"] * len(x)), here(made, fed).predict(x, ["c3"] * len(x)))


@pytest.mark.parametrize("how", ["diag", "full", "shared"])
def test_logistic_models_are_those_in_memory(how: str) -> None:
    fed, made = clients("classification"), ct.LogisticModels(covariance_type=how)
    engine = Losing([], 0)
    assert apart(here(made, fed), ct.fit(made, fed, engine=engine)) < 1e-8
    assert made.predict_proba(fed.train("c1")[0], ["c1"] * len(fed.train("c1")[0])).shape[1] == 2
    assert engine.asked[0] == "moments"
    assert engine.asked[-1] == "posteriors"
    assert set(engine.asked[1:-1]) == {"forms"}


@pytest.mark.parametrize("engine", ["local", "loop", pytest.param("ray", marks=pytest.mark.ray)])
def test_every_engine_gives_the_same(engine: str) -> None:
    for kind, made in (("regression", ct.LinearModels()), ("classification", ct.LogisticModels())):
        fed = clients(kind)
        assert apart(here(made, fed), ct.fit(made, fed, engine=engine)) < 1e-8


@pytest.mark.parametrize(("kind", "made"), [("regression", ct.LinearModels()), ("classification", ct.LogisticModels())])
def test_a_thousand_devices_of_which_some_drop_out(kind: str, made: Any) -> None:
    """Lost devices are left out: the fit is that of the others, also where they are lost between two rounds."""
    fed = clients(kind, m=1000, n=8, seed=3)
    lost = np.random.default_rng(1).choice(1000, 80, replace=False)
    there = ct.fit(made, fed, engine=Losing(lost, 0 if kind == "regression" else 2))
    others = fed.subset([c for i, c in enumerate(fed.clients) if i not in set(lost.tolist())])
    assert len(there.clients_) == 920
    assert apart(here(made, others), there) < 1e-8


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(DataError, match="LinearModels is for a target of a number"):
        ct.fit(ct.LinearModels(), clients("classification"))
    with pytest.raises(DataError, match="LogisticModels is for a target of two classes"):
        ct.fit(ct.LogisticModels(), clients("regression"))
    with pytest.raises(ConfigError, match="one variance for all would need"):
        ct.fit(ct.LogisticModels(covariance_type="spherical"), clients("classification"))
    with pytest.raises(DataError, match="No client answered"):
        ct.fit(ct.LinearModels(), clients("regression"), engine=Losing(np.arange(12), 0))
    with pytest.raises(DataError, match="two or more clients"):
        ct.fit(ct.LinearModels(), clients("regression", m=1))
