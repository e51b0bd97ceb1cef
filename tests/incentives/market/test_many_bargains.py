"""Bargains among any number of firms: against the closed form, brute force on grids, and the way there."""

from itertools import product

import numpy as np
import pytest

from coterie.errors import ConfigError
from coterie.incentives import Market, bargain_lying_gain, defection_free_path, nash_bargain, nash_bargaining
from coterie.incentives.market.many_bargains import uniform_revenues


@pytest.mark.parametrize("qualities", [(0.3, 0.9), (0.1, 0.2, 0.7), (0.2, 0.5, 0.55, 0.9), (0.1, 0.3, 0.4, 0.8, 1.0)])
def test_the_linear_system_is_the_market(qualities):
    np.testing.assert_allclose(uniform_revenues(np.array(qualities)), Market(qualities).revenues, rtol=1e-7)


@pytest.mark.parametrize(("low", "high"), [(0.1, 0.5), (0.3, 0.35), (0.02, 0.9)])
def test_two_firms_have_the_closed_form(low, high):
    exact, found = nash_bargaining(low, high), nash_bargain([low, high])
    assert found.qualities[0] == pytest.approx(exact.q_low, abs=1e-6)
    np.testing.assert_allclose(found.revenues, exact.revenues, rtol=1e-6)


@pytest.mark.parametrize(
    ("qualities", "points"), [((0.1, 0.3, 0.5), 60), ((0.1, 0.2, 0.3, 0.6), 24), ((0.1, 0.2, 0.3, 0.4, 0.5), 14)]
)
def test_no_qualities_on_a_grid_have_a_larger_product(qualities, points):
    """All rising qualities of a grid, the best firm at q_max or below; and all single steps away from the bargain."""
    found = nash_bargain(qualities)
    grid = np.linspace(0, 1, points + 1)[1:]
    tried = [row for row in product(grid, repeat=len(qualities) - 1) if (np.diff(row) > 0).all() and row[-1] < 1]
    tops = [(*row, top) for row in tried for top in (0.9, 1.0) if row[-1] < top]
    near = [found.qualities + s * np.eye(len(qualities))[i] for i in range(len(qualities)) for s in (-1e-4, 1e-4)]
    best = 0.0
    for row in [*tops, *(q for q in near if q[-1] <= 1)]:
        gains = uniform_revenues(np.array(row)) - found.disagreement
        best = max(best, float(np.prod(gains)) if gains.min() > 0 else 0.0)
    assert 0.5 * found.product < best <= found.product * (1 + 1e-9)
    assert found.qualities[-1] == pytest.approx(1.0)


@pytest.mark.parametrize("qualities", [(0.1, 0.5), (0.1, 0.3, 0.5), (0.2, 0.25, 0.7), (0.1, 0.2, 0.3, 0.4, 0.5)])
def test_every_firm_earns_more_in_every_round(qualities):
    path = defection_free_path(qualities, rounds=12)
    revenues = np.array([Market(row).revenues for row in path])
    assert (np.diff(revenues, axis=0) > 0).all()
    np.testing.assert_allclose(path[0], qualities)
    np.testing.assert_allclose(path[-1], nash_bargain(qualities).qualities, atol=1e-9)
    assert path.max() <= 1 + 1e-9


def test_a_firm_that_is_taken_for_better_gets_more():
    assert bargain_lying_gain([0.1, 0.3, 0.5], 0, 0.15) > 0 > bargain_lying_gain([0.1, 0.3, 0.5], 0, 0.08)
    assert bargain_lying_gain([0.1, 0.3, 0.5], 0, 0.1) == 0


def test_nothing_to_gain_at_the_top_and_refusals():
    at_the_top = nash_bargain([0.3, 1.0])
    assert at_the_top.product == 0
    for bad in ([0.3], [0.5, 0.3], [0.3, 0.3], [0.3, 1.2], [0.0, 0.4]):
        with pytest.raises(ConfigError, match="Sort the firms"):
            nash_bargain(bad)
