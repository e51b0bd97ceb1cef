"""KL seeding, KL Lloyd and personalisation: what must hold exactly, and what must hold on data from the model."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import xlogy
from sklearn.base import clone

from coterie.estimation.histograms.baselines import FedAvgHistogram, LocalHistograms
from coterie.estimation.histograms.kl import kl_to_centers, normalise, smooth
from coterie.estimation.histograms.lloyd import assign, recentre
from coterie.estimation.histograms.mixture import HistogramMixture, kl_rows, mean_kl
from coterie.estimation.histograms.model import sample_histograms
from coterie.estimation.histograms.seeding import seed_centers, seeding_probabilities
from coterie.estimation.histograms.user_rows import HistogramRows
from reproductions.histogram_worlds import bayes_histograms


def mixture(seed=0, users=4000, tokens=100, clusters=4, vocabulary=100, concentration=150.0):
    """The synthetic experiment of the specification: separated centres, Dirichlet users, multinomial tokens."""
    rng = np.random.default_rng(seed)
    centers = rng.dirichlet(np.full(vocabulary, 0.5), clusters) * (1 - 1e-3) + 1e-3 / vocabulary
    return centers, sample_histograms(centers, users=users, tokens=tokens, concentration=concentration, rng=rng)


def dense_objective(counts, centers):
    """Σ_u min_k KL(Q̂_u‖P_k), written without any of the library's code."""
    q = np.asarray(counts, dtype=float)
    q = q / q.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore"):
        logs = np.log(centers)
    cross = np.array([[np.sum(row[row > 0] * log[row > 0]) for log in logs] for row in q])
    return float((xlogy(q, q).sum(axis=1, keepdims=True) - cross).min(axis=1).sum())


def accuracy(labels, truth):
    """Share of users in the majority class of their cluster."""
    return sum(np.bincount(truth[labels == k]).max() for k in np.unique(labels)) / len(truth)


count_matrices = st.integers(0, 2**32 - 1).map(
    lambda seed: (lambda rng: rng.poisson(rng.gamma(0.5, 2, size=(rng.integers(6, 30), rng.integers(3, 12)))))(
        np.random.default_rng(seed)
    )
)


# Seeding (Algorithm 1)


def test_seeding_probabilities_are_a_softmax():
    d = np.array([0.0, 1.0, 2.0, 4.0])
    np.testing.assert_allclose(seeding_probabilities(d, 0.5), [0.0784, 0.1293, 0.2131, 0.5793], atol=5e-5)
    np.testing.assert_allclose(seeding_probabilities(d, 0.0), 0.25)
    np.testing.assert_allclose(seeding_probabilities(d, np.inf), [0, 0, 0, 1])
    assert np.isfinite(seeding_probabilities(1e4 * d, 1.0)).all()


@pytest.mark.parametrize("direction", ["center_user", "user_center"])
def test_each_seed_is_drawn_by_the_divergence_from_the_seeds_before_it(direction):
    rng = np.random.default_rng(3)
    histograms = normalise(sp.csr_array(rng.poisson(1.5, size=(5, 6)).astype(float) + np.eye(5, 6)))[0]
    rows = smooth(histograms.toarray(), 0.01)

    def kl(a, b):
        return np.sum(a * np.log(a / b), axis=-1)

    draws = [seed_centers(histograms, 3, np.random.default_rng(i), 1.5, 0.01, direction)[1] for i in range(2500)]
    draws = np.array(draws)
    pairs, times = np.unique(draws[:, :2], axis=0, return_counts=True)
    first, second = pairs[times.argmax()]
    third = draws[(draws[:, 0] == first) & (draws[:, 1] == second), 2]
    both = [rows[first], rows[second]]
    nearest = np.min([kl(seed, rows) if direction == "center_user" else kl(rows, seed) for seed in both], axis=0)
    expected = seeding_probabilities(nearest, 1.5)
    observed = np.bincount(third, minlength=5) / len(third)
    assert len(third) > 100
    assert (np.abs(observed - expected) <= 4 * np.sqrt(expected * (1 - expected) / len(third)) + 1e-9).all()
    assert expected.max() - expected.min() > 0.1  # a uniform draw would not pass


# Lloyd (Algorithm 2)


@settings(max_examples=60, deadline=None)
@given(count_matrices, st.integers(1, 5), st.sampled_from(["user", "token"]), st.sampled_from(["uniform", "farthest"]))
def test_lloyd_never_increases_the_objective(counts, clusters, weighting, empty):
    counts[:, 0] += 1
    model = HistogramMixture(clusters, tol=0.0, weighting=weighting, empty=empty).fit(counts)
    assert (np.diff(model.history_) <= 1e-12 * model.history_[:-1]).all()
    assert model.objective_ <= model.history_[-1] * (1 + 1e-3) + 1e-9  # equal once the labels repeat
    np.testing.assert_allclose(model.centers_.sum(axis=1), 1.0)


@settings(max_examples=40, deadline=None)
@given(count_matrices, st.integers(1, 4))
def test_each_half_step_lowers_the_objective_without_smoothing(counts, clusters):
    counts[:, 0] += 1
    rows = HistogramRows.in_memory(sp.csr_array(counts, dtype=float), threads=1)
    histograms = normalise(sp.csr_array(counts, dtype=float))[0]
    centers = smooth(histograms[:clusters].toarray(), 0.01)
    labels, sums, _ = assign(rows, centers, 0.0)
    users = np.arange(len(counts))
    value = kl_to_centers(histograms, centers)[users, labels].sum()
    for _ in range(5):
        centers = recentre(sums)
        divergence = kl_to_centers(histograms, centers)
        centred = divergence[users, labels].sum()
        sizes = np.bincount(labels, minlength=clusters)
        assert centred <= value + 1e-9
        assert (divergence[users, labels] <= np.log(sizes[labels]) + 1e-9).all()  # P ≥ Q̂/|C|: never infinite
        labels, sums, _ = assign(rows, centers, 0.0, labels, sums)
        value = kl_to_centers(histograms, centers)[users, labels].sum()
        assert value <= centred + 1e-9


def test_objective_and_centres_are_what_they_say():
    _, data = mixture(users=600)
    counts = data.counts.toarray()
    model = HistogramMixture(4, tol=0.0, random_state=1).fit(counts)
    assert model.objective_ == pytest.approx(dense_objective(counts, model.centers_), rel=1e-6)
    means = np.stack([(counts[model.labels_ == k] / 100).mean(axis=0) for k in range(4)])
    np.testing.assert_allclose(model.centers_, means, atol=1e-12)
    np.testing.assert_array_equal(model.predict(counts), model.labels_)
    np.testing.assert_array_equal(model.transform(counts).argmin(axis=1), model.labels_)


def test_one_cluster_is_fedavg():
    _, data = mixture(users=300)
    model = HistogramMixture(1).fit(data.counts)
    np.testing.assert_allclose(model.centers_[0], (data.counts.toarray() / 100).mean(axis=0), atol=1e-14)
    np.testing.assert_allclose(model.centers_, FedAvgHistogram().fit(data.counts).centers_, atol=1e-14)


def test_as_many_clusters_as_users_fit_perfectly():
    counts = np.random.default_rng(0).poisson(1.0, size=(12, 20)) + np.eye(12, 20)
    model = HistogramMixture(12, init=counts).fit(counts)
    assert model.objective_ == pytest.approx(0.0, abs=1e-12)
    assert sorted(model.labels_) == list(range(12))


def test_permuting_users_and_tokens_permutes_the_result():
    _, data = mixture(users=500, tokens=40, concentration=40.0)
    counts, rng = data.counts.toarray(), np.random.default_rng(5)
    start = smooth(counts[:4] / 40, 0.01)
    users, tokens = rng.permutation(500), rng.permutation(100)
    plain = HistogramMixture(4, init=start).fit(counts)
    turned = HistogramMixture(4, init=start[:, tokens]).fit(counts[users][:, tokens])
    np.testing.assert_array_equal(turned.labels_, plain.labels_[users])
    np.testing.assert_allclose(turned.centers_, plain.centers_[:, tokens], atol=1e-12)


def test_an_empty_cluster_becomes_uniform_or_takes_the_worst_served_user():
    counts = np.array([[9, 1, 0, 0]] * 6 + [[1, 9, 0, 0]] * 6 + [[0, 0, 5, 5]])
    far = np.array([[0.9, 0.1, 0, 0], [0.1, 0.9, 0, 0], [1e-9, 1e-9, 1e-9, 1.0]])
    first = far.copy()
    first[0] = [0.5, 0.5, 0, 0]  # everybody but the last goes to the first centre, nobody to the second
    first[1] = [1e-6, 1e-6, 1.0, 1e-6]
    first[2] = [0, 0, 0.5, 0.5]
    uniform = HistogramMixture(3, init=first, max_iter=1).fit(counts)
    np.testing.assert_allclose(uniform.centers_[1], 0.25)
    reseeded = HistogramMixture(3, init=first, empty="farthest", tol=0.0).fit(counts)
    assert reseeded.objective_ == pytest.approx(0.0, abs=1e-9)


def test_a_user_with_a_token_of_its_own_can_still_move():
    """With bare means the first assignment would be final for such users."""
    _, data = mixture(seed=2, users=60, tokens=50, concentration=100.0)
    moved = [HistogramMixture(4, random_state=s, trials=1, temperature=0.5, tol=0.0).fit(data.counts) for s in range(8)]
    stuck = [clone(m).set_params(smoothing=0.0).fit(data.counts) for m in moved]
    assert np.mean([m.objective_ for m in moved]) < np.mean([m.objective_ for m in stuck])


def test_restarts_keep_the_best_run_and_seeds_are_reproducible():
    _, data = mixture(users=300, tokens=30, clusters=6, concentration=30.0)
    plain = {"temperature": 0.5, "trials": 1}
    one = HistogramMixture(6, random_state=4, **plain).fit(data.counts)
    many = HistogramMixture(6, random_state=4, n_init=8, **plain).fit(data.counts)
    assert many.objective_ < one.objective_
    np.testing.assert_array_equal(one.centers_, HistogramMixture(6, random_state=4, **plain).fit(data.counts).centers_)


def test_token_weighting_is_the_multinomial_mle():
    counts = np.array([[90, 10], [1, 9], [0, 10]])
    user, token = (HistogramMixture(1, weighting=w).fit(counts).centers_[0] for w in ("user", "token"))
    np.testing.assert_allclose(user, [1.0 / 3, 2.0 / 3])
    np.testing.assert_allclose(token, [91 / 120, 29 / 120])


def test_blocks_and_threads_do_not_change_the_result():
    _, data = mixture(users=9000, tokens=40, concentration=40.0)
    one, two = (HistogramMixture(4, threads=t).fit(data.counts) for t in (1, 2))
    np.testing.assert_array_equal(one.centers_, two.centers_)
    np.testing.assert_array_equal(one.labels_, two.labels_)


# The synthetic experiment and personalisation


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_synthetic_experiment_reaches_the_oracle(seed):
    """One run gave Local 0.62 (1.28), FedAvg 0.762, with FT 0.286, cluster 0.215, with FT 0.1339, oracle 0.1334."""
    centers, data = mixture(seed)
    model = HistogramMixture(4, max_iter=20, random_state=seed).fit(data.counts)
    assert accuracy(model.labels_, data.labels) == 1.0

    def risk(models, s=0.0):
        return mean_kl(data.histograms, models, s)

    local = [risk(LocalHistograms(smoothing=s).fit(data.counts).personalise(data.counts)) for s in (1e-2, 1e-4)]
    fedavg = FedAvgHistogram(lam=None).fit(data.counts)
    clustered, personal = risk(model.centers_[model.labels_], 1e-4), risk(model.personalise(data.counts))
    oracle = risk(bayes_histograms(data.counts, centers, 150, labels=data.labels))
    assert local == pytest.approx([0.62, 1.28], rel=0.1)
    assert 0.6 < risk(fedavg.centers_) < 0.85  # depends on the centres drawn
    assert risk(fedavg.personalise(data.counts)) == pytest.approx(0.286, rel=0.1)
    assert clustered == pytest.approx(0.215, rel=0.1)
    assert personal == pytest.approx(oracle, rel=0.01)
    assert oracle <= personal
    assert oracle == pytest.approx(0.1334, rel=0.1)
    assert model.concentration_ == pytest.approx(150, rel=0.03)
    fixed = clone(model).set_params(lam=0.6).fit(data.counts)
    assert risk(fixed.personalise(data.counts)) == pytest.approx(personal, rel=1e-3)


def test_lloyd_recovers_the_clusters_from_seeds_that_are_mostly_right():
    _, data = mixture(4)
    rng = np.random.default_rng(0)
    guess = np.where(rng.random(4000) < 0.6, data.labels, rng.integers(4, size=4000))
    counts = data.counts.toarray()
    first = np.stack([counts[guess == k].mean(axis=0) for k in range(4)])
    model = HistogramMixture(4, max_iter=3, init=first).fit(counts)
    assert (guess == data.labels).mean() < 0.75
    assert (model.labels_ == data.labels).mean() > 0.999


def test_personalise_is_the_posterior_mean_with_unequal_numbers_of_tokens():
    rng = np.random.default_rng(7)
    centers, _ = mixture(7)
    data = sample_histograms(centers, users=2000, tokens=rng.integers(10, 400, size=2000), concentration=100, rng=rng)
    model = HistogramMixture(4, random_state=1).fit(data.counts)
    tokens = np.asarray(data.counts.sum(axis=1)).ravel()
    weight = (model.concentration_ / (model.concentration_ + tokens))[:, None]
    own = data.counts.toarray() / tokens[:, None]
    np.testing.assert_allclose(
        model.personalise(data.counts), weight * model.centers_[model.labels_] + (1 - weight) * own, atol=2e-6
    )
    per_user = mean_kl(data.histograms, model.personalise(data.counts))
    best_fixed = min(
        mean_kl(data.histograms, model.set_params(lam=v).personalise(data.counts), 1e-4)
        for v in np.linspace(0.1, 0.9, 9)
    )
    assert per_user < 0.95 * best_fixed


def test_users_never_seen_gain_as_much_as_the_others():
    centers, data = mixture(3)
    model = HistogramMixture(4).fit(data.counts[:2000])
    new, truth = data.counts[2000:], data.histograms[2000:]
    gained = kl_rows(truth, model.personalise(new), 1e-4) - kl_rows(
        truth, bayes_histograms(new, centers, 150, labels=data.labels[2000:])
    )
    assert abs(gained.mean()) < 0.004
    assert mean_kl(truth, model.personalise(new), 1e-4) < 0.6 * mean_kl(
        truth, FedAvgHistogram(lam=None).fit(data.counts).personalise(new)
    )


def test_users_without_tokens_change_nothing_and_get_the_population():
    _, data = mixture(users=400)
    counts = data.counts.toarray()
    full = HistogramMixture(4).fit(counts)
    padded = np.zeros((402, 100))
    padded[1:401] = counts
    model = HistogramMixture(4, init=full.centers_).fit(padded)
    assert model.n_empty_users_ == 2
    assert model.objective_ == pytest.approx(full.objective_)
    largest = int(model.weights_.argmax())
    assert model.labels_[0] == model.labels_[401] == largest
    personal = model.personalise(padded)
    np.testing.assert_allclose(personal[0], model.weights_ @ model.centers_, atol=2e-6)
    np.testing.assert_allclose(personal.sum(axis=1), 1.0)
