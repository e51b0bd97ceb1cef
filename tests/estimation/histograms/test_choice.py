"""How many clusters, what they are about, and histograms of more users than fit in memory."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

import coterie as ct
from coterie.errors import ConfigError, DataError
from coterie.estimation.histograms.model import sample_histograms


def users(seed=0, n=300, tokens=80):
    rng = np.random.default_rng(seed)
    centers = rng.dirichlet(np.full(50, 0.5), 3)
    return sample_histograms(centers, users=n, tokens=tokens, concentration=100.0, rng=rng).counts


def test_the_number_of_clusters_by_held_out_likelihood():
    counts = users()
    model = ct.HistogramMixture(clusters=None, threads=1).fit(counts)
    assert model.clusters_ == 3
    assert max(model.scores_, key=model.scores_.get) == 3
    assert list(model.scores_)[:3] == [1, 2, 3]
    assert model.labels_.shape == (300,)
    same = ct.HistogramMixture(clusters=3, threads=1).fit(counts)
    np.testing.assert_array_equal(model.centers_, same.centers_)
    assert ct.HistogramMixture(clusters=[1, 2], threads=1).fit(counts).clusters_ == 2
    with pytest.raises(DataError, match="ten or more users"):
        ct.HistogramMixture(clusters=None).fit(counts[:5])
    with pytest.raises(ConfigError, match="one or more"):
        ct.HistogramMixture(clusters=()).fit(counts)


def test_score_prefers_the_truth():
    counts, fresh = users(), users(n=100)
    few, right = (ct.HistogramMixture(k, threads=1).fit(counts) for k in (1, 3))
    assert right.score(fresh) > few.score(fresh) + 0.05
    with pytest.raises(DataError, match="at least one token"):
        right.score(np.zeros((2, 50)))
    assert np.isfinite(right.score(np.eye(50)))


def test_top_tokens_and_a_word_about_tiny_clusters(tmp_path):
    counts = np.zeros((23, 6))
    counts[:10, :3], counts[10:21, 3:], counts[21:] = [8, 2, 1], [1, 2, 8], [0, 40, 0, 0, 40, 0]
    model = ct.HistogramMixture(3, n_init=5).fit(counts)
    assert "1 of 3 clusters have fewer than 5 users" in model.note_
    assert ct.HistogramMixture(2).fit(counts[:21]).note_ == ""
    words = np.array(["zoo", "yak", "x", "w", "v", "apple"])  # not sorted
    csr = sp.csr_array(counts)
    parts = {"indptr": csr.indptr, "indices": csr.indices, "data": csr.data, "shape": np.array(csr.shape)}
    np.savez(tmp_path / "named.npz", vocabulary=words, **parts)
    for named in (
        ct.HistogramMixture(2, random_state=1).fit(tmp_path / "named.npz"),
        ct.HistogramMixture(2, random_state=1).fit_stream(tmp_path / "named.npz"),
    ):
        assert named.vocabulary_.tolist() == words.tolist()
        top = named.top_tokens(1)
        assert set(top["token"]) == {"zoo", "apple"}
        assert (top["lift"] > 1).all()
    rows = pd.DataFrame({"user": [0, 0], "token": ["zoo", "yak"], "count": [8, 2]})
    assert named.predict(rows)[0] == named.predict(counts[:1])[0]
    np.savez(tmp_path / "short.npz", vocabulary=words[:3], **parts)
    with pytest.raises(DataError, match="name every row or column once"):
        ct.HistogramMixture(2).fit(tmp_path / "short.npz")


def test_frames_with_a_column_per_token():
    counts = pd.DataFrame(users(n=40).toarray()).rename(columns=lambda c: f"t{c}")
    model = ct.HistogramMixture(2).fit(counts)
    assert model.feature_names_in_.tolist() == list(counts.columns)
    assert model.n_features_in_ == 50
    with pytest.raises(DataError, match="feature names should match"):
        model.predict(counts[counts.columns[::-1]])


def test_personalise_in_blocks(tmp_path):
    counts = users(n=50)
    model = ct.HistogramMixture(2).fit(counts)
    folder = ct.histograms.save_counts(tmp_path / "store", [counts])
    for source in (counts, folder):
        blocks = list(model.personalise_blocks(source, users=20))
        assert [start for start, _ in blocks] == [0, 20, 40]
        np.testing.assert_allclose(np.vstack([b for _, b in blocks]), model.personalise(counts))


def test_the_soft_mixture_is_chosen_scored_and_sure_of_itself():
    """Three groups; the intervals hold 90 % of the true probabilities, four standard errors aside."""
    rng = np.random.default_rng(3)
    centers = rng.dirichlet(np.full(30, 0.5), 3)
    data = sample_histograms(centers, users=400, tokens=60, concentration=80.0, rng=rng)
    soft = ct.histograms.DirichletMultinomialMixture
    model = soft([1, 2, 3, 5]).fit(data.counts[:300])
    assert model.clusters_ == 3
    assert model.score(data.counts[300:]) > soft(1).fit(data.counts[:300]).score(data.counts[300:]) + 0.05
    low, high = model.interval(data.counts[300:], 0.9)
    truth = data.histograms[300:]
    covered = ((low <= truth) & (truth <= high)).mean(axis=1)
    assert abs(covered.mean() - 0.9) < 4 * covered.std() / 10 + 0.01
    mean = model.personalise(data.counts[300:])
    assert ((low <= mean) & (mean <= high)).mean() > 0.9
