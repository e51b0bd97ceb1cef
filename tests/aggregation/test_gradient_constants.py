"""σ, Δ, δ and A² estimated from gradients with known constants, and the settings that follow from them."""

import math

import numpy as np
import pytest
import torch

import coterie as ct
from coterie.errors import CoterieWarning, DataError

SIZES = (6, 4, 6, 8)


def gradients(seed, sigma=2.0, apart=5.0, within=0.2, batches=60, batch=8, numbers=50):
    """Groups whose mean gradients are `apart` times a unit vector each, and clients `within` from them in norm."""
    rng = np.random.default_rng(seed)
    label = np.repeat(np.arange(len(SIZES)), SIZES)
    own = rng.normal(size=(len(label), numbers))
    true = apart * np.eye(numbers)[label] + within * own / np.linalg.norm(own, axis=1, keepdims=True)
    noise = rng.normal(0, sigma / math.sqrt(numbers * batch), (len(label), batches, numbers))
    return torch.tensor(true[:, None] + noise), label


def test_the_constants_are_those_of_the_gradients():
    found = [ct.robust.constants(gradients(seed)[0], 8) for seed in range(8)]
    assert all((one.label == gradients(0)[1]).all() for one in found)
    assert np.mean([one.sigma for one in found]) == pytest.approx(2.0, rel=0.01)
    assert np.mean([one.separation for one in found]) == pytest.approx(5 * math.sqrt(2), rel=0.05)
    assert found[0].delta == pytest.approx(4 / 24)
    assert 0.04 / 25 < np.mean([one.spread for one in found]) < 0.02  # (.2/5)², and the largest of 24 noisy estimates


def test_noise_is_subtracted_and_not_taken_for_groups():
    one = ct.robust.constants(gradients(0, sigma=20.0, apart=0.0, within=0.0, batches=4)[0], 8)
    assert math.isinf(one.separation)
    assert one.delta == 1.0
    assert any("one group" in sentence for sentence in one.warnings(100))
    assert ct.robust.constants(gradients(0, apart=0.0)[0], 8, clusters=3).label.max() == 2


def test_settings_follow_the_theorem_and_warn_where_it_fails():
    found = ct.robust.constants(gradients(1)[0], 8)
    rho = found.sigma / math.sqrt(50)
    theory = found.radius(50)
    assert isinstance(theory, ct.robust.Theory)
    assert float(theory(torch.zeros(3), 0)) == pytest.approx(math.sqrt(found.delta * rho * found.separation))
    assert (1 - found.delta / 2) ** found.inner(50) <= rho / found.separation
    assert found.least_batch == math.ceil((found.sigma / (found.delta * found.separation)) ** 2)
    assert found.warnings(50) == []
    loud = ct.robust.constants(gradients(1, sigma=40.0)[0], 8, clusters=4)
    assert "asks for batches" in loud.warnings(50)[0]
    assert isinstance(loud.radius(50), ct.robust.Percentile)


def test_a_federation_sets_its_own_clustering():
    """Rotated digits: gradients at the start name the groups, and the settings do better than training alone."""
    fed = ct.datasets.digits(transform="rotate", clusters=4, clients=16, seed=0)
    task = ct.Task(ct.models.linear(64, 10))
    assert ct.training.gradient_constants(fed, task).label.tolist() == [0, 1, 2, 3] * 4
    with pytest.warns(CoterieWarning, match="asks for batches"):
        chosen = ct.training.clustering_for(fed, task, lr=1.0)
    alone = ct.Local(ct.LocalSGD(steps=1, lr=1.0, batch_size=None))
    ours, theirs = (ct.fit(a, fed, task, rounds=20, alone=False).scores()["accuracy"].mean() for a in (chosen, alone))
    assert ours > theirs


@pytest.mark.parametrize("shape", [(1, 4, 3), (4, 1, 3), (4, 3)])
def test_too_few_gradients_are_refused(shape):
    with pytest.raises(DataError, match="two or more clients"):
        ct.robust.constants(torch.zeros(shape), 8)
