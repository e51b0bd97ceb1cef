"""Scores from clients' sums give the numbers of scores from rows."""

import numpy as np

from coterie.evidence.mean_gains import gain
from coterie.evidence.rule import decide_scores
from coterie.evidence.scores import METHODS, ClientScores, Scores

REPEATS, FOLDS = 3, 5


def both() -> tuple[Scores, ClientScores]:
    rng = np.random.default_rng(1)
    sizes = rng.integers(12, 40, size=14)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    level = np.array([2.0, 1.0, 0.9, 0.7, 1.1])[:, None]
    rows = level * rng.gamma(2.0, size=(REPEATS, len(METHODS), len(owner)))
    fold = rng.integers(FOLDS, size=(REPEATS, len(owner)))
    scored = np.arange(1, len(sizes))
    each = np.concatenate([rows.mean(0)[None], rows])
    told = np.stack([each[..., owner == i].mean(-1) for i in scored], -1)
    apart = [each[..., owner == i] - each[..., owner == i].mean(-1, keepdims=True) for i in scored]
    products = np.stack([a @ a.swapaxes(1, 2) for a in apart], -1)
    folds = np.zeros((REPEATS, FOLDS, len(METHODS), len(scored)))
    for r, k, i in np.ndindex(REPEATS, FOLDS, len(scored)):
        folds[r, k, :, i] = rows[r][:, (owner == scored[i]) & (fold[r] == k)].sum(1)
    by_row = Scores("mse", rows, fold, FOLDS, owner, scored, len(sizes))
    count = sizes[scored].astype(np.float64)
    return by_row, ClientScores.of("mse", scored, len(sizes), count, told, products, folds)


def test_gains_and_their_errors_agree() -> None:
    rows, sums = both()
    for one, other in zip([rows, *rows.parts()], [sums, *sums.parts()], strict=True):
        np.testing.assert_allclose(one.losses(), other.losses(), rtol=1e-12)
        for method, over in ((3, 1), (2, 1), (1, 0), (4, 3)):
            a, b = vars(gain(one, method, over)), vars(gain(other, method, over))
            assert a.keys() == b.keys()
            for name, value in a.items():
                np.testing.assert_allclose(value, b[name], rtol=1e-9, atol=1e-12, err_msg=name)


def test_the_rule_gives_the_same_answer() -> None:
    rows, sums = both()
    one, other = decide_scores(rows), decide_scores(sums)
    assert (one.recommendation, one.sure, one.proven) == (other.recommendation, other.sure, other.proven)
    assert one.recommendation == "shrunk"
    np.testing.assert_allclose(one.share, other.share, rtol=1e-9)
