"""The marginal likelihood behind the regressions: its gradient, REML, and the average over the prior variances."""

import numpy as np
import pytest
from scipy.optimize import check_grad

from coterie.estimation.regression.evidence import Evidence


def forms(m=8, n=6, p=4, seed=0):
    rng = np.random.default_rng(seed)
    Z = rng.normal(size=(m, n, p))
    Z[:, :, 0] = 1
    theta = rng.normal([2.0, 1.0, -1.0, 0.0], [1.0, 0.5, 0.3, 0.2], (m, p))
    y = (Z * theta[:, None]).sum(2) + rng.normal(size=(m, n))
    return Z, y, Z.swapaxes(1, 2) @ Z, np.einsum("inp,in->ip", Z, y)


@pytest.mark.parametrize("known_noise", [False, True])
@pytest.mark.parametrize("ties", [np.arange(4), np.array([0, 1, 1, 1]), None])
@pytest.mark.parametrize("rank", [0, 4])
def test_gradient(known_noise, ties, rank):
    _, y, A, c = forms()
    evidence = Evidence(A, c, y.size, None if known_noise else float((y**2).sum()), ties, rank)
    size = 10 if ties is None else int(ties.max()) + 1
    at = np.random.default_rng(1).uniform(0.1, 0.9, size + (rank == 0))
    assert check_grad(lambda x: evidence(x)[0], lambda x: evidence(x)[1], at) < 1e-5


def test_reml_is_the_likelihood_of_contrasts():
    """REML in closed form, with the rows' covariance written out: ln|V| + ln|ZᵀV⁻¹Z| + (N−p) ln q."""
    Z, y, A, c = forms()
    evidence = Evidence(A, c, y.size, float((y**2).sum()), np.arange(4), 4)

    def dense(theta):
        V = np.zeros((48, 48))
        for i in range(8):
            V[6 * i : 6 * i + 6, 6 * i : 6 * i + 6] = np.eye(6) + Z[i] * theta @ Z[i].T
        X, W = Z.reshape(48, 4), np.linalg.inv(V)
        inner = X.T @ W @ X
        mean = np.linalg.solve(inner, X.T @ W @ y.ravel())
        error = y.ravel() - X @ mean
        logs = np.linalg.slogdet(V)[1] + np.linalg.slogdet(inner)[1]
        return (logs + 44 * np.log(error @ W @ error)) / 2 / 48, mean, error @ W @ error / 44

    one, two = np.array([0.5, 0.2, 0.1, 0.0]), np.array([1.0, 0.0, 0.3, 0.4])
    assert evidence(one)[0] - evidence(two)[0] == pytest.approx(dense(one)[0] - dense(two)[0])
    found = evidence.posterior(one)
    np.testing.assert_allclose(found.mean, dense(one)[1])
    assert found.noise_variance == pytest.approx(dense(one)[2])
