"""Settings that cannot be meant are refused when the algorithm is made, all in the same words."""

from dataclasses import MISSING, fields
from typing import get_type_hints

import numpy as np
import pytest

import coterie as ct
from coterie.aggregation import AGGREGATORS
from coterie.algorithms import ALGORITHMS

CLUSTERED = [ct.IFCA, ct.HypCluster, ct.OneShot, ct.MomentumClustering, ct.MyopicClustering]


@pytest.mark.parametrize("algorithm", CLUSTERED)
@pytest.mark.parametrize("wrong", [0, -1, 2.5, 2.0, True, "2"])
def test_clusters_are_a_whole_number(algorithm, wrong):
    with pytest.raises(
        ct.errors.ConfigError, match=f"{algorithm.__name__} needs clusters to be a whole number ≥ 1, or None; got"
    ):
        algorithm(clusters=wrong)


@pytest.mark.parametrize("algorithm", CLUSTERED)
def test_a_number_from_numpy_or_none_will_do(algorithm):
    assert algorithm(clusters=np.int64(2)) == algorithm(clusters=2)
    assert algorithm().clusters is None


@pytest.mark.parametrize("momentum", [-0.1, 1.0, 2, float("nan")])
def test_momentum_is_below_one(momentum):
    with pytest.raises(ct.errors.ConfigError, match=r"momentum (in|to be)"):
        ct.FederatedClustering(momentum=momentum)


@pytest.mark.parametrize("name", ["subsets", "inner", "local_steps"])
def test_federated_clustering_counts_in_whole_numbers(name):
    for wrong in (0, 1.5):
        with pytest.raises(ct.errors.ConfigError, match=f"{name} to be a whole number"):
            ct.FederatedClustering(**{name: wrong})


@pytest.mark.parametrize("algorithm", [ct.FederatedClustering, ct.MomentumClustering, ct.MyopicClustering])
@pytest.mark.parametrize("wrong", [0, -3, 1.5])
def test_a_batch_has_at_least_one_sample(algorithm, wrong):
    """A batch of none has no gradient, and one of −3 all samples but three."""
    with pytest.raises(ct.errors.ConfigError, match=f"{algorithm.__name__} needs batch_size to be a whole number ≥ 1"):
        algorithm(batch_size=wrong)


def _counts():
    """Every whole-number setting of every algorithm and aggregator."""
    for kind in {**ALGORITHMS, **AGGREGATORS}.values():
        hints = get_type_hints(kind)
        yield from ((kind, f.name) for f in fields(kind) if hints[f.name] in (int, int | None))


@pytest.mark.parametrize(("kind", "name"), list(_counts()), ids=str)
@pytest.mark.parametrize("wrong", [-1, 2.5])
def test_every_count_is_checked_when_the_object_is_made(kind, name, wrong):
    needed = {"n_corrupted": 1, "radius": 1.0}
    given = {f.name: needed[f.name] for f in fields(kind) if f.name in needed and f.default is MISSING}
    with pytest.raises(ct.errors.ConfigError, match=r"whole number|needs|need"):
        kind(**{**given, name: wrong})
