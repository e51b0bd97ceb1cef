"""What to deploy is close to the best candidate, whatever that is, and its parts can be written as arrays."""

from dataclasses import replace

import numpy as np
import pytest

import coterie as ct
from coterie.comparison.deploy.choice import deployed
from coterie.comparison.deploy.parts import LinearPart
from coterie.comparison.deploy.trees import TreesPart
from coterie.comparison.exact.evaluation import evaluate
from coterie.comparison.exact.predictor import learn_all
from coterie.data.coded_table import Table, make_table
from coterie.errors import ConfigError


def _table(kind: str, seed: int = 0, m: int = 8, n: int = 60) -> Table:
    """Clients with their own slopes, and a curve that all share."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(m), n)
    X = rng.normal(size=(m * n, 3))
    slope = rng.normal(size=(m, 1))[owner, 0]
    y = slope * X[:, 0] + 2 * np.abs(X[:, 1]) + 0.5 * rng.normal(size=m * n)
    target = y if kind == "regression" else (y > np.median(y)).astype(int)
    return make_table(X, target, owner, kind, None)


def _deployed(table: Table, **options):
    metric = "mse" if table.classes is None else "log_loss"
    return deployed(table, evaluate(table, folds=10), learn_all(table, 0), metric, **options)


@pytest.mark.parametrize("kind", ["regression", "classification"])
def test_a_shared_curve_is_deployed_though_no_linear_way_has_it(kind):
    found = _deployed(_table(kind))
    ways = found.losses[["alone", "together", "shrunk", "groups"]]
    assert found.losses["shrunk + trees"] < 0.9 * ways.min()
    assert found.loss < 1.05 * found.losses.min()
    assert found.weights["shrunk + trees"] > 0.3
    assert abs(found.weights.sum() - 1) < 1e-9
    assert "shrunk + trees" in found.words()


def test_linear_only_has_no_trees_and_the_expected_loss_holds_on_new_rows():
    table, new = _table("regression"), _table("regression", seed=0, n=60)
    found = _deployed(table, family="linear")
    assert not [name for name in found.weights.index if "trees" in name]
    rng = np.random.default_rng(9)
    X = rng.normal(size=(4000, 3))
    owner = rng.integers(8, size=4000)
    slope = np.random.default_rng(0)
    slope.normal(size=(480, 3))
    true = slope.normal(size=(8, 1))[owner, 0] * X[:, 0] + 2 * np.abs(X[:, 1]) + 0.5 * rng.normal(size=4000)
    real = ((found.stack.outputs(X, owner)[:, 0] - true) ** 2).mean() / new.y.var()
    assert abs(real - found.loss) < 0.12 * found.loss


def test_an_expected_loss_against_alone_is_said_plainly():
    found = _deployed(_table("regression", n=20), family="linear", newcomers=False)
    worse = replace(found, gain=-0.066, interval=(-0.3, 0.17)).words()
    assert "is 6.6 % more than alone (the interval from 30.0 % more to 17.0 % less holds no difference, too)" in worse
    assert (
        "8.0 % less than alone (interval 2.0 % less to 11.0 % less)"
        in replace(found, gain=0.08, interval=(0.02, 0.11)).words()
    )


@pytest.mark.parametrize("kind", ["regression", "classification"])
def test_every_part_survives_as_arrays(kind):
    table = _table(kind)
    for name, part in _deployed(table).stack.parts.items():
        again = (TreesPart if "trees" in name else LinearPart).of(part.arrays())
        owner = np.concatenate([table.owner[:-3], [-1, -1, -1]])
        np.testing.assert_array_equal(again.outputs(table.X, owner), part.outputs(table.X, owner))


def test_no_part_holds_training_rows():
    table = _table("regression")
    for part in _deployed(table).stack.parts.values():
        for value in part.arrays().values():
            assert len(table.y) not in np.shape(value)


def test_proven_and_deploy_are_two_answers():
    rng = np.random.default_rng(0)
    arrays = {f"c{i}": (rng.normal(size=(30, 2)), rng.normal(size=30)) for i in range(6)}
    found = ct.compare(arrays, kind="regression")
    assert found.proven.sure == "nothing"
    assert found.deploy is not None
    assert found.deploy.loss <= 1.05 * found.deploy.constant  # in noise the stack falls back to the average
    assert found.to_json()["deploy"]["weights"]


def test_an_unknown_family_is_refused():
    with pytest.raises(ConfigError, match="family must be"):
        ct.compare({"a": (np.zeros((5, 1)), np.zeros(5))}, family="forest")
