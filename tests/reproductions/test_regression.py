"""Linear regression: every method's coefficients."""

import numpy as np
import pytest

from reproductions import regression
from reproductions.generate import regression_clients


def test_all_methods_on_a_few_clients():
    data = regression_clients(
        300, 10, 50, prior_variance=0.01, noise_variance=0.05, feature_variance=0.05, rng=np.random.default_rng(0)
    )
    made = regression.estimates(data, 0.01, 0.05)
    local = np.linalg.pinv(data.X[:10]) @ data.y[:10]
    np.testing.assert_allclose(made["local"][0], local, atol=1e-8)
    errors = {name: regression.error(estimate, data.truth) for name, estimate in made.items()}
    assert errors["known"] < errors["em"] < errors["fedavg"] < errors["local"]
    assert errors["descent"] == pytest.approx(errors["fedavg"], rel=0.01)  # it has collapsed (E19)
