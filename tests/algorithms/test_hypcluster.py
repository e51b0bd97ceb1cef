"""HypCluster is IFCA's option II with the paper's random start, weighed by samples."""

import numpy as np
import pytest
import torch

import coterie as ct

LOCAL = ct.LocalSGD(steps=4, lr=0.05, batch_size=5)


def test_with_equal_sizes_it_is_ifca_option_2(world):
    fed, _ = world.planted(3, 15)
    hyp, ifca, other = (
        ct.fit(a, fed, world.linear(4), rounds=6, cohort=9, seed=5, alone=False)
        for a in (
            ct.HypCluster(clusters=3, local=LOCAL),
            ct.IFCA(clusters=3, local=LOCAL, start="random"),
            ct.IFCA(clusters=3, local=LOCAL),
        )
    )
    torch.testing.assert_close(hyp.state.models, ifca.state.models, rtol=1e-12, atol=1e-12)
    assert hyp.clusters.equals(ifca.clusters)
    assert not torch.allclose(hyp.state.models["weight"], other.state.models["weight"])  # the start matters


def test_a_client_counts_by_its_samples():
    """One sample at 0 and three at 1 choose the same hypothesis: the mean is 3/4; IFCA's is 1/2."""
    fed = ct.Federation.from_flat(
        np.ones((4, 1)),
        np.array([0.0, 1, 1, 1]),
        sizes=np.array([1, 3]),
        clients=range(2),
        n_test=np.zeros(2, np.int64),
        kind="regression",
        dtype="float64",
    )
    task = ct.Task(lambda: torch.nn.Linear(1, 1, bias=False), loss="mse")
    exact = ct.LocalSGD(steps=1, lr=0.5, batch_size=None)
    for algorithm, mean in ((ct.HypCluster(clusters=1, local=exact), 3 / 4), (ct.IFCA(clusters=1, local=exact), 1 / 2)):
        result = ct.fit(algorithm, fed, task, rounds=1, alone=False)
        assert float(result.state.models["weight"]) == pytest.approx(mean, abs=1e-12)
