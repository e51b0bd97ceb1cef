"""Private means, rates and mixtures: receipts, sensitivities, and risks and intervals that include the noise."""

import numpy as np
import pytest
from sklearn.base import clone

import coterie as ct
from reproductions.generate import bernoulli_clients, gaussian_clients, mixture_clients

CENTERS = np.array([[-2.0, 0.0], [2.0, 0.0]])
SIMULATED = {"delta": 1e-6, "noise": "simulation"}


def gaussian_data(seed, clients=1000):
    rng = np.random.default_rng(seed)
    return gaussian_clients(clients, (3, 8), 3, prior_variance=0.25, noise_variance=1.0, mean=0.3, rng=rng)


def mixture_data(seed, clients=1000, variance=0.0):
    rng = np.random.default_rng(seed)
    return mixture_clients(clients, (3, 8), CENTERS, noise_variance=1.0, component_variance=variance, rng=rng)


def study(runs, make, fit):
    """(coverage, its error), (error less claimed risk, its error): means over runs with standard errors."""
    coverage, excess = [], []
    for seed in range(runs):
        data = make(seed)
        model = fit(data, seed)
        low, high = model.interval(0.95)
        coverage.append(float(((data.truth >= low) & (data.truth <= high)).mean()))
        square = np.square(model.estimates_ - data.truth)
        excess.append(float(square.reshape(len(square), -1).sum(1).mean()) - model.risk_)
    return [(np.mean(x), np.std(x, ddof=1) / np.sqrt(runs)) for x in (coverage, excess)]


def check(found, nominal=0.95, above=0.04):
    (coverage, error), (excess, excess_error) = found
    assert coverage > nominal - 4 * error, (coverage, error)
    assert coverage < nominal + above + 4 * error, (coverage, error)
    assert excess < 4 * excess_error, (excess, excess_error)


@pytest.mark.parametrize(("trust", "prior"), [("central", None), ("central", 0.25), ("local", 0.25)])
def test_gaussian_means_cover_and_reach_their_risk(trust, prior):
    def fit(data, seed):
        privacy = ct.Privacy(1, clip=3.0, **SIMULATED)
        model = ct.GaussianMeans(prior, 1.0, privacy=privacy, trust=trust, random_state=seed).fit(data.samples)
        assert model.risk_ < model.local_risk_
        return model

    check(study(20, gaussian_data, fit))


def test_noise_is_in_the_risk_of_gaussian_means():
    data = gaussian_data(0, clients=100)
    risks = []
    for epsilon in (0.1, 1.0, 100.0):
        privacy = ct.Privacy(epsilon, clip=3.0, **SIMULATED)
        risks.append(ct.GaussianMeans(0.25, 1.0, privacy=privacy).fit(data.samples).risk_)
    assert risks[0] > risks[1] > risks[2]
    plain = ct.GaussianMeans(0.25, 1.0).fit(data.samples)
    assert risks[2] == pytest.approx(plain.risk_, rel=0.01)


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_bernoulli_rates_cover_and_beat_local_rates(epsilon):
    gains = []

    def fit(data, seed):
        privacy = ct.Privacy(epsilon, clip=1.0, **SIMULATED)
        model = ct.BernoulliRates(privacy=privacy, random_state=seed).fit(data.successes, data.trials)
        local = np.square(data.successes / data.trials - data.truth).mean()
        gains.append(1 - np.square(model.rates_ - data.truth).mean() / local)
        return model

    check(study(12, lambda s: bernoulli_clients(10_000, 14, "beta", rng=np.random.default_rng(s)), fit))
    assert np.mean(gains) - 4 * np.std(gains) / np.sqrt(12) > 0.05


@pytest.mark.parametrize("variance", [0.0, 0.3])
def test_mixture_means_cover_and_reach_their_risk(variance):
    def fit(data, seed):
        privacy = ct.Privacy(2, clip=4.5, **SIMULATED)
        within = 0.0 if variance == 0 else None
        model = ct.MixtureMeans(2, noise_variance=1.0, component_variance=within, privacy=privacy, random_state=seed)
        return model.fit(data.samples)

    found = study(16, lambda seed: mixture_data(seed, 2000, variance), fit)
    check(found, above=0.05)
    assert found[1][0] + fit(mixture_data(0, 2000, variance), 0).risk_ < 0.7 * 2 / 5.5


def test_a_mixture_from_local_reports():
    """With 20,000 clients and ε = 8 one report each is enough, quantised after the noise or not; 300 are too few, and the
    risk says so."""
    for mechanism in (None, ct.estimation.Quantiser(6, 60.0)):
        budget = ct.Privacy(8, clip=4.5, **SIMULATED)
        model = ct.MixtureMeans(2, noise_variance=1.0, privacy=budget, trust="local", mechanism=mechanism)
        data = mixture_data(1, 20_000)
        fitted = model.fit(data.samples)
        error = np.square(fitted.estimates_ - data.truth).sum(1).mean()
        low, high = fitted.interval(0.95)
        assert error < fitted.risk_ < fitted.local_risk_
        assert ((data.truth >= low) & (data.truth <= high)).mean() > 0.95
        few = clone(model).fit(data.samples[:300])
        assert few.risk_ > few.local_risk_


def test_a_mixture_of_quantised_means_nears_the_plain_one():
    data = mixture_data(3, 2000)
    errors = []
    for mechanism in (None, ct.estimation.Quantiser(4, 6.0), ct.estimation.VectorQuantiser(32, 6.0)):
        fitted = ct.MixtureMeans(2, noise_variance=1.0, mechanism=mechanism).fit(data.samples)
        errors.append(np.square(fitted.estimates_ - data.truth).sum(1).mean())
    assert errors[0] < min(errors[1:])
    assert max(errors) < 0.1 * fitted.local_risk_


class Unquantised:
    """A mechanism of unknown origin."""

    radius, variance = 1e9, 0.0

    def __call__(self, x, rng):
        return x


FITS = {
    "means": lambda p, x: ct.GaussianMeans(None, 1.0, privacy=p).fit(x),
    "means, prior known": lambda p, x: ct.GaussianMeans(0.3, 1.0, privacy=p).fit(x),
    "local means": lambda p, x: ct.GaussianMeans(0.3, 1.0, privacy=p, trust="local").fit(x),
    "mixture": lambda p, x: ct.MixtureMeans(2, noise_variance=1.0, privacy=p, rounds=4).fit(x),
    "wide mixture": lambda p, x: ct.MixtureMeans(
        2, noise_variance=1.0, component_variance=None, privacy=p, rounds=4
    ).fit(x),
    "local mixture": lambda p, x: ct.MixtureMeans(2, noise_variance=1.0, privacy=p, trust="local").fit(x),
    "quantised local means": lambda p, x: ct.GaussianMeans(
        0.3, 1.0, privacy=p, trust="local", mechanism=ct.estimation.VectorQuantiser(8, 200.0)
    ).fit(x),
    "rates": lambda p, x: ct.BernoulliRates(privacy=p).fit([int(5 * abs(c[0, 0])) % 6 for c in x], 5),
}


@pytest.mark.parametrize("name", FITS)
def test_receipts(name):
    samples = mixture_data(0, 200).samples
    receipt = FITS[name](ct.Privacy(1, 1e-6, clip=3.0), samples).receipt_
    assert receipt.valid, receipt.reasons
    assert 0.99 < receipt.epsilon <= 1
    assert receipt.guarantee == ("local" if "local" in name or name == "rates" else "joint")
    assert type(receipt).from_json(receipt.to_json()) == receipt
    simulated = FITS[name](ct.Privacy(1, clip=3.0, **SIMULATED), samples).receipt_
    assert not simulated.valid
    assert "NOT A DP RELEASE" in simulated.reasons[0]


@pytest.mark.parametrize("adjacency", ["zero-out", "replace"])
@pytest.mark.parametrize("name", ["means", "means, prior known", "mixture", "wide mixture"])
def test_one_client_moves_no_release_by_more_than_its_sensitivity(name, adjacency, differences):
    samples = mixture_data(1, 60).samples
    privacy = ct.Privacy(1, 1e-6, clip=3.0, noise="simulation", adjacency=adjacency)
    moved = 0.0
    for canary in (np.full((1, 2), 1e9), np.full((40, 2), -2.0), np.array([[0.0, 0.0], [6.0, -9.0]])):
        for other in (np.zeros((1, 2)), np.full((1, 2), -1e9)):
            ours, theirs = [canary, *samples], [other, *samples]
            for event, moved_by, bound in differences(lambda x: FITS[name](privacy, x), ours, theirs):
                reach = bound if adjacency == "replace" else 2 * bound  # two zero-outs lead from one to the other
                assert moved_by <= reach * (1 + 1e-12), event.name
                moved = max(moved, moved_by / reach)
    assert moved > 0.5


def test_numbers_of_samples_do_not_reach_the_others():
    """Only a client's own rows may change when nothing but its number of samples does, up to the releases' noise."""
    samples = mixture_data(2, 300).samples
    longer = [np.repeat(samples[0].mean(0)[None], 400, axis=0), *samples[1:]]
    privacy = ct.Privacy(1, clip=3.0, **SIMULATED)
    model = ct.GaussianMeans(0.3, 1.0, privacy=privacy)
    one, two = clone(model).fit(samples), clone(model).fit(longer)
    np.testing.assert_allclose(one.estimates_[1:], two.estimates_[1:], atol=1e-6)
    np.testing.assert_allclose(one.standard_errors_[1:], two.standard_errors_[1:])
    assert two.standard_errors_[0] < one.standard_errors_[0]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda p: ct.GaussianMeans(0.3, privacy=p), "noise_variance"),
        (lambda p: ct.GaussianMeans(None, 1.0, privacy=p, trust="local"), "prior_variance"),
        (lambda p: ct.GaussianMeans(0.3, 1.0, privacy=p, trust="nobody"), "trust"),
        (lambda p: ct.GaussianMeans(0.3, 1.0, mechanism=ct.estimation.Quantiser(4), privacy=p), "mechanism"),
        (lambda p: ct.GaussianMeans(0.3, 1.0, privacy=1.0), "Privacy"),
        (lambda p: ct.MixtureMeans(2, privacy=p), "noise_variance"),
        (
            lambda p: ct.MixtureMeans(2, noise_variance=1.0, privacy=p, mechanism=ct.estimation.Quantiser(4)),
            "mechanism",
        ),
        (
            lambda p: ct.MixtureMeans(2, noise_variance=1, component_variance=None, privacy=p, trust="local"),
            "component_variance",
        ),
        (
            lambda p: ct.GaussianMeans(0.3, 1, mechanism=ct.estimation.Quantiser(4), privacy=p, trust="local"),
            "must hold the noisy means",
        ),
        (
            lambda p: ct.GaussianMeans(0.3, 1, mechanism=Unquantised(), privacy=p, trust="local"),
            "Quantiser or VectorQuantiser",
        ),
        (lambda p: ct.BernoulliRates(privacy=p, variance="paper"), "variance"),
        (lambda p: ct.MixtureMeans(2, noise_variance=1.0, prior=([1.0], [[0.0]]), privacy=p), "prior"),
    ],
)
def test_what_must_be_public_must_be_given(make, text):
    with pytest.raises(ct.errors.ConfigError, match=text):
        make(ct.Privacy(1, 1e-6, clip=3.0)).fit(mixture_data(0, 20).samples)


def test_rates_need_equal_public_trials():
    with pytest.raises(ct.errors.DataError, match="trials"):
        ct.BernoulliRates(privacy=ct.Privacy(1, 1e-6, clip=1.0)).fit([1, 2, 1, 0], [3, 4, 3, 3])
    with pytest.raises(ct.errors.ConfigError, match="prior"):
        ct.BernoulliRates(prior=(1, 1), privacy=ct.Privacy(1, 1e-6, clip=1.0)).fit([1, 2, 1, 0], 3)


def test_every_row_of_a_client_is_named_as_its_own() -> None:
    """What has an entry for each client is for that client alone, and the receipt says so by name."""
    samples = [np.random.default_rng(i).normal(size=(2 + i % 5, 2)) for i in range(37)]
    budget = ct.Privacy(3.0, 1e-4, clip=1.0)
    for made in (
        ct.GaussianMeans(noise_variance=1.0, privacy=budget),
        ct.MixtureMeans(2, noise_variance=1.0, privacy=budget),
    ):
        fitted = made.fit(samples)
        own = [name for name, value in vars(fitted).items() if name.endswith("_") and np.shape(value)[:1] == (37,)]
        told = " ".join(fitted.receipt_.not_covered).replace(",", "").split()
        assert set(own) - {"clients_"} <= set(told)
