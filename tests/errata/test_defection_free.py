"""Algorithm 5's inner step for the low firm: at most 1/L, and of the size the present quality and gradient allow."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from coterie.incentives.market.defection_free import climb, descent

L = 4.0


def loss(x: np.ndarray) -> float:
    return 0.1 + L / 2 * float(x @ x)


LEARNER = descent(loss, lambda x: L * x, smoothness=L)


def test_the_proofs_largest_step_lowers_the_quality_and_ours_does_not() -> None:
    """Erratum EI-5: min{·, 1} in the proof of Proposition 3; 1 is beyond 2/L here, so the firm would get worse."""
    x, target = np.array([0.05]), 1.0
    before = LEARNER.quality(x)
    assert LEARNER.slope is not None
    size = min((target - before) / LEARNER.slope(x), 1.0)
    assert size == 1.0
    assert LEARNER.quality(LEARNER.step(x, size)) < before - 0.03
    ours = climb(LEARNER, x, target)
    assert ours.size == pytest.approx(1 / L)
    assert ours.quality == pytest.approx(0.9)  # one Newton step: the best there is
    assert climb(replace(LEARNER, max_step=1.0), x, target).quality >= before  # a step that is too long is taken back


def test_every_inner_step_uses_the_present_gap_and_gradient() -> None:
    """Erratum EI-5, second half: a gap measured before the loop would be used up twice."""
    x, target, steps = np.array([0.5]), 0.8, []

    def step(state: np.ndarray, size: float) -> np.ndarray:
        gap = target - LEARNER.quality(state)
        steps.append((size, min(gap / float(L**2 * state @ state), 1 / L)))
        return LEARNER.step(state, size)

    reached = climb(replace(LEARNER, step=step), x, target, max_steps=6)
    sizes, allowed = zip(*steps, strict=True)
    assert sizes == pytest.approx(allowed)
    assert sizes[0] > 2 * sizes[-1]  # the gap closes, and the steps with it
    assert reached.quality <= target
    assert reached.quality == pytest.approx(target, abs=1e-9)
