"""IFCA and HypCluster with a robust rule: the rule per cluster, the start, who lies and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import coterie as ct
from coterie.aggregation import (
    AGGREGATORS,
    Bucketing,
    CentredClipping,
    GeometricMedian,
    Krum,
    Mean,
    Median,
    MultiKrum,
    NearestNeighbourMixing,
    TrimmedMean,
    for_group,
)
from coterie.aggregation.linkage import pairs_or_more
from coterie.algorithms.ifca import EarlyStop
from coterie.algorithms.ifca.robust_clusters import fewest_regrets
from coterie.base import randomness
from coterie.cli.config import Config
from coterie.exchange.channels.base import Channel
from coterie.learning.cluster_metrics import adjusted_rand

EXACT = ct.LocalSGD(steps=1, lr=0.5, batch_size=None)  # lands on a client's own centre
RULES = {
    "mean": Mean(),
    "median": Median(),
    "trimmed_mean": TrimmedMean(4),
    "krum": Krum(2),
    "multi_krum": MultiKrum(2),
    "geometric_median": GeometricMedian(),
    "centred_clipping": CentredClipping(50.0),
    "bucketing": Bucketing(1),
    "nearest_neighbour_mixing": NearestNeighbourMixing(4),
}
CENTRES = [[0.0], [1.0], [2.0], [3.0], [90.0], [100.0], [101.0], [102.0], [103.0], [10.0]]


@pytest.mark.parametrize("algorithm", [ct.IFCA, ct.HypCluster])
@pytest.mark.parametrize("name", [n for n in RULES if n != "mean"])
def test_every_rule_takes_the_mean_s_place_in_each_cluster(world, algorithm, name):
    """Models at 5 and 95: the clients at 0 … 3 and 10 choose the first, those at 90 … 103 the second."""
    assert set(RULES) == set(AGGREGATORS)
    fed, task, rule = world.quadratics(CENTRES), world.linear(1), RULES[name]
    robust = algorithm(clusters=2, local=EXACT, aggregate=rule)
    state = ct.fit(robust, fed, task, rounds=0, alone=False).state
    state = replace(state, models={"weight": torch.tensor([[[5.0]], [[95.0]]], dtype=torch.float64)}, started=True)
    found = ct.fit(robust, fed, task, rounds=1, start=state, alone=False).state.models["weight"].flatten()
    groups = [torch.tensor(CENTRES, dtype=torch.float64)[m] for m in ([0, 1, 2, 3, 9], [4, 5, 6, 7, 8])]
    key = ct.exchange.Cohort(np.arange(10), 0, 0).key("aggregate")
    for j, members in enumerate(groups):
        own = for_group(rule, 5, 10)
        wanted = own(members, key=randomness.fold(key, j), start=torch.tensor([[5.0], [95.0]][j]))
        assert float(found[j]) == pytest.approx(float(wanted), abs=1e-9)
    assert float(found[0]) == pytest.approx({"median": 2.0, "trimmed_mean": 2.0}.get(name, float(found[0])))


def test_numbers_of_liars_are_shared_out_among_groups():
    assert for_group(TrimmedMean(12), 10, 40) == TrimmedMean(3)
    assert for_group(TrimmedMean(12), 3, 40) == TrimmedMean(1)
    assert for_group(TrimmedMean(12), 2, 40) == TrimmedMean(0)
    assert for_group(MultiKrum(12, keep=20), 10, 40) == MultiKrum(3, keep=5)
    assert for_group(Krum(19), 4, 41) == Krum(0)
    assert for_group(Bucketing(2, TrimmedMean(6)), 10, 40) == Bucketing(2, TrimmedMean(2))
    assert for_group(NearestNeighbourMixing(12, MultiKrum(12)), 10, 40) == NearestNeighbourMixing(3, MultiKrum(3))
    assert for_group(Median(), 3, 40) == Median()


def test_a_rule_that_cannot_work_with_the_cohort_says_so(world):
    fed, task = world.quadratics(CENTRES), world.linear(1)
    for start in ("random", "updates"):
        with pytest.raises(ct.errors.ConfigError, match="got n_corrupted=5, clients=10"):
            ct.fit(ct.IFCA(clusters=2, local=EXACT, start=start, aggregate=TrimmedMean(5)), fed, task, rounds=2)


def test_the_mean_stays_additive_and_a_robust_rule_asks_individually(world):
    fed, task = world.quadratics(CENTRES), world.linear(1)
    for algorithm in (ct.IFCA(clusters=2, start="random"), ct.HypCluster(clusters=2)):
        state, cohort = (
            ct.fit(algorithm, fed, task, rounds=0, alone=False).state,
            ct.exchange.Cohort(np.arange(10), 0, 0),
        )
        assert next(algorithm.round(state, cohort)).reduce is not None
        assert next(replace(algorithm, aggregate=Median()).round(state, cohort)).reduce is None


@pytest.mark.parametrize("wrong", [{"option": "gradient"}, {"shared": ["0."]}, {"stop": EarlyStop(2)}])
def test_what_a_robust_rule_cannot_do_is_refused(wrong):
    with pytest.raises(ct.errors.ConfigError, match="IFCA with aggregate=Median needs option='model'"):
        ct.IFCA(clusters=2, aggregate=Median(), **wrong)
    ct.IFCA(clusters=2, aggregate=Mean(), **wrong)


def test_a_configuration_can_name_the_rule():
    table = {"data": {"name": "heart"}, "algorithm": {"name": "ifca", "clusters": 2, "aggregate": "geometric_median"}}
    assert Config.parse(table).algorithm() == ct.IFCA(clusters=2, aggregate=GeometricMedian())
    mixing = {"name": "nearest_neighbour_mixing", "n_corrupted": 3, "inner": {"name": "trimmed_mean", "n_corrupted": 3}}
    table["algorithm"] = {"name": "hypcluster", "clusters": 2, "aggregate": mixing}
    assert Config.parse(table).algorithm() == ct.HypCluster(
        clusters=2, aggregate=NearestNeighbourMixing(3, TrimmedMean(3))
    )


# ---- the start -------------------------------------------------------------------------------------------------------


def test_loners_have_no_say_in_the_cut():
    """Two pairs, a triple and a loner on a line."""
    place = np.array([0.0, 1, 50, 51, 52, 90, 91, 1000])
    distance = np.abs(place[:, None] - place)
    assert pairs_or_more(distance, 3).tolist() == [0, 0, 1, 1, 1, 2, 2, -1]
    assert pairs_or_more(distance, 2).max() >= 1
    assert pairs_or_more(distance, 9).tolist() == [0, 0, 1, 1, 1, 2, 2, -1]  # no more pairs than there are
    assert pairs_or_more(np.zeros((1, 1)), 3).tolist() == [0]


def test_the_models_stay_that_clients_can_least_do_without():
    """Models 0 and 1 serve the same five, model 2 three others, model 3 two liars who claim to be ruined without it."""
    losses = np.array([[1.0, 1.1, 4, 5]] * 5 + [[4, 4.2, 1, 5]] * 3 + [[1e9, 1e9, 1e9, 0]] * 2)
    assert fewest_regrets(losses, 3) == [0, 2, 3]
    assert fewest_regrets(losses, 2) == [0, 2]
    assert fewest_regrets(losses, 9) == [0, 1, 2, 3]


class LyingVotes(Channel):
    """Liars claim a huge loss on every model but their own, besides another attack."""

    def __init__(self, liars):
        self.liars = liars

    def up(self, send, clients, ask, where):
        if "losses" not in send:
            return send
        bad = torch.from_numpy(np.isin(clients, self.liars)).unsqueeze(1)
        best = send["losses"] == send["losses"].min(1, keepdim=True).values
        return {"losses": torch.where(bad & ~best, 1e30, send["losses"])}


ATTACKS = {
    "sign flip": lambda liars: [ct.exchange.attacks.SignFlip(liars, scale=3.0)],
    "large": lambda liars: [ct.exchange.attacks.LargeGradient(liars)],
    "noise": lambda liars: [ct.exchange.attacks.GaussianNoise(liars, std=10.0)],
    "lying votes": lambda liars: [ct.exchange.attacks.SignFlip(liars, scale=3.0), LyingVotes(liars)],
}


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS)
def test_liars_that_break_ifca_do_not_break_its_robust_form(world, attack):
    """Two liars in each of three groups of eight."""
    fed, _ = world.planted(3, 24, samples=40)
    liars = np.concatenate([np.flatnonzero(fed.clusters == g)[:2] for g in range(3)]).tolist()
    honest = np.delete(np.arange(24), liars)
    local = ct.LocalSGD(steps=5, lr=0.05, batch_size=None)

    def error(channels, rule):
        run = ct.fit(
            ct.IFCA(clusters=3, local=local, aggregate=rule),
            fed,
            world.linear(4),
            rounds=12,
            channels=channels,
            alone=False,
        )
        groups = adjusted_rand(run.clusters.to_numpy()[honest], fed.clusters[honest])
        return run.scores()["mse"].to_numpy()[honest].mean(), groups

    plain, _ = error(ATTACKS[attack](liars), Mean())
    robust, groups = error(ATTACKS[attack](liars), GeometricMedian())
    clean, _ = error([], GeometricMedian())
    assert groups == 1
    assert robust < 2 * clean
    assert plain > 5 * robust


def test_the_robust_start_asks_everybody_whoever_is_in_the_cohort(world):
    fed, _ = world.planted(3, 24, samples=40)
    counted = world.Count()
    robust = ct.IFCA(clusters=3, local=ct.LocalSGD(steps=5, lr=0.05, batch_size=None), aggregate=Median())
    run = ct.fit(robust, fed, world.linear(4), rounds=2, cohort=5, channels=[counted], alone=False)
    assert counted.asks == [24, 24, 24, 24, 5]  # the probe, two rounds, the losses; then a cohort
    assert adjusted_rand(run.clusters.to_numpy(), fed.clusters) == 1
