"""CFL: several splits on the right clients, and what the linkages do."""

from itertools import product

import numpy as np
import pytest
import torch

import coterie as ct
from coterie.algorithms.cfl import bipartition
from coterie.exchange.messages import Population
from coterie.learning.metrics import adjusted_rand

STEP = ct.LocalSGD(steps=1, lr=0.1, batch_size=None)
CORNERS = np.array([(2.0, 1.0), (2.0, -1.0), (-2.0, 1.0), (-2.0, -1.0)])  # left and right part first, then up and down


def corners(world, clients=24, seed=0):
    """Four groups in a shuffled order; a client's update is 0.1 · (centre − w)."""
    rng = np.random.default_rng(seed)
    own = rng.permutation(np.arange(clients) % 4)
    return world.quadratics(CORNERS[own] + 0.01 * rng.normal(size=(clients, 2)), own)


@pytest.mark.parametrize("linkage", ["single", "complete"])
def test_groups_found_over_several_splits_are_the_planted_ones(world, linkage):
    fed = corners(world)
    cfl = ct.CFL(STEP, quiet=0.005, loud=0.05, first=5, linkage=linkage)
    counts, labels = [], []

    def note(row, state):
        counts.append(len(state.models["weight"]))
        labels.append(state.label.clone())

    result = ct.fit(cfl, fed, world.linear(2), rounds=150, alone=False, callbacks=[note])
    assert sorted(set(counts)) in ([1, 2, 4], [1, 2, 3, 4])  # at least two levels of splits
    halves = labels[counts.index(2)]
    assert adjusted_rand(halves, fed.clusters // 2) == 1
    assert adjusted_rand(result.clusters.to_numpy(), fed.clusters) == 1
    np.testing.assert_allclose(world.personal(result), CORNERS[fed.clusters], atol=0.02)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_with_half_the_clients_a_round_nobody_is_mixed_up(world, seed):
    fed = corners(world, 32, seed)
    cfl = ct.CFL(STEP, quiet=0.04, loud=0.06, first=20)  # quiet < loud: a pure group on its way is not split
    result = ct.fit(cfl, fed, world.linear(2), rounds=250, cohort=16, seed=seed, alone=False)
    assert adjusted_rand(result.clusters.to_numpy(), fed.clusters) == 1


def test_it_does_not_split_what_agrees_nor_before_its_time(world):
    same = world.quadratics(np.tile([3.0, 4.0], (8, 1)) + 0.01 * np.random.default_rng(0).normal(size=(8, 2)))
    cfl = ct.CFL(STEP, quiet=0.005, loud=0.05, first=5)
    assert ct.fit(cfl, same, world.linear(2), rounds=80, alone=False).clusters.nunique() == 1
    late = ct.CFL(STEP, quiet=0.005, loud=0.05, first=200)
    assert ct.fit(late, corners(world), world.linear(2), rounds=150, alone=False).clusters.nunique() == 1
    most = ct.CFL(STEP, quiet=0.005, loud=0.05, first=5, most=3)
    assert ct.fit(most, corners(world), world.linear(2), rounds=150, alone=False).clusters.nunique() == 3


def cross(updates, part):
    unit = torch.nn.functional.normalize(updates.double(), dim=1)
    return float((unit @ unit.T)[torch.from_numpy(part)][:, torch.from_numpy(~part)].max())


@pytest.mark.parametrize("seed", range(20))
def test_single_linkage_is_the_best_bipartition(seed):
    """Smallest largest similarity between the parts, against every bipartition."""
    updates = torch.randn(7, 3, generator=torch.Generator().manual_seed(seed))
    every = (np.array((True, *rest)) for rest in product((False, True), repeat=6))
    best = min(cross(updates, part) for part in every if not part.all())
    assert cross(updates, bipartition(updates, "single")) == pytest.approx(best)


def test_complete_linkage_is_something_else():
    """Directions of 0, 20, 40, 60, 80 and 115 degrees: the widest gap is before the last."""
    angle = torch.deg2rad(torch.tensor([0.0, 20, 40, 60, 80, 115]))
    updates = torch.stack([angle.cos(), angle.sin()], 1)
    single, complete = (bipartition(updates, rule) for rule in ("single", "complete"))
    assert sorted((int(single.sum()), int((~single).sum()))) == [1, 5]
    assert min(int(complete.sum()), int((~complete).sum())) >= 2
    assert cross(updates, single) < cross(updates, complete)


@pytest.mark.parametrize("unit", [1.0, 1e-3, 1e3])
def test_relative_thresholds_split_whatever_the_unit_of_the_updates(world, unit):
    """The same world in three units; absolute thresholds that fit one of them fail in the others and say so."""
    own = np.random.default_rng(0).permutation(np.arange(24) % 4)
    fed = world.quadratics(unit * (CORNERS[own] + 0.01 * np.random.default_rng(1).normal(size=(24, 2))), own)
    start = {"weight": torch.zeros(1, 2, dtype=torch.float64)}
    options = {"rounds": 110, "start": start, "alone": False}
    cfl = ct.CFL(STEP, quiet=0.02, loud=0.2, first=5, relative=True)
    result = ct.fit(cfl, fed, world.linear(2), **options)
    assert adjusted_rand(result.clusters.to_numpy(), own) == 1
    assert "notes" not in result.about
    published = ct.fit(ct.CFL(STEP), fed, world.linear(2), **options | {"rounds": 25})
    if published.clusters.nunique() == 1:
        assert published.about["notes"][0].startswith("CFL never split the clients: no cluster had a mean update below")
    assert unit != 1.0 or published.clusters.nunique() == 1


@pytest.mark.parametrize("wrong", [{"first": -1}, {"most": 0}, {"linkage": "ward"}, {"quiet": 0.0}, {"most": 2.5}])
def test_settings_that_cannot_be_meant_are_refused(wrong):
    with pytest.raises(ct.errors.ConfigError, match="CFL needs"):
        ct.CFL(**wrong)


def test_inside_a_cluster_it_is_fedavg(fed, task):
    """Clients of 5 to 64 rows count by their rows, as step (a) says; before the first split all are one cluster."""
    local = ct.LocalSGD(steps=3, lr=0.1, batch_size=4)
    cfl, one = (ct.fit(a, fed, task, rounds=2, alone=False) for a in (ct.CFL(local, first=99), ct.FedAvg(local)))
    for name, model in one.state.model.items():
        torch.testing.assert_close(cfl.state.models[name][0], model)


def test_more_clients_than_can_be_compared_in_pairs_are_refused() -> None:
    ones, start = np.ones(20_001, np.int64), {"w": torch.zeros(1)}
    with pytest.raises(ct.errors.ConfigError, match=r"every pair of clients, .* at most 20,000; got 20,001"):
        ct.CFL().init(None, Population(20_001, ones, ones), 0, start)  # type: ignore[arg-type]
