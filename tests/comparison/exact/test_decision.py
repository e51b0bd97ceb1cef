"""The rule gives the right answer where it is plain, and none in noise; the decision says it in words."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

import coterie as ct
from coterie.comparison.exact import decide, distinguish, from_evaluation
from coterie.errors import ConfigError, DataError
from coterie.evidence.rule import flip_quantile, judge
from reproductions.study.worlds import World, make


def solve(world, seed=0, **more):
    table, fresh = make(world, seed)
    return decide(table.X, table.y, table.owner, kind=world.kind, repeats=1, **more), fresh


@pytest.mark.parametrize(
    ("truth", "kind", "effect", "expected"),
    [
        ("identical", "regression", 0.35, {"together"}),
        ("identical", "classification", 0.35, {"together"}),
        ("groups", "regression", 0.5, {"groups"}),
        ("partial", "regression", 0.35, {"shrunk"}),
        ("unrelated", "regression", 0.5, {"alone"}),
        ("unrelated", "classification", 0.9, {"alone", "shrunk"}),
    ],
)
def test_plain_worlds(truth, kind, effect, expected):
    found, _ = solve(World(truth, 50, kind, effect=effect))
    assert found.recommendation in expected
    assert found.sure in ("clear", "leaning", "borderline")


@pytest.mark.parametrize("kind", ["regression", "classification"])
@pytest.mark.parametrize("seed", range(3))
def test_noise_supports_no_model(kind, seed):
    found, _ = solve(World("noise", 30, kind), seed)
    assert (found.recommendation, found.sure) == ("alone", "nothing")
    assert "do not support a model" in found.words()
    for metric in found.evaluation.scores:
        other = from_evaluation(found.table, found.evaluation, metric, level=0.95, folds=10, repeats=1, seed=0)
        assert other.sure == "nothing"


def test_what_a_decision_holds():
    found, fresh = solve(World("groups", 40, "regression", effect=0.5))
    assert found.losses.shape == found.gains.shape == (5, 40)
    assert found.gains.loc["alone"].abs().max() == 0
    summary = found.summary()
    assert summary.loc["groups", "gain"] == pytest.approx(found.gains.loc["groups"].mean())
    alone = found.losses.loc["alone"].mean()
    assert found.interval == pytest.approx(tuple(summary.loc["groups", ["low", "high"]] / alone))
    assert set(found.marks) <= {"gains", "loses", "no clear change", "no score"}
    assert found.groups.nunique() == 3
    predictor = found.predictors["groups"]
    made = predictor.predict(fresh.X, fresh.owner)
    assert np.mean((made - fresh.y) ** 2) < 1.3  # the noise has variance one
    table = found.coefficients("groups")
    by_hand = table["intercept"].to_numpy()[fresh.owner] + (fresh.X * table.to_numpy()[fresh.owner, 1:]).sum(1)
    np.testing.assert_allclose(by_hand, made)
    assert "In groups" in found.words()
    assert "seed 0" in found.words()
    with pytest.raises(ConfigError, match="one of constant"):
        found.coefficients("other")


def test_scales_do_not_matter():
    table, _ = make(World("partial", 20, "regression"), 1)
    plain = decide(table.X, table.y, table.owner, repeats=1)
    scaled = decide(table.X * np.array([1e6, 1e-6, 1, 1]) + 1e3, 1e5 + 1e5 * table.y, table.owner, repeats=1)
    np.testing.assert_allclose(plain.losses, scaled.losses, rtol=0.02, atol=0.002)
    assert plain.recommendation == scaled.recommendation


def test_labels_names_and_unseen_clients():
    table, _ = make(World("identical", 12, "classification"), 0)
    frame = pd.DataFrame(table.X, columns=list("abcd"))
    names = np.array([f"shop {i:02d}" for i in range(12)])[table.owner]
    found = decide(
        frame, np.where(table.y > 0, "yes", "no"), names, kind="classification", repeats=1, metric="accuracy"
    )
    assert set(found.predictors["together"].predict(frame[:50], names[:50])) <= {"yes", "no"}
    chance = found.predictors["shrunk"].predict_proba(frame[:2], ["nobody", "shop 01"])
    np.testing.assert_allclose(chance.sum(1), 1)
    assert list(found.coefficients("alone").columns) == ["intercept", "a", "b", "c", "d"]
    assert found.marks.index[0] == "shop 00"


def test_three_classes():
    found, fresh = solve(World("identical", 15, "classification", classes=3, effect=0.6))
    assert found.recommendation == "together"
    assert found.coefficients("shrunk").shape == (15, 15)
    assert (found.predictors["together"].predict(fresh.X, fresh.owner) == fresh.y).mean() > 0.4


def test_a_target_that_never_changes():
    found = decide(np.random.default_rng(0).normal(size=(40, 2)), np.ones(40), np.arange(40) % 4)
    assert (found.recommendation, found.sure) == ("alone", "nothing")
    assert "never changes" in found.words()


def test_small_clients_have_no_score():
    table, _ = make(World("identical", 12, "regression"), 0)
    owner = table.owner.copy()
    owner[:3] = 99
    found = decide(table.X, table.y, owner, repeats=1)
    assert found.marks[99] == "no score"
    assert np.isnan(found.losses.loc["alone", 99])
    assert any("no score" in w for w in found.warnings)
    with pytest.raises(DataError, match="to be scored"):
        decide(table.X[:6], table.y[:6], np.repeat([0, 1, 2], 2))


def test_an_outlier_is_named():
    table, _ = make(World("identical", 12, "regression"), 0)
    y = table.y.copy()
    y[17] = 1e4
    assert any("Row 17" in w for w in decide(table.X, y, table.owner, repeats=1).warnings)


def test_progress_and_seed():
    table, _ = make(World("partial", 10, "regression"), 0)
    seen: list[tuple[int, int]] = []
    one = decide(table.X, table.y, table.owner, repeats=2, progress=lambda a, b: seen.append((a, b)))
    assert seen == [(k, 20) for k in range(1, 21)]
    pd.testing.assert_frame_equal(one.losses, decide(table.X, table.y, table.owner, repeats=2).losses)


@pytest.mark.parametrize("wrong", [{"folds": 1}, {"level": 2}, {"metric": "f1"}, {"repeats": 0}])
def test_wrong_settings(wrong):
    with pytest.raises(ConfigError):
        decide(np.zeros((20, 1)), np.arange(20.0), np.arange(20) % 2, **wrong)


def test_distinguish_finds_the_column_that_differs():
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(30), 40)
    kind = (np.arange(30) % 3 == 0)[owner]
    X = rng.normal(size=(1200, 3))
    X[:, 2] += 2 * kind
    y = np.where(kind, -1.0, 1.0) * X[:, 0] * 2 + rng.normal(size=1200)
    found = decide(X, y, owner, repeats=1, names=["slope", "none", "mean"])
    table = distinguish(found).set_index(["group", "column"])
    assert table.loc[(1, "slope"), "effect"] < -1
    assert table.loc[(1, "mean"), "mean_difference"] > 3
    assert abs(table.loc[(1, "none"), "mean_difference"]) < 1.6
    other = distinguish(found, kind[:, None] * 1.0 + rng.normal(size=(1200, 1)), ["other"])
    assert other["effect"].isna().all()
    assert other.loc[other["group"] == 1, "mean_difference"].item() > 3


def test_flips_of_one_method_are_normal_and_of_many_pay_for_choosing():
    rng = np.random.default_rng(0)
    one = flip_quantile(rng.normal(size=(1, 200)), 0.95, np.random.default_rng(1))
    many = flip_quantile(rng.normal(size=(3, 200)), 0.95, np.random.default_rng(1))
    assert one == pytest.approx(1.645, abs=4 * 0.07)
    assert many > one + 0.2


@pytest.mark.parametrize("metric", ["accuracy", "auc"])
def test_other_metrics_reach_the_same_answer(metric):
    found, _ = solve(World("identical", 30, "classification", effect=0.6), metric=metric)
    assert found.recommendation == "together"
    assert metric in found.words()


def test_log_loss_must_vouch_for_accuracy():
    """Scores that look good by accuracy do not count where the log loss has learned nothing."""
    found, _ = solve(World("identical", 30, "classification", effect=0.6))
    scores = found.evaluation.scores
    assert judge(scores["accuracy"]).sure == "clear"
    noise, _ = solve(World("noise", 30, "classification"))
    assert judge(scores["accuracy"], proper=noise.evaluation.scores["log_loss"]).sure == "nothing"


def test_the_constant_is_not_worse_than_a_coin():
    found, _ = solve(World("noise", 40, "classification"))
    loss = found.evaluation.scores["accuracy"].mean_rows()[0].mean()
    assert loss == pytest.approx(min(found.table.y.mean(), 1 - found.table.y.mean()))


def test_the_core_needs_no_torch() -> None:
    """In a process of its own: what a table needs is imported and answers without torch."""
    code = (
        "import sys, numpy as np\n"
        "from coterie.comparison import decide\n"
        "from coterie.evidence import rule, coalitions\n"
        "rng = np.random.default_rng(0)\n"
        "X, who = rng.normal(size=(80, 1)), np.arange(80) % 4\n"
        "print(decide(X, X[:, 0], who, repeats=1).recommendation, 'torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["alone", "False"]


def test_the_old_name_at_the_top_works_for_one_release() -> None:
    with pytest.warns(FutureWarning, match=r"ct\.decide is now ct\.comparison\.decide"):
        assert ct.decide is decide
    assert "decide" not in ct.__all__
