"""Shapes and names carry data: a private run's receipt is void for facts that were read from clients' rows."""

import numpy as np
import pytest

import coterie as ct
from coterie.errors import ConfigError
from coterie.privacy import public

pytestmark = pytest.mark.filterwarnings("ignore::coterie.errors.CoterieWarning")
EXACT = ct.Privacy(3.0, 1e-6, clip=1.0)
SGD = ct.LocalSGD(steps=1, lr=0.1, batch_size=None)


def arrays(rare=False, weights=False):
    rng = np.random.default_rng(0)
    data = {}
    for i in range(6):
        y = np.arange(8) % 2 if not (rare and i == 0) else np.arange(8) % 3
        data[f"c{i}"] = (rng.normal(size=(8, 3)), y, np.ones(8)) if weights else (rng.normal(size=(8, 3)), y)
    return data


def receipt(fed, algorithm=None):
    return ct.fit(algorithm or ct.FedAvg(SGD), fed, rounds=1, alone=False, privacy=EXACT).receipt


def test_a_class_of_one_client_voids_the_receipt_unless_declared():
    for rare in (False, True):
        found = receipt(ct.Federation.from_arrays(arrays(rare)))
        assert not found.valid
        assert any("the classes came from" in r for r in found.reasons)
    declared = receipt(ct.Federation.from_arrays(arrays(), classes=public([0, 1, 2])))
    assert declared.valid, declared.reasons
    assert "declared public by the user: the classes 0, 1, 2" in declared.public
    by_name = receipt(ct.Federation.from_arrays(arrays()).declare_public("classes", "kind"))
    assert by_name.valid, by_name.reasons


def test_declared_classes_survive_files_and_subsets(tmp_path):
    fed = ct.Federation.from_arrays(arrays(), classes=public([0, 1, 2]))
    fed.save(tmp_path)
    assert receipt(ct.Federation.load(tmp_path)).valid
    assert not receipt(ct.Federation.load(ct.Federation.from_arrays(arrays()).save(tmp_path))).valid


def test_groups_and_weights_and_kind():
    clusters = {f"c{i}": i % 2 for i in range(6)}
    fed = ct.Federation.from_arrays(arrays(), classes=public([0, 1]), clusters=clusters)
    assert receipt(fed).valid
    assert any("groups" in r for r in receipt(fed, ct.FineTuned(ct.Oracle(SGD))).reasons)
    assert receipt(fed.declare_public("clusters"), ct.Oracle(SGD)).valid
    weighed = ct.Federation.from_arrays(arrays(weights=True), classes=public([0, 1]))
    assert receipt(weighed).valid  # every client divides its weights by its own smallest
    numbers = {c: (x, x[:, 0]) for c, (x, _) in arrays().items()}
    assert any("classes or numbers" in r for r in receipt(ct.Federation.from_arrays(numbers)).reasons)
    assert receipt(ct.Federation.from_arrays(numbers, kind="regression")).valid


def test_an_unknown_fact_is_refused():
    with pytest.raises(ConfigError, match="Facts to declare public"):
        ct.Federation.from_arrays(arrays()).declare_public("colours")
