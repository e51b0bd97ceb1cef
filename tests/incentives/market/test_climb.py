"""The climb of Algorithm 5 decides alone: what it asks for, what it accepts, and when it ends."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from coterie.incentives.market.climb import Climb, Measure, Offer, Step, climbing


def drive(
    quality: Callable[[float], float | None],
    target: float,
    *,
    start: float = 0.0,
    first: float | None = None,
    unit: float = 1.0,
    **options: Any,
) -> tuple[Climb[float], list[float]]:
    """States are numbers, and a step of size a adds a. Also all states that were measured."""
    rule = {"max_steps": 1, "tolerance": 0.0, "max_halvings": 10} | options
    begin = quality(start)
    assert begin is not None
    climber, measured = climbing(start, begin, target, **rule), []
    answer: Any = None
    while True:
        try:
            need = climber.send(answer)
        except StopIteration as end:
            return end.value, measured
        if isinstance(need, Step):
            assert need.gap == target - (quality(need.state) or 0.0)
            answer = Offer(lambda size, x=need.state: x + size, first, unit)
        else:
            assert isinstance(need, Measure)
            measured.append(need.state)
            answer = quality(need.state)


def test_a_step_that_fits_is_taken_whole() -> None:
    assert drive(lambda x: x, 2.0, unit=0.1) == ((1.0, 1.0, 0.1), [1.0])


def test_a_step_past_the_target_is_halved_or_cut_along_a_straight_line() -> None:
    assert drive(lambda x: x, 0.1)[1] == [1.0, 0.5, 0.25, 0.125, 0.0625]
    assert drive(lambda x: x, 0.1, stochastic=True) == ((0.1, 0.1, 0.1), [1.0, 0.1])
    assert drive(lambda x: x, 0.8, stochastic=True)[1] == [1.0, 0.5]  # never cut by less than half


def test_a_step_that_lowers_the_quality_is_halved_and_given_up_at_last() -> None:
    assert drive(lambda x: x * (0.5 - x), math.inf)[1] == [1.0, 0.5]
    worse, measured = drive(lambda x: -x, 1.0, max_steps=5, max_halvings=3)
    assert worse == (0.0, 0.0, 0.0)
    assert measured == [1.0, 0.5, 0.25, 0.125]
    _, again = drive(lambda x: -x, 1.0, max_steps=5, max_halvings=3, stochastic=True)
    assert len(again) == 5 * 4  # the next step may see other rows


def test_only_a_soft_target_may_be_passed_and_by_the_smallest_gain_seen() -> None:
    def coarse(x: float) -> float:
        return 0.3 * math.floor(4 * x)  # no gain is seen below a quarter step

    assert drive(coarse, 0.1, stochastic=True)[0].quality == 0.0
    soft, _ = drive(coarse, 0.1, stochastic=True, soft=True)
    assert soft.quality > 0.1
    assert drive(lambda x: x, 0.1, stochastic=True, soft=True)[0].quality == 0.1


def test_the_next_step_starts_at_twice_the_size_that_helped_unless_told() -> None:
    measured = drive(lambda x: -abs(x - 0.2), 1.0, max_steps=2, max_halvings=2)[1]
    assert measured == [1.0, 0.5, 0.25, 0.25 + 0.5, 0.25 + 0.25, 0.25 + 0.125]
    assert drive(lambda x: x, 1.0, max_steps=3, first=0.125)[1] == [0.125, 0.25, 0.375]


@pytest.mark.parametrize("lost", [0.5, 1.0])
def test_a_missing_measurement_ends_the_climb_where_it_is(lost: float) -> None:
    end, measured = drive(lambda x: None if x >= lost else x, 9.0, max_steps=4, first=0.25, stochastic=True)
    assert end == (lost - 0.25, lost - 0.25, lost - 0.25)
    assert measured[-1] == lost


def test_a_missing_step_ends_the_climb_and_nothing_is_asked_at_the_target() -> None:
    climber = climbing("here", 0.5, 0.9, max_steps=3, tolerance=0.0, max_halvings=1)
    assert climber.send(None) == Step("here", 0.4, 0)
    with pytest.raises(StopIteration) as end:
        climber.send(None)
    assert end.value.value == ("here", 0.5, 0.0)
    with pytest.raises(StopIteration):
        climbing("here", 0.5, 0.5001, max_steps=3, tolerance=0.001, max_halvings=1).send(None)
