"""Many starts at once take the same rounds as IFCA's option I takes one by one."""

from dataclasses import replace

import torch

import coterie as ct
from coterie.datasets.synthetic import linear_model
from reproductions.ifca_linear import best_distance, matched, one_round, right_labels


def test_a_round_of_all_starts_is_ifcas_round_of_each():
    data, _ = linear_model(clusters=2, clients=6, samples=8, features=5, seed=3)
    x, y = data.x.reshape(6, 8, 5), data.y.reshape(6, 8)
    starts = torch.randn(3, 2, 5, generator=torch.Generator().manual_seed(0))
    moved, labels = one_round(x, y, starts, 0.1)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.zeros(5))

        def forward(self, rows):
            return rows @ self.w

    task = ct.Task(Model, loss="mse")
    algorithm = ct.IFCA(
        clusters=2, local=ct.LocalSGD(steps=1, lr=0.1, batch_size=None), option="gradient", start="random"
    )
    empty = ct.fit(algorithm, data, task, rounds=0, alone=False).state
    for s in range(3):
        begin = replace(empty, models={"w": starts[s]}, started=True)
        result = ct.fit(algorithm, data, task, rounds=1, start=begin, alone=False)
        torch.testing.assert_close(result.state.models["w"], moved[s])
        before = ct.fit(algorithm, data, task, rounds=0, start=begin, alone=False)
        assert before.clusters.tolist() == labels[s].tolist()


def test_labels_and_distances_do_not_depend_on_names():
    truth = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    models = torch.stack([truth, truth.flip(0), torch.zeros(2, 2)])
    assert matched(models, truth).tolist() == [0.0, 0.0, 2.5]
    clusters = torch.tensor([0, 1, 0, 1])
    for labels, right in (([0, 1, 0, 1], True), ([1, 0, 1, 0], True), ([0, 0, 0, 0], False), ([0, 1, 0, 0], False)):
        assert bool(right_labels(torch.tensor(labels), clusters, 2)) is right


def test_a_start_near_the_truth_succeeds_and_one_that_diverges_does_not():
    data, truth = linear_model(
        clusters=2, clients=20, samples=50, features=20, radius=1.0, noise_variance=0.1**2, seed=0
    )
    x, y, theta = data.x.reshape(20, 50, 20), data.y.reshape(20, 50), torch.as_tensor(truth.parameters).float()
    near = theta[None] + 0.1
    assert best_distance(x, y, near, theta, truth.clusters, 0.1, 0.06) <= 0.06
    assert best_distance(x, y, near, theta, truth.clusters, 3.0, 0.06) > 1
