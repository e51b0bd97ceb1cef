"""The rule for trained methods, on gains whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from coterie.comparison.judgement import Judgement, Trained, judge_trained, mean_error, split_error


def trained(way: str, mean: float, seed: int, *, clients: int = 20, beats: float = 1.0, shared: float = 0.0) -> Trained:
    """Gains of three splits around a mean; `shared` is noise that all clients of a split have in common."""
    rng = np.random.default_rng(seed)
    gains = mean + 0.05 * rng.normal(size=(3, clients)) + shared * rng.normal(size=(3, 1))
    return Trained(way, gains, np.full(clients, 0.05 / np.sqrt(3)), beats, 0.05)


def judged(**methods: Trained) -> Judgement:
    zero = Trained("alone", np.zeros((3, 20)), np.zeros(20), 1.0, 0.05)
    return judge_trained({"local": zero, **methods}, overlap=0.25, room=0.5, constant=0.5, rows=300)


def test_the_simplest_of_equally_good_methods_is_taken() -> None:
    found = judged(ifca=trained("groups", 0.2, 0), ditto=trained("shrunk", 0.2, 1), fedavg=trained("together", 0.2, 2))
    assert (found.recommendation, found.method, found.sure) == ("together", "fedavg", "clear")


def test_a_measurably_better_method_is_taken_though_it_is_less_simple() -> None:
    found = judged(ifca=trained("groups", 0.5, 0), fedavg=trained("together", 0.2, 2))
    assert (found.recommendation, found.method) == ("groups", "ifca")
    assert found.interval[0] < 0.5 < found.interval[1]


def test_what_does_not_beat_the_overall_average_is_no_gain() -> None:
    zero = Trained("alone", np.zeros((3, 20)), np.zeros(20), 0.0, 0.05)
    methods = {"local": zero, "fedavg": trained("together", 0.2, 2, beats=0.0)}
    found = judge_trained(methods, overlap=0.25, room=0.5, constant=0.5, rows=300)
    assert (found.recommendation, found.sure) == ("alone", "nothing")


def test_losses_leave_everybody_alone() -> None:
    found = judged(fedavg=trained("together", -0.2, 2))
    assert (found.recommendation, found.sure) == ("alone", "clear")


def test_training_noise_that_clients_share_is_no_gain() -> None:
    """Four methods without any gain, whose splits differ by 0.05 for all clients at once: 200 worlds, at most 5 % wrong
    claims and four standard errors more. Errors over clients and rows alone would call most of these worlds clear."""
    wrong, careless = 0, 0
    for seed in range(200):
        ways = ("together", "shrunk", "shrunk", "groups")
        methods = {f"m{i}": trained(way, 0.0, 10 * seed + i, shared=0.05) for i, way in enumerate(ways)}
        found = judged(**methods)
        wrong += found.recommendation != "alone" and found.sure != "leaning"
        careless += any(t.gains.mean() > 2 * t.gains.mean(0).std() / np.sqrt(20) for t in methods.values())
    assert wrong <= 0.05 * 200 + 4 * np.sqrt(200 * 0.05 * 0.95)
    assert careless > 100


def test_the_error_of_a_mean_gain_has_two_parts() -> None:
    """Over rows, or over clients if that is larger (with ten or more); and what the splits add."""
    rng = np.random.default_rng(1)
    gains, errors = rng.normal(size=(2, 16)), rng.uniform(0.5, 1.5, 16)
    clients = gains.mean(0)
    rows, between = np.sqrt((errors**2).sum()) / 16, clients.std(ddof=1) / 4
    np.testing.assert_allclose(mean_error(gains, errors, 0.0), (clients.mean(), max(rows, between)))
    np.testing.assert_allclose(mean_error(gains, errors / 100, 0.0), (clients.mean(), between))
    np.testing.assert_allclose(mean_error(gains / 100, errors, 0.0)[1], rows)
    np.testing.assert_allclose(
        mean_error(gains[:, :9], errors[:9] / 100, 0.0)[1], 0.01 * np.linalg.norm(errors[:9]) / 9
    )
    ten = gains[:, :10]
    np.testing.assert_allclose(mean_error(ten, errors[:10] / 100, 0.0)[1], ten.mean(0).std(ddof=1) / np.sqrt(10))
    np.testing.assert_allclose(mean_error(gains, errors, 7.0)[1], np.hypot(max(rows, between), 7.0))


def test_the_error_over_splits_is_what_test_rows_do_not_explain() -> None:
    """The variance over S splits beyond that of their own test rows, v (1 − ρ), over S; widened by Student's t."""
    gains = [np.repeat([[0.0], [1.0], [2.0]], 5, axis=1), np.repeat([[1.0], [4.0], [1.0]], 5, axis=1)]
    sure = [Trained("together", g, np.zeros(5), 1.0, 0.1) for g in gains]
    wide = stats.t.ppf(1 - 0.05 / 2, 4) / 2
    assert split_error(sure, 0.25, needed=2.0) == pytest.approx(np.sqrt((1 + 3) / 2 / 3) * wide)
    rough = [Trained("together", g, np.full(5, 0.5), 1.0, 0.1) for g in gains]
    one = 0.5**2 / 5 / ((1 + 2 * 0.25) / 3)  # the variance of one split's mean over its test rows
    assert split_error(rough, 0.25, needed=2.0) == pytest.approx(np.sqrt((2 - 0.75 * one) / 3) * wide)
    assert split_error([Trained("together", g, np.full(5, 9.0), 1.0, 0.1) for g in gains], 0.25, needed=2.0) == 0.0
    assert split_error([Trained("together", g[:1], np.zeros(5), 1.0, 0.1) for g in gains], 0.25, needed=2.0) == 0.0


def of_rows(gain: float, world: int, *, clients: int, rows: int = 15, splits: int = 3) -> Judgement:
    """Identical clients whose rows gain `gain` ± 0.4 each: splits of fifteen test rows of sixty, drawn again."""
    rng = np.random.default_rng([world, 5])
    row = gain + 0.4 * rng.normal(size=(clients, 4 * rows))
    drawn = [[rng.choice(4 * rows, rows, replace=False) for _ in range(clients)] for _ in range(splits)]
    gains = np.array([[row[i, d].mean() for i, d in enumerate(each)] for each in drawn])
    errors = np.full(clients, 0.4 / np.sqrt(rows) * np.sqrt((1 + (splits - 1) * 0.25) / splits))
    methods = {
        "local": Trained("alone", np.zeros((splits, clients)), np.zeros(clients), 1.0, 0.05),
        "fedavg": Trained("together", gains, errors, 1.0, 0.05),
        "ditto": Trained("shrunk", gains - 0.02, errors, 1.0, 0.05),
    }
    return judge_trained(methods, overlap=0.25, room=0.2, constant=0.5, rows=splits * clients * rows)


def test_what_identical_clients_gain_is_found() -> None:
    """Eight clients gain 0.08 ± 0.4 a row: most federations are told to learn together, and hardly any to stay alone.
    Without a gain at most 5 % are told to learn together."""
    clear = [of_rows(0.08, world, clients=8) for world in range(100)]
    claims = sum(f.recommendation == "together" and f.sure in ("clear", "borderline") for f in clear)
    assert claims >= 60
    assert sum(f.recommendation == "alone" for f in clear) <= 10
    none = [of_rows(0.0, world, clients=8) for world in range(200)]
    wrong = sum(f.recommendation != "alone" and f.sure != "leaning" for f in none)
    assert wrong <= 0.05 * 200 + 4 * np.sqrt(200 * 0.05 * 0.95)


def test_half_a_proof_is_a_leaning() -> None:
    """A gain between half of what a proof needs and all of it leans to the method; a smaller one leans to alone."""
    none = {"local": Trained("alone", np.zeros((1, 8)), np.zeros(8), 1.0, 0.05)}
    answers = {}
    for share in (0.4, 0.6, 1.1):
        needed = stats.t.ppf(0.95, 100 - 8)
        gains = np.full((1, 8), share * needed * 0.1 / np.sqrt(8))
        made = {**none, "fedavg": Trained("together", gains, np.full(8, 0.1), 1.0, 0.05)}
        found = judge_trained(made, overlap=0.25, room=0.1, constant=0.5, rows=100)
        answers[share] = found.recommendation, found.sure
    assert answers == {0.4: ("alone", "leaning"), 0.6: ("together", "leaning"), 1.1: ("together", "clear")}


def test_alone_is_clear_with_wider_errors_only() -> None:
    """Rows of one unit in training and test flatter alone: its lead must be half as large again."""
    found = {}
    for errors in (1.2, 1.8):
        gains = np.full((1, 8), -errors * stats.t.ppf(0.95, 92) * 0.1 / np.sqrt(8))
        made = {
            "local": Trained("alone", np.zeros((1, 8)), np.zeros(8), 1.0, 0.05),
            "fedavg": Trained("together", gains, np.full(8, 0.1), 1.0, 0.05),
        }
        found[errors] = judge_trained(made, overlap=0.25, room=0.1, constant=0.5, rows=100).sure
    assert found == {1.2: "leaning", 1.8: "clear"}


def test_more_methods_need_more_evidence() -> None:
    one = judged(a=trained("together", 0.2, 0))
    four = judged(**{name: trained("together", 0.2, i) for i, name in enumerate("abcd")})
    assert one.needed == pytest.approx(stats.t.ppf(0.95, 19))
    assert four.needed == pytest.approx(stats.t.ppf(1 - 0.05 / 4, 19))


def test_a_gain_over_a_bad_local_is_no_proof_without_beating_the_average() -> None:
    found = judged(fedavg=trained("together", 0.2, 2, beats=0.0))
    assert found.proven == ()
    assert found.recommendation == "alone"


def test_slightly_better_is_no_reason_for_a_less_simple_method() -> None:
    found = judged(ifca=trained("groups", 0.203, 0), fedavg=trained("together", 0.2, 2))
    assert max(found.mean, key=lambda name: found.mean[name]) == "ifca"
    assert found.method == "fedavg"
