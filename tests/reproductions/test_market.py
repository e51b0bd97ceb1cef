"""Figures 3.4–3.8: the numbers that the dissertation names."""

import pytest

from reproductions import market


def test_the_bargains_of_figures_3_7_and_3_8():
    made = market.bargains("quick")
    assert made["gap"] > 0
    assert 0.41 < made["largest"] <= 0.43 < made["beyond"]


def test_the_slopes_of_figure_3_4_and_the_cap_of_3_5():
    made = market.revenues("quick")
    assert made["rise_in_high"]
    assert made["high_falls_in_low"]
    assert made["best_low_quality"] == pytest.approx(4 / 7, abs=1e-3)
    assert market.cap("quick")["least"] > -1e-12
