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
    return judge_trained({"local": zero, **methods}, overlap=0.25, room=0.5, constant=0.5)


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
    found = judge_trained(methods, overlap=0.25, room=0.5, constant=0.5)
    assert (found.recommendation, found.sure) == ("alone", "nothing")


def test_losses_leave_everybody_alone() -> None:
    found = judged(fedavg=trained("together", -0.2, 2))
    assert (found.recommendation, found.sure) == ("alone", "clear")


def test_training_noise_that_clients_share_is_no_gain() -> None:
    """Four methods without any gain, whose splits differ by 0.05 for all clients at once: 200 worlds, at most 5 % wrong
    and four standard errors more. Errors over clients and rows alone would call most of these worlds clear."""
    wrong, careless = 0, 0
    for seed in range(200):
        ways = ("together", "shrunk", "shrunk", "groups")
        methods = {f"m{i}": trained(way, 0.0, 10 * seed + i, shared=0.05) for i, way in enumerate(ways)}
        wrong += judged(**methods).recommendation != "alone"
        careless += any(t.gains.mean() > 2 * t.gains.mean(0).std() / np.sqrt(20) for t in methods.values())
    assert wrong <= 0.05 * 200 + 4 * np.sqrt(200 * 0.05 * 0.95)
    assert careless > 100


def test_the_error_of_a_mean_gain_is_the_largest_of_three() -> None:
    """Over rows (widened by 1.5), over clients (with ten or more), and what the splits give."""
    rng = np.random.default_rng(1)
    gains, errors = rng.normal(size=(2, 16)), rng.uniform(0.5, 1.5, 16)
    clients = gains.mean(0)
    rows, between = 1.5 * np.sqrt((errors**2).sum()) / 16, clients.std(ddof=1) / 4
    np.testing.assert_allclose(mean_error(gains, errors, 0.0), (clients.mean(), max(rows, between)))
    np.testing.assert_allclose(mean_error(gains, errors / 100, 0.0), (clients.mean(), between))
    np.testing.assert_allclose(mean_error(gains / 100, errors, 0.0)[1], rows)
    np.testing.assert_allclose(
        mean_error(gains[:, :9], errors[:9] / 100, 0.0)[1], 0.015 * np.linalg.norm(errors[:9]) / 9
    )
    ten = gains[:, :10]
    np.testing.assert_allclose(mean_error(ten, errors[:10] / 100, 0.0)[1], ten.mean(0).std(ddof=1) / np.sqrt(10))
    assert mean_error(gains, errors, 7.0)[1] == 7.0


def test_the_error_over_splits_pays_for_the_rows_they_share() -> None:
    """Nadeau and Bengio: the variance of the mean of S splits is s² (1/S + ρ/(1 − ρ)), widened by Student's t."""
    gains = [np.repeat([[0.0], [1.0], [2.0]], 5, axis=1), np.repeat([[1.0], [4.0], [1.0]], 5, axis=1)]
    found = split_error(gains, 0.25, needed=2.0)
    spread = np.sqrt((1 + 3) / 2 * (1 / 3 + 1 / 3))
    assert found == pytest.approx(spread * stats.t.ppf(1 - 0.05 / 2, 4) / 2)


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
