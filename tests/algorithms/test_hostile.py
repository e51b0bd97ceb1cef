"""Replies of absurd size: whoever sends 10³⁰, or a float64 client 10²⁰⁰, or numbers near nothing, ends in no raw error.

Where sums are asked for, one liar can move the server anywhere; the run then ends with useless models or as diverged, which
is documented. Algorithms that see every reply and compare them must go on."""

import numpy as np
import pytest
import torch

import coterie as ct
from coterie.algorithms import ALGORITHMS
from coterie.errors import CoterieError
from coterie.exchange.channels.base import Channel
from coterie.learning.cluster_metrics import cluster_accuracy

MADE = {
    "ifca": lambda: ct.IFCA(clusters=2),
    "ifca, robust": lambda: ct.IFCA(clusters=2, aggregate=ct.robust.GeometricMedian()),
    "hypcluster": lambda: ct.HypCluster(clusters=2),
    "hypcluster, robust": lambda: ct.HypCluster(clusters=2, aggregate=ct.robust.Median()),
    "oneshot": lambda: ct.OneShot(clusters=2, solve=ct.LocalSGD(steps=5)),
    "cfl": lambda: ct.CFL(quiet=1e9, loud=0.0, first=0),
    "momentum_clustering": lambda: ct.MomentumClustering(clusters=2),
    "myopic_clustering": lambda: ct.MyopicClustering(clusters=2),
    "mixture_prior": lambda: ALGORITHMS["mixture_prior"](),
}
GOES_ON = ("momentum_clustering", "federated_clustering", "ifca, robust", "hypcluster, robust")


class Absurd(Channel):
    """The second client sends one number everywhere."""

    def __init__(self, value):
        self.value = value

    def up(self, send, clients, ask, where):
        bad = torch.from_numpy(clients == 1)

        def spoil(t):
            return torch.where(bad.reshape(-1, *[1] * (t.dim() - 1)), torch.tensor(self.value, dtype=t.dtype), t)

        return {
            name: {k: spoil(t) for k, t in part.items()} if isinstance(part, dict) else part
            for name, part in send.items()
        }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("dtype", "value"), [("float32", 1e30), ("float64", 1e200), ("float32", 1e-42)])
@pytest.mark.parametrize("name", [*sorted(set(ALGORITHMS) - {"defection_free"}), *(n for n in MADE if "," in n)])
def test_absurd_numbers_end_in_a_sentence_or_in_a_result(make_fed, task, name, dtype, value):
    fed = make_fed(sizes=(12, 9, 12, 10, 12, 11), dtype=dtype)
    algorithm = MADE[name]() if name in MADE else ALGORITHMS[name]()
    try:
        run = ct.fit(algorithm, fed, task, rounds=2, channels=[Absurd(value)], alone=False)
    except CoterieError:
        assert name not in GOES_ON
        return
    others = np.delete(np.arange(6), 1)
    sizes = [float(t.abs().max()) for t in run.evaluation.personal(others).values()]
    assert np.isfinite(sizes).all()
    assert name not in GOES_ON or max(sizes) < 1e3


@pytest.mark.parametrize(("value", "clusters"), [(1e30, 3), (1e200, 2)])
def test_a_huge_momentum_takes_nobody_else_with_it(world, value, clusters):
    """It gets a centre of its own, or, where no distance to it can be computed, none."""
    centres = 50 * np.eye(2)[np.arange(8) % 2] + np.random.default_rng(0).normal(size=(8, 2))
    fed = world.quadratics(centres, np.arange(8) % 2)
    result = ct.fit(
        ct.MomentumClustering(clusters=clusters, lr=0.4),
        fed,
        world.linear(2),
        rounds=3,
        channels=[Absurd(value)],
        alone=False,
    )
    honest = np.delete(np.arange(8), 1)
    found = result.clusters.to_numpy()[honest]
    assert cluster_accuracy(np.unique(found, return_inverse=True)[1], fed.clusters[honest]) == 1
    assert np.abs(world.personal(result)[honest]).max() < 100
