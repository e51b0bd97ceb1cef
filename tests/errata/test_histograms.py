"""Errata of the histogram paper that no other test shows: smoothing, numerics, and which tokens may be dropped."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from scipy.special import rel_entr

from coterie.estimation.histograms.kl import kl_to_centers, normalise, smooth
from coterie.estimation.histograms.reduction import TokenReduction, second_moment
from coterie.estimation.histograms.seeding import seed_centers
from coterie.estimation.histograms.user_rows import HistogramRows


def test_raw_rows_are_infinitely_far_apart_and_smoothed_seeds_are_not() -> None:
    """H04: with sparse rows the printed seeding is exp(τ·∞)/Σ, which is no probability, in either direction."""
    counts = np.random.default_rng(0).multinomial(20, np.full(60, 1 / 60), size=40)
    histograms = normalise(sp.csr_array(counts, dtype=float))[0]
    raw = histograms.toarray()
    assert np.isinf(rel_entr(raw[0], raw[1:]).sum(axis=1)).all()
    assert np.isinf(rel_entr(raw[1:], raw[0]).sum(axis=1)).all()
    for direction in ("center_user", "user_center"):
        seeds, rows = seed_centers(histograms, 5, np.random.default_rng(1), 0.5, 0.01, direction)
        np.testing.assert_allclose(seeds, smooth(raw[rows], 0.01))
        assert len(set(rows.tolist())) == 5
        assert np.isfinite(kl_to_centers(histograms, seeds)).all()


def test_divergences_are_exact_and_only_the_model_is_smoothed() -> None:
    """H-7: 0·log 0 = 0, ∞ where a model gives zero to a seen token, and the nearest centre by one matrix product."""
    rng = np.random.default_rng(2)
    counts = rng.poisson(1.0, size=(30, 8)) + np.eye(30, 8, dtype=int) + (np.arange(8) == 0)
    histograms = normalise(sp.csr_array(counts, dtype=float))[0]
    dense, centers = histograms.toarray(), rng.dirichlet(np.ones(8), 4)
    expected = rel_entr(dense[:, None], centers[None]).sum(axis=2)
    got = kl_to_centers(histograms, centers)
    np.testing.assert_allclose(got, expected, atol=1e-12)
    np.testing.assert_array_equal(got.argmin(axis=1), (dense @ np.log(centers).T).argmax(axis=1))
    centers[0, 3] = 0.0
    centers[0] /= centers[0].sum()
    seen = dense[:, 3] > 0
    assert seen.any()
    assert not seen.all()
    np.testing.assert_array_equal(np.isinf(kl_to_centers(histograms, centers)[:, 0]), seen)
    assert np.isfinite(kl_to_centers(histograms, smooth(centers, 1e-3))).all()


def test_a_token_is_dropped_only_if_it_is_small_in_all_directions() -> None:
    """H11: tokens 0, 1 tell clusters apart along one direction, tokens 2, 3 along the other, token 4 along none."""
    signs = np.array([[s, t] for s in (1, -1) for t in (1, -1)])
    first, second = np.array([1, -1, 0, 0, 0]), np.array([0, 0, 1, -1, 0])
    counts = 20 + np.outer(signs[:, 0], 15 * first) + np.outer(signs[:, 1], 8 * second)
    rows = HistogramRows.in_memory(sp.csr_array(counts, dtype=float), threads=1)
    mean = np.full(5, 0.2)
    kept = TokenReduction(threshold=0.3).fit(rows, mean, clusters=3).kept
    np.testing.assert_array_equal(kept, [0, 1, 2, 3])
    directions = np.abs(np.linalg.eigh(second_moment(rows, mean))[1][:, ::-1][:, :2])
    assert (directions.min(axis=1) < 0.3).all()  # as the text has it ("for any v"), nothing at all would be left
