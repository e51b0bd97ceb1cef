"""Private histograms: every release keeps its sensitivity, receipts say what is true, and clustering still pays."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.base import clone

import coterie as ct
from coterie.estimation.histograms.counts import has_public_vocabulary
from coterie.estimation.histograms.kl import mean_kl, normalise
from coterie.estimation.histograms.model import sample_histograms
from coterie.estimation.histograms.private.choice import merged
from coterie.estimation.histograms.private.concentration import GRID, left_out_losses
from coterie.estimation.histograms.private.noisy_lloyd import Shared
from coterie.estimation.histograms.private.space import Space, whitened, whitened_norms
from coterie.privacy import non_private, public
from reproductions.printed import histograms as paper
from reproductions.printed.histograms import PrintedHistogramMixture

EXACT = ct.Privacy(3, 1e-6, clip=1.0)
SIMULATED = ct.Privacy(3, 1e-6, clip=1.0, noise="simulation")


def make(users, *, tokens=60, clusters=3, length=100, deviation=0.7, seed=0):
    rng = np.random.default_rng(seed)
    centers = np.exp(deviation * rng.normal(size=(clusters, tokens))) / (np.arange(tokens) + 3)
    centers /= centers.sum(axis=1, keepdims=True)
    return sample_histograms(centers, users=users, tokens=length, concentration=150, rng=rng)


@pytest.fixture(scope="module")
def small():
    return make(1500)


MODELS = {
    "A+": lambda p: ct.HistogramMixture(3, privacy=p, threads=1),
    "B+": lambda p: ct.HistogramMixture(3, privacy=p, method="B+", threads=1),
    "reduced": lambda p: ct.HistogramMixture(
        3, privacy=p, threads=1, reduction=ct.histograms.TokenReduction(keep=12), rounds=4
    ),
    "some K": lambda p: ct.HistogramMixture([1, 2, 3, 6], privacy=p, threads=1, rounds=4),
    "soft": lambda p: ct.histograms.DirichletMultinomialMixture(3, privacy=p),
    "FedAvg": lambda p: ct.histograms.FedAvgHistogram(lam=None, privacy=p),
    "IFCA": lambda p: ct.histograms.IFCAHistograms(3, 4, 50.0, privacy=p, threads=1),
}


@pytest.mark.parametrize("name", MODELS)
def test_exact_noise_earns_a_valid_receipt_within_the_budget(name, small):
    model = MODELS[name](EXACT).fit(small.counts)
    receipt = model.receipt_
    assert receipt.valid
    assert receipt.reasons == ()
    assert 2.99 < receipt.epsilon <= 3
    assert receipt.delta == 1e-6
    assert receipt.guarantee == "joint"
    assert receipt.n_users == 1500
    assert type(receipt).from_json(receipt.to_json()) == receipt
    assert sum(line["share"] for line in receipt.releases) == pytest.approx(1)
    for secret in ("labels_", "objective_", "history_", "n_empty_users_"):
        assert not hasattr(model, secret)
    np.testing.assert_allclose(model.centers_.sum(axis=1), 1)
    assert (model.centers_ > 0).all()
    assert model.personalise(small.counts[:5]).shape == (5, 60)


@pytest.mark.parametrize("name", MODELS)
def test_a_simulation_is_no_release_and_is_the_same_twice(name, small):
    model = MODELS[name](SIMULATED).fit(small.counts)
    assert not model.receipt_.valid
    assert "NOT A DP RELEASE" in model.receipt_.reasons[0]
    np.testing.assert_array_equal(model.centers_, clone(model).fit(small.counts).centers_)


def test_the_papers_algorithm_earns_no_receipt(small):
    model = PrintedHistogramMixture(3, privacy=EXACT).fit(small.counts)
    assert not model.receipt_.valid
    assert any("raw rows" in reason for reason in model.receipt_.reasons)
    assert any("floating point" in reason for reason in model.receipt_.reasons)


def test_a_vocabulary_read_from_the_users_voids_the_receipt(small):
    table = small.counts.tocoo()
    frame = pd.DataFrame({"user": table.coords[0], "token": [f"t{x}" for x in table.coords[1]], "count": table.data})
    receipt = ct.histograms.FedAvgHistogram(privacy=EXACT).fit(frame).receipt_
    assert not receipt.valid
    assert "vocabulary" in receipt.reasons[0]


CANARIES = {
    "nothing": lambda d: np.zeros(d),
    "one rare token": lambda d: 1e6 * np.eye(d)[-1],
    "one common token": lambda d: np.eye(d)[0],
    "everything": lambda d: np.ones(d),
}


@pytest.mark.parametrize("adjacency", ["zero-out", "replace"])
@pytest.mark.parametrize("name", MODELS)
def test_one_user_moves_no_release_by_more_than_its_sensitivity(name, adjacency, differences):
    data = make(300, tokens=20).counts.toarray()
    privacy = ct.Privacy(3, 1e-6, clip=1.0, noise="simulation", adjacency=adjacency)
    moved = 0.0
    for before in ("one rare token", "everything"):
        for after in ("nothing",) if adjacency == "zero-out" else ("nothing", "one common token", "one rare token"):
            ours, theirs = data.copy(), data.copy()
            ours[7], theirs[7] = CANARIES[before](20), CANARIES[after](20)

            def fit(counts):
                MODELS[name](privacy).fit(sp.csr_array(counts))

            for event, moved_by, bound in differences(fit, ours, theirs):
                assert moved_by <= bound * (1 + 1e-12), event.name
                moved = max(moved, moved_by / bound)
    assert moved > 0.9 if adjacency == "zero-out" else moved > 0.45  # a Δ much too large would pass as well


def test_order_and_chunks_of_users_do_not_matter(small, tmp_path):
    model = ct.HistogramMixture(3, privacy=SIMULATED, rounds=3, random_state=4)
    whole = clone(model).fit(small.counts)
    shuffled = clone(model).fit(small.counts[np.random.default_rng(0).permutation(1500)])
    np.testing.assert_array_equal(whole.centers_, shuffled.centers_)
    ct.histograms.save_counts(tmp_path, (small.counts[start : start + 400] for start in range(0, 1500, 400)))
    streamed = clone(model).fit_stream(tmp_path)
    np.testing.assert_array_equal(whole.centers_, streamed.centers_)
    assert streamed.concentration_ == pytest.approx(whole.concentration_)


def test_private_clustering_beats_private_fedavg_and_nears_the_plain_fit():
    data = make(8000)
    plain = ct.HistogramMixture(3, random_state=0).fit(data.counts)
    fedavg = ct.histograms.FedAvgHistogram(lam=None, privacy=SIMULATED).fit(data.counts)
    risks = {}
    for name in ("A+", "B+"):
        model = MODELS[name](SIMULATED).fit(data.counts)
        assert model.clustering_pays_
        assert "Clustering pays" in model.advice_
        assert 100 < model.concentration_ < 220  # the truth is 150
        for lam in (1.0, None):
            ours, theirs = (m.set_params(lam=lam).personalise(data.counts) for m in (model, fedavg))
            risks[name, lam] = mean_kl(data.histograms, ours)
            assert risks[name, lam] < 0.95 * mean_kl(data.histograms, theirs), (name, lam)
    best = mean_kl(data.histograms, plain.personalise(data.counts))
    assert min(risks["A+", None], risks["B+", None]) < best + 0.01


def test_it_is_said_when_clustering_does_not_pay():
    data = make(3000, deviation=0.0)  # one kind of users
    model = ct.HistogramMixture(3, privacy=SIMULATED).fit(data.counts)
    assert not model.clustering_pays_
    assert "does not clearly pay" in model.advice_
    assert abs(model.gain_) < 4 * model.gain_error_


def test_users_without_tokens_and_public_starts():
    data = make(600, tokens=20)
    counts = sp.csr_array(sp.vstack([data.counts, sp.csr_array((5, 20))]))
    start = np.full((3, 20), 1 / 20) + 0.01 * np.eye(3, 20)
    model = ct.HistogramMixture(3, privacy=EXACT, init=public(start), rounds=2).fit(counts)
    assert model.receipt_.valid
    assert model.receipt_.choices["start"] == "public"
    np.testing.assert_allclose(model.personalise(np.zeros((1, 20)))[0], model.weights_ @ model.centers_)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"weighting": "token"}, "weighting"),
        ({"n_init": 2}, "n_init"),
        ({"method": "C"}, "method"),
        ({"rounds": 0}, "rounds"),
        ({"privacy": 3.0}, "Privacy"),
    ],
)
def test_settings_that_a_private_fit_cannot_keep_are_refused(settings, text, small):
    with pytest.raises(ct.errors.ConfigError, match=text):
        ct.HistogramMixture(3, **({"privacy": EXACT} | settings)).fit(small.counts)


def test_labels_are_not_given_out(small):
    with pytest.raises(ct.errors.ConfigError, match="labels"):
        ct.HistogramMixture(3, privacy=EXACT).fit_predict(small.counts)


def test_whitened_rows_and_their_norms(small):
    block = normalise(small.counts[:50])[0]
    base = np.asarray(block.mean(axis=0)).ravel() + 1e-3
    base /= base.sum()
    rows = whitened(block, base)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), whitened_norms(block, base), rtol=1e-9)
    np.testing.assert_allclose(Space(base, 1.0).centers(np.zeros((1, 60)))[0], base)
    mean = rows.mean(axis=0)[None]
    np.testing.assert_allclose(Space(base, 1.0).centers(mean)[0], np.asarray(block.mean(axis=0)).ravel(), atol=1e-4)


def test_losses_with_one_token_left_out_agree_with_leaving_it_out():
    counts = sp.csr_array(np.array([[3.0, 1, 0, 2], [0, 1, 0, 0]]))
    centers = np.array([[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4]])
    found = left_out_losses(counts, centers, GRID)
    for user, row in enumerate(counts.toarray()):
        for column, alpha in enumerate(GRID):
            loss = 0.0
            for token in np.flatnonzero(row):
                rest = row - np.eye(4)[token]
                nearest = centers[(np.log(centers) @ rest).argmax()]
                model = (alpha * nearest + rest) / (alpha + rest.sum())
                loss -= row[token] / row.sum() * np.log(model[token])
            assert found[user, column] == pytest.approx(loss)


def test_the_papers_composition():
    assert paper.composed(0.1, 1e-6, 10) == pytest.approx((5.43343, 2.1e-5), rel=1e-5)
    assert paper.composed(0.01, 1e-6, 50) == pytest.approx((1.13757, 1.01e-4), rel=1e-5)
    for rounds, epsilon, sigma in ((50, 0.0848802, 87.949), (10, 0.194741, 37.238), (5, 0.278972, 25.673)):
        found = paper.per_round(15, 1e-10, rounds)
        assert found[0] == pytest.approx(epsilon, rel=1e-5)
        assert paper.noise_deviation(*found) == pytest.approx(sigma, rel=1e-4)


def test_the_papers_centring_without_noise_is_the_mean(monkeypatch, small):
    monkeypatch.setattr(paper, "noise_deviation", lambda *_: 0.0)
    rows = ct.estimation.histograms.user_rows.HistogramRows.in_memory(small.counts, threads=1)

    class Silent:
        def laplace(self, scale, size):
            return np.zeros(size)

        def normal(self, scale, size):
            return np.zeros(size)

    start = np.full((1, 60), 1 / 60)
    centers, counts = paper.centring(rows, start, epsilon=1, delta=0.1, clip=1e9, floor=1e-9, rng=Silent())
    np.testing.assert_allclose(centers[0], rows.mean(), rtol=1e-9)
    assert counts[0] == 1500


def test_a_start_of_unknown_origin_voids_the_receipt(small):
    rows = small.counts[:3].toarray() + 1.0
    raw = ct.HistogramMixture(3, init=rows, privacy=EXACT, threads=1, rounds=2).fit(small.counts).receipt_
    assert not raw.valid
    assert any("start" in reason for reason in raw.reasons)
    model = clone(ct.HistogramMixture(3, init=public(np.ones((3, 60))), privacy=EXACT, threads=1, rounds=2))
    assert model.fit(small.counts).receipt_.valid


def test_a_vocabulary_of_a_folder_counts_as_public_only_if_declared(small, tmp_path):
    words = [f"t{i}" for i in range(60)]
    for vocabulary, valid in ((words, False), (None, False), (public(words), True)):
        ct.histograms.save_counts(tmp_path, [small.counts], vocabulary=vocabulary)
        model = ct.HistogramMixture(3, privacy=EXACT, threads=1, rounds=2).fit_stream(tmp_path)
        assert model.receipt_.valid is valid


def test_the_tokens_of_a_file_are_of_unknown_origin(small, tmp_path):
    sp.save_npz(tmp_path / "counts.npz", sp.csr_array(small.counts))
    for fit in ("fit", "fit_stream"):
        model = ct.HistogramMixture(3, privacy=EXACT, threads=1, rounds=2)
        receipt = getattr(model, fit)(tmp_path / "counts.npz").receipt_
        assert not receipt.valid
        assert "from a file" in receipt.reasons[0]
    assert ct.HistogramMixture(3, privacy=EXACT, threads=1, rounds=2).fit(small.counts).receipt_.valid


def test_a_start_that_would_be_ignored_is_refused(small):
    rows = small.counts[:3].toarray()
    for start in (rows, public(rows), "mean"):
        with pytest.raises(ct.errors.ConfigError, match="starts from a private mean"):
            ct.histograms.IFCAHistograms(3, max_iter=2, init=start, privacy=EXACT).fit(small.counts)


def test_a_folder_that_is_written_again_says_nothing_of_before(small, tmp_path):
    words, users = [f"t{i}" for i in range(60)], [f"u{i}" for i in range(small.counts.shape[0])]
    for later in (None, words, non_private(words, "read from users")):
        ct.histograms.save_counts(tmp_path, [small.counts], users, public(words))
        assert has_public_vocabulary(tmp_path)
        ct.histograms.save_counts(tmp_path, [small.counts], vocabulary=later)
        assert not has_public_vocabulary(tmp_path)
        assert not (tmp_path / "users.npy").exists()
        assert (tmp_path / "vocabulary.npy").exists() == (later is not None)


def test_the_number_of_clusters_is_released_and_right():
    """Five seeds of three groups and of one: merged clusters lose nothing, and one release finds the number."""
    for groups, deviation in ((3, 0.7), (1, 0.0)):
        data = make(6000, clusters=groups, deviation=deviation)
        found = [
            ct.HistogramMixture([1, 2, 3, 6], privacy=SIMULATED, random_state=seed).fit(data.counts).clusters_
            for seed in range(5)
        ]
        assert found.count(groups) >= 4, found


def test_merging_unites_what_is_alike():
    centers = np.array([[0.6, 0.3, 0.1], [0.59, 0.31, 0.1], [0.1, 0.2, 0.7]])
    options = merged(Shared(centers, np.array([0.5, 0.3, 0.2])), [1, 2])
    assert sorted(options) == [1, 2]
    np.testing.assert_allclose(options[2].centers[0], (0.5 * centers[0] + 0.3 * centers[1]) / 0.8)
    np.testing.assert_allclose(options[1].centers[0], np.array([0.5, 0.3, 0.2]) @ centers)
    np.testing.assert_allclose(options[2].weights, [0.8, 0.2])


def test_a_private_reduction_keeps_the_tokens_that_tell_users_apart():
    """Only 8 of 60 tokens differ between groups; the rounds see them and a rest, and the centres cover all tokens."""
    rng = np.random.default_rng(0)
    base = 1 / (np.arange(60) + 5)
    centers = np.stack([base, base])
    centers[0, :8] *= 3.0
    centers[1, :8] /= 3.0
    centers /= centers.sum(axis=1, keepdims=True)
    data = sample_histograms(centers, users=6000, tokens=100, concentration=150, rng=rng)
    model = ct.HistogramMixture(2, privacy=SIMULATED, reduction=ct.histograms.TokenReduction(keep=12)).fit(data.counts)
    labels = model.predict(data.counts)
    assert max((labels == data.labels).mean(), (labels != data.labels).mean()) > 0.97
    assert model.centers_.shape == (2, 60)
    with pytest.raises(ct.errors.ConfigError, match="method='A\\+'"):
        clone(model).set_params(method="B+").fit(data.counts)


def test_soft_assignments_of_private_centres_cost_nothing_and_help():
    rng = np.random.default_rng(1)
    centers = rng.dirichlet(np.full(40, 3.0), 4)  # close enough that users are in doubt
    data = sample_histograms(centers, users=6000, tokens=25, concentration=150, rng=rng)
    hard = ct.HistogramMixture(4, privacy=SIMULATED).fit(data.counts)
    soft = ct.histograms.DirichletMultinomialMixture(4, privacy=SIMULATED).fit(data.counts)
    np.testing.assert_array_equal(soft.centers_, hard.centers_)
    assert mean_kl(data.histograms, soft.personalise(data.counts)) < mean_kl(
        data.histograms, hard.personalise(data.counts)
    )


def test_the_printed_clip_and_floor_are_settings(small):
    """Tokens below the floor get the floor, so a high one lifts more of them; c is the clip of its second sum."""

    def lifted(model):
        return sum(int((row == row.min()).sum()) for row in model.centers_)

    model = PrintedHistogramMixture(3, privacy=SIMULATED, c=2.0, floor=0.5, rounds=2).fit(small.counts)
    low = PrintedHistogramMixture(3, privacy=SIMULATED, c=2.0, floor=1e-9, rounds=2).fit(small.counts)
    assert lifted(model) > lifted(low)
    assert "2" in next(line["derivation"] for line in model.receipt_.releases if line["name"] == "Algorithm 3, b2")
