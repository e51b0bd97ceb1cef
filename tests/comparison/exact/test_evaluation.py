"""Folds are honest and metrics are what scikit-learn says they are."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from sklearn.metrics import log_loss as sk_log_loss
from sklearn.metrics import r2_score, roc_auc_score

from coterie.comparison.exact import METHODS, Scores, evaluate, make_table
from coterie.comparison.exact.candidates import CANDIDATES, Candidate
from coterie.comparison.exact.candidates.base import Fit
from coterie.comparison.exact.candidates.rows import Rows
from coterie.comparison.exact.fitting import learn
from coterie.comparison.exact.folds import deal
from coterie.comparison.exact.metrics import METRICS, Predictions
from coterie.errors import ConfigError, DataError
from coterie.evidence.mean_gains import gain, interval

RNG = np.random.default_rng


def table(kind="classification", m=12, n=30, seed=0):
    rng = RNG(seed)
    owner = np.repeat(np.arange(m), n)
    X = rng.normal(size=(m * n, 2))
    y = X[:, 0] + rng.normal(size=m * n)
    return make_table(X, y > 0 if kind == "classification" else y, owner, kind, None)


def test_folds_are_balanced_inside_every_client():
    owner = np.repeat(np.arange(30), RNG(0).integers(1, 40, 30))
    fold = deal(owner, 30, 10, RNG(1))
    for i in range(30):
        count = np.bincount(fold[owner == i], minlength=10)
        assert count.max() - count.min() <= 1
    first = [np.sort(fold[owner == i])[0] for i in range(30) if (owner == i).sum() < 5]
    assert len(set(first)) > 1  # small clients do not all lose the same fold


def test_a_model_never_sees_the_rows_it_is_tested_on():
    """With more columns than rows a lone model fits its training rows exactly; on noise it must not beat the mean."""
    rng = RNG(0)
    data = make_table(rng.normal(size=(300, 40)), rng.normal(size=300), np.arange(300) % 15, "regression", None)
    losses = evaluate(data).scores["mse"].losses().mean(1)
    assert losses[METHODS.index("constant")] == pytest.approx(1, abs=0.05)
    assert (losses[1:] > 0.97).all()


@dataclass(frozen=True)
class Kept:
    """A candidate whose fits are kept."""

    candidate: Candidate
    fits: list[Fit]

    @property
    def name(self) -> str:
        return self.candidate.name

    def fit(self, rows: Rows, rng: np.random.Generator) -> Fit:
        self.fits.append(self.candidate.fit(rows, rng))
        return self.fits[-1]


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_a_folds_fit_does_not_know_the_targets_it_is_tested_on(kind):
    """Other folds have seen them, so nothing may pass from fold to fold."""
    before = table(kind)
    fold = deal(before.owner, before.n_clients, 5, RNG([0, 1, 0]))
    y = np.where(fold == 4, RNG(9).permutation(before.y), before.y)
    fits = []
    for data in (before, replace(before, y=y)):
        kept = {name: Kept(candidate, []) for name, candidate in CANDIDATES.items()}
        evaluate(data, folds=5, repeats=1, candidates=kept)
        fits.append({name: one.fits for name, one in kept.items()})
    for name in CANDIDATES:
        assert np.array_equal(fits[0][name][4].coef, fits[1][name][4].coef), name
        if name != "constant":
            assert not np.array_equal(fits[0][name][0].coef, fits[1][name][0].coef)


def test_metrics_equal_scikit_learn():
    data = table()
    rng = RNG(3)
    chance = rng.random(len(data.y))
    chance = np.round(chance, 1) * 0.8 + 0.1  # ties
    made = Predictions(np.column_stack([1 - chance, chance]))
    area, loss, wrong = (METRICS["classification"][k](data, made) for k in ("auc", "log_loss", "accuracy"))
    for i in range(12):
        mine = data.owner == i
        assert 1 - area[mine].mean() == pytest.approx(roc_auc_score(data.y[mine], chance[mine]))
        assert loss[mine].mean() == pytest.approx(sk_log_loss(data.y[mine], chance[mine]))
    hit = np.where(chance == 0.5, 0.5, (chance > 0.5) == (data.y == 1))
    np.testing.assert_allclose(1 - wrong, hit)
    data = table("regression")
    guess = data.y + rng.normal(size=len(data.y))
    own = METRICS["regression"]["r2"](data, Predictions(guess[:, None]))
    assert 1 - own[data.owner == 3].mean() == pytest.approx(r2_score(data.y[data.owner == 3], guess[data.owner == 3]))


def test_delong_spread_gives_the_standard_error_of_the_area():
    rng = RNG(0)
    areas, errors = [], []
    for _ in range(400):
        y = np.arange(60) % 2
        score = rng.normal(size=60) + y
        data = make_table(
            np.zeros((64, 1)), np.append(y, [0, 1, 0, 1]), np.append(np.zeros(60), np.ones(4)), "classification", None
        )
        s = np.append(score, np.zeros(4))
        rows = METRICS["classification"]["auc"](data, Predictions(np.column_stack([-s, s])))[:60]
        areas.append(rows.mean())
        errors.append(rows.var(ddof=1) / 60)
    assert np.mean(errors) == pytest.approx(np.var(areas), rel=4 * np.sqrt(2 / 400))


def test_pairs_hold_both_classes():
    data = table()
    fold = deal(data.owner, 12, 10, RNG(0), data.y)
    cell = data.owner * 10 + fold
    both = [len(np.unique(data.y[cell == c])) == 2 for c in np.unique(cell)]
    assert np.mean(both) > 0.9
    for i in range(12):
        count = np.bincount(fold[data.owner == i], minlength=10)
        assert count.max() - count.min() <= 2


def test_auc_compares_rows_of_one_fold_only():
    """Models whose intercepts leave the held-out class out rank perfectly wrong across folds, and neutrally within."""
    y = np.array([0, 1] * 20)
    data = make_table(np.zeros((40, 1)), y, np.repeat([0, 1], 20), "classification", None)
    fold = np.arange(40) // 4 % 5
    chance = np.where(fold % 2 == 0, 0.3, 0.6)
    rows = METRICS["classification"]["auc"](data, Predictions(np.column_stack([1 - chance, chance]), fold))
    np.testing.assert_allclose(rows, 0.5)


def test_auc_of_a_constant_is_one_half():
    scores = evaluate(table()).scores["auc"]
    assert scores.losses()[METHODS.index("constant")] == pytest.approx(0.5)


def test_gain_by_hand():
    scores = evaluate(table("regression")).scores["mse"]
    found = gain(scores, METHODS.index("together"), METHODS.index("alone"))
    rows = scores.rows[0, METHODS.index("alone")] - scores.rows[0, METHODS.index("together")]
    each = rows.reshape(12, 30).mean(1)
    np.testing.assert_allclose(found.clients, each)
    assert found.mean == pytest.approx(rows.mean())
    assert found.se_clients == pytest.approx(each.std(ddof=1) / np.sqrt(12))
    low, high = interval(found, 0.95)
    assert low < found.mean < high
    assert low < interval(found, 0.8)[0]


def test_repeats_of_the_same_rows_are_not_new_evidence():
    data = table("regression", m=10, n=20)
    one, many = (evaluate(data, repeats=r).scores["mse"] for r in (1, 6))
    pair = [gain(s, METHODS.index("shrunk"), METHODS.index("constant")).se_rows for s in (one, many)]
    assert pair[1] > 0.8 * pair[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "x"}, "kind is 'x'"),
        ({"clients": np.zeros(20)}, "only one client"),
        ({"X": np.full((20, 2), np.nan)}, "missing"),
        ({"y": np.arange(19)}, "one entry per row"),
        ({"X": np.array([["a", "b"]] * 20)}, "must be numbers"),
        ({"names": ["a"]}, "1 names for 2"),
        ({"y": np.array(["u"] * 20)}, "numeric target"),
    ],
)
def test_refusals_are_sentences(change, words):
    given = {
        "X": np.zeros((20, 2)),
        "y": np.arange(20.0),
        "clients": np.arange(20) % 4,
        "kind": "regression",
        "names": None,
    }
    with pytest.raises((DataError, ConfigError), match=words):
        make_table(**{**given, **change})


def test_the_second_look_is_not_drowned_by_a_noisy_client():
    """Eleven clients that gain a little for sure, and one of four rows that swings wildly."""
    rng = RNG(0)
    owner = np.concatenate([np.repeat(np.arange(11), 50), np.full(4, 11)])
    rows = np.zeros((1, 2, len(owner)))
    rows[0, 1] = 0.1 + 0.1 * rng.normal(size=len(owner))
    rows[0, 1, -4:] = [9.0, -6.0, 4.0, -2.0]
    fold = deal(owner, 12, 10, rng)[None]
    scores = Scores("mse", rows, fold, 10, owner, np.arange(12), 12)
    found = gain(scores, 0, 1)
    assert found.mean < 2.5 * found.se_clients
    assert found.weighted == pytest.approx(0.1, abs=0.03)
    assert found.beyond(2.5)
    worse = gain(scores, 1, 0)
    assert not worse.beyond(0.5)


def test_nothing_outside_the_training_part_is_seen():
    """Other columns and targets in the rows left out change no fitted model, its scaling included."""
    data = table("regression")
    keep = np.arange(len(data.y)) % 3 > 0
    X, y = data.X.copy(), data.y.copy()
    X[~keep], y[~keep] = 1e3 + X[~keep], -50.0
    other = make_table(X, y, data.owner, "regression", None)
    some = {name: CANDIDATES[name] for name in ("constant", "alone", "together", "shrunk")}
    one, two = (learn(t, keep, some, RNG(0)) for t in (data, other))
    for name in some:
        np.testing.assert_array_equal(*(m[name].outputs(data.X, data.owner) for m in (one, two)))


def test_the_overall_average_has_a_squared_error_of_one():
    data = table("regression")
    large = make_table(data.X, 50 * data.y, data.owner, "regression", None)
    mean = np.full((len(data.y), 1), large.y.mean())
    assert METRICS["regression"]["mse"](large, Predictions(mean)).mean() == pytest.approx(1)


def test_deployed_models_do_not_follow_a_line_far_beyond_their_rows():
    """One row is a hundred times as far out as the others, and the line does not hold there."""
    made = table("regression", m=6, n=40)
    X, y = made.X.copy(), made.y.copy()
    X[7, 0] = 300.0
    wild = replace(made, X=X, y=y)
    found = evaluate(wild, folds=10)
    together = METHODS.index("together")
    bounded = abs(found.outputs[together, 7, 0] - y[7])
    assert bounded < 8 < np.sqrt(found.scores["mse"].rows[0, together, 7] * y.var())
    keep = np.arange(len(y)) != 7
    model = learn(wild, keep, {"together": CANDIDATES["together"]}, RNG(0))["together"]
    inside = X[keep][:5]
    assert (model.outputs(inside, made.owner[:5]) == model.unbounded().outputs(inside, made.owner[:5])).all()
