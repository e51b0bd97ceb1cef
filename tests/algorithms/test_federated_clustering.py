"""Federated-Clustering: equal to the oracle's update where balls are clusters, its cost, and who is lost."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import coterie as ct
from coterie.aggregation.threshold import threshold_clustering
from coterie.learning.metrics import cluster_accuracy, pairwise_quality


def groups_of_quadratics(world, clients=12, clusters=3, d=3, spread=0.5, seed=0):
    rng = np.random.default_rng(seed)
    own = np.arange(clients) % clusters
    return world.quadratics(100 * np.eye(clusters, d)[own] + spread * rng.normal(size=(clients, d)), own)


def test_where_balls_are_clusters_it_makes_the_oracles_update(world):
    """Gradients differ by (2/d)·(c_i − c_j): less than 3 inside a cluster, more than 60 outside. All start alike, so the
    mean gradient of the true cluster at x_i is the oracle's step."""
    fed, task = groups_of_quadratics(world), world.linear(3)
    clustering = ct.FederatedClustering(
        lr=0.3, radius=ct.robust.Fixed(10.0), inner=120
    )  # (1 − 1/3)^120: all of the way
    oracle = ct.Oracle(ct.LocalSGD(steps=1, lr=0.3, batch_size=None))
    for rounds in (1, 4):
        fc, gt = (ct.fit(a, fed, task, rounds=rounds, alone=False) for a in (clustering, oracle))
        np.testing.assert_allclose(world.personal(fc), world.personal(gt), rtol=1e-9, atol=1e-9)
    quality = pairwise_quality(fc.state.members, fed.clusters)
    assert quality.precision == quality.recall == 1
    assert cluster_accuracy(fc.clusters.to_numpy(), fed.clusters) == 1


def test_with_different_starts_it_uses_the_clusters_gradients_at_the_clients_own_model(world):
    fed, task = groups_of_quadratics(world), world.linear(3)
    clustering = ct.FederatedClustering(lr=0.3, radius=10.0, inner=120)
    start = ct.fit(clustering, fed, task, rounds=0, alone=False).state
    x = np.random.default_rng(1).normal(size=(12, 1, 3))
    end = ct.fit(
        clustering, fed, task, rounds=1, start=replace(start, models={"weight": torch.from_numpy(x)}), alone=False
    )
    centre = fed.y.reshape(12, 3).numpy()
    mean = np.stack([centre[fed.clusters == k].mean(0) for k in fed.clusters])
    np.testing.assert_allclose(world.personal(end), x[:, 0] - 0.3 * 2 / 3 * (x[:, 0] - mean), rtol=1e-9)


def test_few_inner_rounds_are_threshold_clustering_of_the_gradients(world):
    """A round against the stand-alone algorithm, client by client."""
    fed, task = groups_of_quadratics(world, spread=8.0), world.linear(3)
    rule = ct.robust.Percentile(25)
    end = ct.fit(ct.FederatedClustering(lr=0.1, radius=rule, inner=4), fed, task, rounds=1, alone=False)
    x0 = world.personal(ct.fit(ct.FederatedClustering(), fed, task, rounds=0, alone=False))
    gradients = 2 / 3 * (x0 - fed.y.reshape(12, 3).numpy())
    for i in range(12):
        v = threshold_clustering(gradients, gradients[i], rule, 4)
        np.testing.assert_allclose(world.personal(end)[i], x0[i] - 0.1 * v.centers[0], rtol=1e-9)
        assert (end.state.members[i].numpy() == v.members[0]).all()


# ---- cost ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("groups", "passes", "gradients"), [(1, 12, 144), (3, 4, 48), (5, 3, 2 * 9 + 3 * 4), (12, 1, 12)]
)
def test_a_round_asks_once_a_member_of_a_group_never_once_a_pair(world, groups, passes, gradients):
    fed, count = groups_of_quadratics(world), world.Count()
    algorithm = ct.FederatedClustering(radius=10.0, subsets=groups)
    result = ct.fit(algorithm, fed, world.linear(3), rounds=1, channels=[count], alone=False)
    assert len(count.asks) == passes
    assert sum(count.asks) == gradients
    assert result.history["bytes_up"].tolist() == [gradients * 3 * 8]


def test_groups_change_every_round_and_cover_everyone(world):
    fed = groups_of_quadratics(world)
    algorithm = ct.FederatedClustering(radius=1e9, subsets=4)  # balls hold the whole group
    seen = []
    for rounds in (1, 2):
        members = ct.fit(algorithm, fed, world.linear(3), rounds=rounds, alone=False).state.members.numpy()
        assert (members.sum(1) == 3).all()
        assert (members == members.T).all()
        seen.append(members)
    assert (seen[0] != seen[1]).any()


def test_local_steps_carry_the_momentum_on(world):
    """Where nobody else is in a ball, clustering at every third step and at every step are the same descent."""
    fed, task = groups_of_quadratics(world), world.linear(3)
    every, third = (
        ct.fit(
            ct.FederatedClustering(lr=0.1, radius=1e-9, inner=1, momentum=0.9, local_steps=s),
            fed,
            task,
            rounds=7,
            alone=False,
        )
        for s in (1, 3)
    )
    np.testing.assert_allclose(world.personal(third), world.personal(every), rtol=1e-9)
    np.testing.assert_allclose(third.state.velocity["weight"], every.state.velocity["weight"], rtol=1e-6)
    plain = ct.FederatedClustering(lr=0.1, radius=1e-9, inner=1, local_steps=3)
    slow = world.personal(ct.fit(plain, fed, task, rounds=7, alone=False))
    assert np.abs(slow - world.personal(third)).max() > 1


def test_local_steps_cluster_only_every_few_rounds(world):
    fed, count = groups_of_quadratics(world), world.Count()
    algorithm = ct.FederatedClustering(lr=0.1, radius=10.0, local_steps=3)
    end = ct.fit(algorithm, fed, world.linear(3), rounds=2, channels=[count], alone=False)
    assert count.asks == [12, 12]  # two plain local steps
    alone = ct.fit(ct.Local(ct.LocalSGD(steps=1, lr=0.1, batch_size=None)), fed, world.linear(3), rounds=2, alone=False)
    np.testing.assert_allclose(world.personal(end), world.personal(alone), rtol=1e-12)
    ct.fit(algorithm, fed, world.linear(3), rounds=3, channels=[count], alone=False)
    assert count.asks[2:] == [12, 12] + 12 * [12]


def test_momentum_acts_after_clustering(world):
    """One cluster in a ball: heavy-ball steps on the mean quadratic."""
    fed = world.quadratics([[1.0], [3.0]])
    algorithm = ct.FederatedClustering(lr=0.1, radius=1e9, inner=80, momentum=0.9)
    start = {"weight": torch.tensor([[5.0]], dtype=torch.float64)}
    result = ct.fit(algorithm, fed, world.linear(1), rounds=3, start=start, alone=False)
    x, velocity = 5.0, 0.0
    for _ in range(3):
        velocity = 0.9 * velocity + 2 * (x - 2)
        x -= 0.1 * velocity
    np.testing.assert_allclose(world.personal(result), [[x], [x]], rtol=1e-9)


# ---- lost clients ----------------------------------------------------------------------------------------------------


def test_a_client_that_never_answers_keeps_its_model_and_the_others_go_on(world):
    fed, task = groups_of_quadratics(world), world.linear(3)
    algorithm = ct.FederatedClustering(lr=1.5, radius=10.0, inner=120)  # lr 1.5: the minimum in one step
    result = ct.fit(algorithm, fed, task, rounds=2, channels=[world.Silent(4)], alone=False)
    start = ct.fit(algorithm, fed, task, rounds=0, alone=False)
    moved = world.personal(result)
    kept = result.state.models["weight"].reshape(12, 3)[4]
    np.testing.assert_array_equal(kept, world.personal(start)[4])
    np.testing.assert_allclose(moved[4], np.delete(moved, 4, 0).mean(0))  # what is known of the others
    centre = fed.y.reshape(12, 3).numpy()
    for i in (j for j in range(12) if j != 4):
        others = [j for j in range(12) if j != 4 and fed.clusters[j] == fed.clusters[i]]
        np.testing.assert_allclose(moved[i], centre[others].mean(0), atol=1e-9)
    assert (result.history["lost"] == 1).all()


def test_random_losses_and_partial_cohorts_still_converge(world):
    fed = groups_of_quadratics(world, spread=0.0)
    algorithm = ct.FederatedClustering(lr=0.5, radius=10.0, subsets=2)
    result = ct.fit(
        algorithm, fed, world.linear(3), rounds=80, cohort=8, channels=[ct.exchange.Dropout(0.3)], alone=False
    )
    np.testing.assert_allclose(world.personal(result), fed.y.reshape(12, 3).numpy(), atol=0.5)


def test_bad_settings_are_refused():
    for wrong in ({"subsets": 0}, {"inner": 0}, {"local_steps": 0}):
        with pytest.raises(ct.errors.ConfigError):
            ct.FederatedClustering(**wrong)


@pytest.mark.parametrize(
    ("factor", "rounds", "clients"), [(1e4, 14, 6), pytest.param(100.0, 60, 12, marks=pytest.mark.slow)]
)
def test_a_liar_whose_own_model_explodes_ends_nobodys_run(make_fed, number_task, factor, rounds, clients) -> None:
    """Nobody else's gradients hold a liar's model back; it stays at its last finite value and the others go on."""
    fed = make_fed(sizes=(30,) * clients, kind="regression")
    liar = fed.clients[0]
    attack = ct.exchange.channels.attacks.LargeGradient([liar], factor)
    result = ct.fit(ct.FederatedClustering(lr=0.3), fed, number_task, rounds=rounds, channels=[attack], alone=False)
    assert result.about["finished"]
    assert all(bool(torch.isfinite(t).all()) for t in result.state.models.values())
    dropped = result.about["dropped"]
    assert dropped[0]["round"] > 1
    assert liar in {d["client"] for d in dropped}
    assert float(max(t[0].abs().max() for t in result.state.models.values())) > 1e15  # it did explode
    honest = ct.fit(ct.FederatedClustering(lr=0.3), fed, number_task, rounds=rounds, alone=False)
    rest, without = (r.evaluate().drop(liar)["mse"].mean() for r in (result, honest))
    assert rest < 1.2 * without
