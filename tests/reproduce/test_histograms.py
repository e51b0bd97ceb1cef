"""The reproduction of the paper's table: no token or user is both tuned on and reported, and the orderings hold."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from coterie.estimation.histograms.model import sample_histograms
from coterie.reproduce.histograms import TRAIN_TOKENS, Corpus, load_counts, markdown, table

BLOGS = Path(os.environ.get("COTERIE_DATA", "")) / "user_tokens_blogs.npz"


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


def test_a_small_table():
    result, choices = table(synthetic(), runs=2, log=lambda text: None)
    means = result["mean KL (nats)"]
    assert means["Alg. 2"] < means["FedAvg"]
    assert means["Alg. 2 + FT"] < means["FedAvg + FT"] < means["FedAvg"]
    assert (result["95 % interval ±"] > 0).all()
    text = markdown(result, choices, 600, 2)
    assert text.count("\n| ") == len(result)


@pytest.mark.slow
@pytest.mark.skipif(not BLOGS.is_file(), reason="needs user_tokens_blogs.npz in the folder COTERIE_DATA names")
def test_orderings_of_the_paper_on_the_blog_corpus():
    counts = sp.csr_array(load_counts(BLOGS)[:6000])
    means = table(counts, runs=2, log=lambda text: None)[0]["mean KL (nats)"]
    for shared in ("FedAvg", "IFCA", "Alg. 2 + reduction", "Alg. 2"):
        assert means[f"{shared} + FT"] < means[shared] < means["Local"]
    assert means["Alg. 2"] < means["Alg. 2 + reduction"] < means["FedAvg"]
    assert means["Alg. 2 + FT"] < means["IFCA + FT"] < means["FedAvg + FT"]
