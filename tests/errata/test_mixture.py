"""Algorithm 1 of the estimation paper clusters before the centres are first used."""

from __future__ import annotations

import numpy as np

from coterie.estimation.mixtures import MixtureMeans
from reproductions.printed.mixtures import PrintedMixtureMeans


def test_the_first_round_clusters_the_clients_own_means() -> None:
    """Erratum E10: printed, clients use p and μ of round 1 before the server has made them."""
    rng = np.random.default_rng(0)
    truth = np.repeat([-5.0, 0.0, 5.0], [10, 20, 30])
    samples = truth[:, None] + rng.normal(size=(60, 8))
    means = samples.mean(axis=1)
    model = PrintedMixtureMeans(3, noise_variance=1.0, max_iter=1).fit(samples)
    order = np.argsort(model.centers_[:, 0])
    expected = [means[truth == value].mean() for value in (-5.0, 0.0, 5.0)]
    np.testing.assert_allclose(model.centers_[order, 0], expected)
    np.testing.assert_allclose(model.proportions_[order], [1 / 6, 1 / 3, 1 / 2])
    known = MixtureMeans(prior=(model.proportions_, model.centers_), noise_variance=1.0).fit(samples)
    np.testing.assert_allclose(model.estimates_, known.estimates_)
