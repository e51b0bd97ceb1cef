"""One definition of a clear gain: error rates with many clients and with few, and intervals that say what the marks say."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import coterie
from coterie.evidence.gains import (
    FEWEST,
    GAINS,
    HEAVY_TAILS,
    LOSES,
    NO_SCORE,
    ROUNDING,
    SHARED_ROWS,
    UNCLEAR,
    Gains,
    chance_of_loss,
    clear_losers,
    corrected_level,
    gains_of,
    intervals,
    marks,
    p_values,
    paired_gains,
    steadied,
    widening,
    worth_it,
)


def drawn(true_gain, rows, seed):
    rng = np.random.default_rng(seed)
    value = np.asarray(true_gain)[:, None] + rng.normal(size=(len(true_gain), rows))
    return gains_of(value.ravel(), np.repeat(np.arange(len(true_gain)), rows), len(true_gain))


def made(mean, error, rows):
    mean, error, rows = (np.atleast_1d(np.asarray(v, float)) for v in (mean, error, rows))
    return Gains(mean, error, rows - 1, rows)


def test_gains_are_means_with_steadied_errors():
    rng = np.random.default_rng(0)
    value, owner = rng.normal(size=30), rng.integers(3, size=30)
    found = gains_of(np.where(np.arange(30) == 4, np.nan, value), owner, 4)
    mine = [np.delete(value, 4)[np.delete(owner, 4) == i] for i in range(3)]
    common = sum(((m - m.mean()) ** 2).sum() for m in mine) / sum(len(m) - 1 for m in mine)
    for i, m in enumerate(mine):
        assert found.mean[i] == pytest.approx(m.mean())
        variance = (((m - m.mean()) ** 2).sum() + 4 * common) / (len(m) + 3)
        assert found.error[i] == pytest.approx(np.sqrt(variance / len(m)))
        assert found.freedom[i] == len(m) + 3
    assert np.isnan(found.mean[3])
    assert found.average == pytest.approx(np.mean([m.mean() for m in mine]))
    assert found.average_error == pytest.approx(np.sqrt((found.error[:3] ** 2).sum()) / 3)
    twice = gains_of(value, owner, 3, np.full(30, 2.0))
    np.testing.assert_allclose(twice.mean, gains_of(value, owner, 3).mean)
    assert steadied(np.array([1.0, np.inf]), np.array([5.0, 1.0]))[1] == pytest.approx(1.0)  # borrows the common one


@pytest.mark.parametrize(
    ("gain", "error", "rows", "expected"),
    [
        (0.3, 0.1, FEWEST, GAINS),
        (-0.3, 0.1, FEWEST, LOSES),
        (0.2, 0.1, FEWEST, UNCLEAR),
        (0.9, 0.01, FEWEST - 1, UNCLEAR),  # too few rows to be sure of anything
        (np.nan, 0.1, 100, NO_SCORE),
        (0.0, 0.0, 100, UNCLEAR),
        (1e-9, 0.0, 100, GAINS),
    ],
)
def test_the_mark_of_one_client(gain: float, error: float, rows: int, expected: str) -> None:
    assert marks(made(gain, error, rows)).tolist() == [expected]


def test_an_audit_asks_for_more_than_rounding() -> None:
    assert marks(made([-2e-7, -2e-5], [1e-9, 1e-9], [50, 50]), least=ROUNDING).tolist() == [UNCLEAR, LOSES]


@pytest.mark.parametrize("clients", [1, 3, 9, 10, 40])
def test_an_interval_leaves_zero_out_exactly_where_benjamini_and_hochberg_reject(clients: int) -> None:
    seen = 0
    for seed in range(30):
        gains = drawn(np.linspace(-0.9, 0.9, clients) if clients > 1 else np.array([0.5]), 15, seed)
        low, high = intervals(gains, 0.9)
        rejected = stats.false_discovery_control(p_values(gains)) <= 0.1
        assert (((low > 0) | (high < 0)) == rejected).all()
        assert (np.isin(marks(gains, 0.9), [GAINS, LOSES]) == rejected).all()
        seen += int(rejected.sum())
    assert seen > 0


@pytest.mark.parametrize("clients", [5, 60])
def test_without_any_gain_somebody_is_called_clear_in_at_most_one_run_in_twenty(clients: int) -> None:
    runs = 400
    wrong = sum(bool(np.isin(marks(drawn(np.zeros(clients), 20, s)), [GAINS, LOSES]).any()) for s in range(runs))
    assert wrong / runs <= 0.05 + 4 * np.sqrt(0.05 * 0.95 / runs)


def test_intervals_of_clear_clients_cover_their_gains() -> None:
    """The false coverage rate of Benjamini and Yekutieli: of the intervals of clear clients 5 % may miss, or fewer."""
    missed = clear = 0
    for seed in range(200):
        truth = np.random.default_rng(seed).normal(0, 0.3, 30)
        gains = drawn(truth, 30, seed + 1000)
        low, high = intervals(gains)
        chosen = np.isin(marks(gains), [GAINS, LOSES])
        clear += int(chosen.sum())
        missed += int((chosen & ((truth < low) | (truth > high))).sum())
    assert clear > 500
    assert missed / clear <= 0.05 + 4 * np.sqrt(0.05 * 0.95 / clear)


def test_of_a_hundred_who_gain_a_little_nobody_is_told_to_leave():
    """Uncorrected 90 % intervals would send one away in three runs of four."""
    sent = [clear_losers(drawn(np.full(100, 0.1), 30, s)).sum() for s in range(100)]
    assert np.mean(np.array(sent) > 0) <= 0.02
    plain = [(drawn(np.full(100, 0.1), 30, s).mean < -1.7 / np.sqrt(30)).any() for s in range(100)]
    assert np.mean(plain) > 0.5


def test_true_losers_are_found_among_many():
    truth = np.r_[np.full(90, 0.3), np.full(10, -0.5)]
    found = np.array([clear_losers(drawn(truth, 30, s)) for s in range(50)])
    assert found[:, :90].mean() < 0.002
    assert found[:, 90:].mean() > 0.4


def test_few_rows_are_not_judged_and_nothing_known_is_nan():
    gains = made([-1.0, -1.0, np.nan], [1e-3] * 3, [9, 10, 0])
    assert clear_losers(gains).tolist() == [False, True, False]
    assert clear_losers(gains, worth=2.0).tolist() == [False, False, False]
    assert np.isnan(intervals(gains)[0][2])
    assert np.isnan(chance_of_loss(gains)[2])
    assert corrected_level(gains, 0.9) == pytest.approx(0.1)  # one client is looked at


def test_the_chance_of_a_loss_is_one_sided():
    gains = made([0.2, -0.2, 0.0], [0.1] * 3, [50] * 3)
    tail = stats.t.sf(2, 49)
    np.testing.assert_allclose(chance_of_loss(gains), [tail, 1 - tail, 0.5])


def test_factors():
    assert widening("mse", False) == 1.0
    assert widening("mse", True) == SHARED_ROWS
    assert widening("log_loss", True) == pytest.approx(2.1)
    assert worth_it(True, [2.0, np.nan]) == pytest.approx(0.02)
    assert worth_it(False, [0.9]) == 0.005


def test_no_other_module_has_factors_marks_or_a_correction_of_its_own():
    """A second table of factors, a second list of marks or another correction for many would be a second definition."""
    source = Path(coterie.__file__).parent
    numbers = {SHARED_ROWS, SHARED_ROWS * 1.4, *HEAVY_TAILS.values()}
    for file in source.rglob("*.py"):
        if file == source / "evidence" / "gains.py":
            continue
        text = file.read_text("utf-8")
        for word in (
            "false_discovery_control",
            "benjamini",
            "holm_",
            "WIDEN_ROWS",
            "WIDEN = {",
            'NO_SCORE = "',
            'GAINS = "',
        ):
            assert word.lower() not in text.lower(), (file.name, word)
        if file.is_relative_to(source / "decision") or file.is_relative_to(source / "comparison"):
            for node in ast.walk(ast.parse(text)):
                metric = isinstance(node, ast.Dict) and any(
                    isinstance(k, ast.Constant) and k.value == "log_loss" for k in node.keys
                )
                factors = metric and any(isinstance(v, ast.Constant) and v.value in numbers for v in node.values)
                assert not factors, (file.name, node.lineno)


def test_the_error_of_a_mean_gain_over_runs() -> None:
    """Two runs on one split are as sure as one; on different rows they are surer. What runs vary beyond their rows is
    training, and adds its variance over their number."""
    rng = np.random.default_rng(0)
    rows, sizes = [rng.normal(size=40)], np.array([[40], [40]])
    v, still = rows[0].var(ddof=1), np.full((2, 1), rows[0].mean())

    def error(rows: list[np.ndarray], each: np.ndarray, sizes: np.ndarray) -> float:
        return float(paired_gains(rows, each, sizes, "mse").error[0])

    assert error(rows, still[:1], sizes[:1]) == pytest.approx(np.sqrt(v / 40))
    assert error(rows, still, sizes) == pytest.approx(np.sqrt(v / 40))
    moving = still + np.array([[-1.0], [1.0]])
    assert error(rows, moving, sizes) == pytest.approx(np.sqrt(v / 40 + 2 / 2))
    assert error(rows, still, np.array([[20], [20]])) == pytest.approx(SHARED_ROWS * np.sqrt(v / 40))
    assert error(rows, moving, np.array([[20], [20]])) == pytest.approx(
        SHARED_ROWS * np.sqrt(v / 40 + (2 - v / 20) / 2)
    )
