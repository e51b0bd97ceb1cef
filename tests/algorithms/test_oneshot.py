"""One-shot clustering: right where clients' own solutions tell groups apart, never repaired where they do not."""

import numpy as np
import pytest
import torch

import coterie as ct
from coterie.learning.metrics import cluster_accuracy

SOLVE = ct.LocalSGD(steps=300, lr=0.05, batch_size=None)
LOCAL = ct.LocalSGD(steps=5, lr=0.05, batch_size=None)


def test_it_finds_planted_groups_and_trains_inside_them(world):
    fed, _ = world.planted(3, 18, samples=40)
    result = ct.fit(ct.OneShot(clusters=3, local=LOCAL, solve=SOLVE), fed, world.linear(4), rounds=60, alone=False)
    assert cluster_accuracy(result.clusters.to_numpy(), fed.clusters) == 1
    for i in range(18):
        mine = [fed.train(j) for j in range(18) if fed.clusters[j] == fed.clusters[i]]
        x, y = (torch.cat(part).numpy() for part in zip(*mine, strict=True))
        pooled = np.linalg.lstsq(x, y, rcond=None)[0]
        np.testing.assert_allclose(world.personal(result)[i], pooled, atol=0.02)  # local steps drift a little


def test_its_errors_are_never_repaired_while_ifcas_are(world):
    """Three samples in four dimensions: a client's own minimiser says little."""
    fed, _ = world.planted(2, 40, samples=4, gap=1.0)
    task = world.linear(4)
    early, late = (
        ct.fit(ct.OneShot(clusters=2, local=LOCAL, solve=SOLVE), fed, task, rounds=r, alone=False).clusters
        for r in (1, 40)
    )
    assert early.equals(late)
    one_shot = cluster_accuracy(late.to_numpy(), fed.clusters)
    ifca = ct.fit(ct.IFCA(clusters=2, local=LOCAL), fed, task, rounds=40, alone=False).clusters
    assert one_shot < 0.95 < cluster_accuracy(ifca.to_numpy(), fed.clusters)


def test_everybody_is_clustered_whoever_takes_part(world):
    fed, _ = world.planted(2, 12)
    result = ct.fit(
        ct.OneShot(clusters=2, local=LOCAL, solve=SOLVE), fed, world.linear(4), rounds=2, cohort=2, alone=False
    )
    assert (result.state.label >= 0).all()
    assert cluster_accuracy(result.clusters.to_numpy(), fed.clusters) == 1


def test_a_client_that_missed_the_clustering_takes_the_best_model(world):
    fed, _ = world.planted(2, 12)
    channels = [world.Silent(3)]
    result = ct.fit(
        ct.OneShot(clusters=2, local=LOCAL, solve=SOLVE), fed, world.linear(4), rounds=3, channels=channels, alone=False
    )
    assert result.state.label[3] == -1
    assert cluster_accuracy(result.clusters.to_numpy(), fed.clusters) == 1


def test_on_names_the_part_that_is_clustered(world):
    fed, task = world.planted(2, 6, d=3)[0], world.linear(3, hidden=2)
    ct.fit(ct.OneShot(clusters=2, local=LOCAL, solve=SOLVE, on=("1.",)), fed, task, rounds=1, alone=False)
    with pytest.raises(ct.errors.ConfigError, match="No parameter"):
        ct.fit(ct.OneShot(clusters=2, local=LOCAL, solve=SOLVE, on=("7.",)), fed, task, rounds=1)


def test_parts_to_cluster_on_are_whole_names_in_any_sequence(world):
    fed, _ = world.planted(2, 4, d=3)
    for on, right in ((["1"], True), ("1.weight", True), (["weight"], False), (["1.w"], False)):
        run = ct.OneShot(clusters=2, on=on)
        if right:
            ct.fit(run, fed, world.linear(3, hidden=2), rounds=1, alone=False)
        else:
            with pytest.raises(ct.errors.ConfigError, match="No parameter"):
                ct.fit(run, fed, world.linear(3, hidden=2), rounds=1, alone=False)
