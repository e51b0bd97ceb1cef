"""Lemma 1 (E-8) and Remark 2 (E-9)."""

import numpy as np
import pytest

import coterie as ct
from coterie.estimation.means import least_risk
from coterie.estimation.quantiser import norm_bound
from coterie.estimation.rates import rates_bound
from reproductions.generate import gaussian_clients


@pytest.mark.parametrize("printed", [False, True])
def test_the_norm_bound_holds_all_means(printed):
    """E-8: with probability 1 − 1/(mn), here .999, no mean of any client leaves the ball; half the slack would not do."""
    m, n, d = 50, 20, 4
    bound = norm_bound(clients=m, samples=n, dimension=d, noise_variance=2.0, center_bound=3.0, printed=printed)
    rng = np.random.default_rng(0)
    centre = np.zeros(d)
    centre[0] = 3.0
    largest = np.linalg.norm(centre + np.sqrt(2 / n) * rng.normal(size=(400, m, d)), axis=2).max(1)
    assert (largest > bound).mean() < 0.01
    assert printed or (largest > 3.0 + 0.3 * (bound - 3.0)).mean() > 0.5
    tight = norm_bound(clients=m, samples=n, dimension=d, noise_variance=2.0, center_bound=3.0)
    assert tight == pytest.approx(3 + np.sqrt(0.1) * (2 + np.sqrt(2 * np.log(50_000))))
    assert tight <= bound


def test_gaussian_means_reach_the_least_risk():
    """E-9: d·v·a with μ known, d·v·(a + (1−a)/m) without; the second is 0.51 in the paper's example."""
    assert least_risk(samples=5, dimension=3, prior_variance=1, noise_variance=1, clients=10) == pytest.approx(0.51)
    assert least_risk(samples=5, dimension=3, prior_variance=1, noise_variance=1) == pytest.approx(0.5)
    data = gaussian_clients(10, 5, 3, prior_variance=1.0, noise_variance=1.0, rng=np.random.default_rng(0))
    assert ct.GaussianMeans(1.0, 1.0).fit(data.samples).risk_ == pytest.approx(0.51)
    assert least_risk(samples=5, prior_variance=0, noise_variance=2, clients=4) == pytest.approx(0.1)
    assert least_risk(samples=5, prior_variance=1, noise_variance=0) == 0


@pytest.mark.parametrize(
    "call",
    [
        lambda: least_risk(samples=0, prior_variance=1, noise_variance=1),
        lambda: least_risk(samples=1, prior_variance=-1, noise_variance=1),
        lambda: least_risk(samples=1, prior_variance=1, noise_variance=np.nan),
        lambda: norm_bound(clients=0, samples=1, noise_variance=1, center_bound=1),
        lambda: norm_bound(clients=1, samples=1, noise_variance=-1, center_bound=1),
        lambda: norm_bound(clients=1, samples=0.5, noise_variance=1, center_bound=1),
    ],
)
def test_bad_numbers_get_one_sentence(call):
    with pytest.raises(ValueError, match=r"needs|≥ 1|finite"):
        call()


@pytest.mark.parametrize(("epsilon", "weight"), [(None, None), (None, 0.2), (1.0, None), (4.0, 0.0)])
def test_rates_stay_below_theorems_3_and_4(epsilon, weight):
    """The mean of the others is their rates' or, at ε, that of one bit each; without its error the bound is an equality."""
    clients, trials, prior = 4000, 14, (4.0, 2.0)
    rng = np.random.default_rng(0)
    truth = rng.beta(*prior, clients)
    rate = rng.binomial(trials, truth) / trials
    sent = rate
    if epsilon is not None:
        up = np.expm1(epsilon)
        sent = np.where(rng.random(clients) < (rate * up + 1) / (up + 2), (up + 1) / up, -1 / up)
    own = trials / (trials + sum(prior)) if weight is None else weight
    square = (own * rate + (1 - own) * (sent.sum() - sent) / (clients - 1) - truth) ** 2
    told = {"prior": prior, "samples": trials, "weight": weight}
    error = 4 * square.std() / np.sqrt(clients)
    assert square.mean() - error < rates_bound(clients=clients, epsilon=epsilon, **told)
    if epsilon is None:
        assert abs(square.mean() - rates_bound(clients=10**12, **told)) < error  # nobody is off
    assert rates_bound(clients=100, epsilon=epsilon, **told) > rates_bound(clients=4000, epsilon=epsilon, **told)
