"""Distances through inner products are as good as distances through coordinates, also beside very far vectors."""

import numpy as np
import torch

from coterie.aggregation.gram import combine, gram, pairwise, squared_distances


def test_distances_to_combinations():
    rng = np.random.default_rng(0)
    z, w = torch.from_numpy(rng.normal(size=(6, 4)) + 50), torch.from_numpy(rng.dirichlet(np.ones(6), 3))
    square, error = squared_distances(gram(z), w)
    direct = (combine(w, z).unsqueeze(1) - z).square().sum(-1)
    torch.testing.assert_close(square, direct)
    assert bool((error < 1e-10).all())


def test_close_vectors_are_told_apart_beside_far_ones():
    z = torch.cat([torch.full((2, 3), 1e9), torch.tensor([[0.0, 0, 0], [1e-3, 0, 0], [0, 1, 0], [0, 0, 2], [3, 0, 0]])])
    close = pairwise(gram(z.double()))[2:, 2:].sqrt()
    torch.testing.assert_close(close, torch.cdist(z[2:].double(), z[2:].double()), atol=1e-9, rtol=0)


def test_a_tree_has_the_products_of_its_flat_vector(monkeypatch):
    z = torch.randn(5, 12, generator=torch.Generator().manual_seed(0))
    tree = {"a": z[:, :6].reshape(5, 2, 3), "b": z[:, 6:]}
    whole = gram(z)
    monkeypatch.setattr("coterie.aggregation.gram._ENTRIES", 10)
    torch.testing.assert_close(gram(tree), whole)
    weights = torch.tensor([0.5, 0.5, 0, 0, 0])
    torch.testing.assert_close(combine(weights, tree)["b"], z[:2, 6:].mean(0))
