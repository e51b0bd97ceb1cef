"""The reproduction of the paper's table: no token or user is both tuned on and reported, and the orderings hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from coterie.datasets.files import is_available
from coterie.estimation.histograms.model import sample_histograms
from reproductions import histogram_table
from reproductions.histogram_table import OPEN
from reproductions.histograms import TRAIN_TOKENS, Corpus
from reproductions.runner import records, run


def synthetic(users=600):
    rng = np.random.default_rng(0)
    centers = rng.dirichlet(np.full(450, 0.5), 8)
    return sample_histograms(
        centers, users=users, tokens=rng.integers(500, 900, size=users), concentration=200, rng=rng
    ).counts


def test_splits_share_no_token_and_no_user():
    counts = synthetic()
    corpus = Corpus.cut(counts, 0)
    assert not set(corpus.validation) & set(corpus.reported)
    assert len(corpus.validation) + len(corpus.reported) == counts.shape[0]
    np.testing.assert_array_equal((corpus.pool + corpus.test).toarray(), counts.toarray())
    for split in (corpus.for_tuning(0), corpus.for_run(1)):
        assert (np.asarray(split.train.sum(axis=1)) == TRAIN_TOKENS).all()
        assert (split.test.data >= 0).all()
    run = corpus.for_run(1)
    assert run.train.shape[0] + run.other_train.shape[0] == len(corpus.reported)
    mine = {tuple(row) for row in run.test.toarray()}
    assert not mine & {tuple(row) for row in corpus.test[corpus.validation].toarray()}
    np.testing.assert_array_equal(run.train.toarray(), corpus.for_run(1).train.toarray())
    assert (run.train != corpus.for_run(2).train).nnz > 0


@pytest.fixture
def tiny(monkeypatch):
    """Synthetic users instead of a corpus."""
    monkeypatch.setattr(histogram_table, "load_counts", lambda name: synthetic(900))
    monkeypatch.setattr(histogram_table, "CLUSTERS", 4)
    yield
    for kept in (histogram_table.corpus, histogram_table.choices, histogram_table.split):
        kept.cache_clear()


def test_a_small_table(tiny, tmp_path):
    one = replace(
        histogram_table.BLOGS, cells=lambda scale: {OPEN: OPEN, "private FedAvg": "FedAvg", "private A+": "A+"}
    )
    kept = run(one, "quick", 1, tmp_path, lambda line: None)
    found = records(kept)
    means = found.of(OPEN)[0]
    assert means["Alg. 2"] < means["FedAvg"]
    assert means["Alg. 2 + FT"] < means["FedAvg + FT"] < means["FedAvg"]
    assert abs(found.mean("private FedAvg", "alone") - means["FedAvg"]) < 0.05
    assert found.mean("private A+", "tuned") < found.mean("private FedAvg", "alone")


def test_algorithm_3_on_chosen_tokens_is_lifted_to_all_of_them(tiny):
    data = histogram_table.split("blogs", "quick", 0)
    model = histogram_table.private_model("Alg. 2 + reduction", data, 100, 0)
    assert model.centers_.shape == (4, data.train.shape[1])
    np.testing.assert_allclose(model.centers_.sum(1), 1.0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.skipif(not is_available("user_tokens_blogs.npz"), reason="needs user_tokens_blogs.npz in COTERIE_DATA")
def test_orderings_of_the_paper_on_the_blog_corpus(tmp_path):
    kept = run(histogram_table.BLOGS, "quick", 1, tmp_path, lambda line: None)
    assert all(claim.holds or claim.paper_is_wrong for claim in histogram_table.BLOGS.claims(records(kept)))
