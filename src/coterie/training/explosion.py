"""Whether a run's loss exploded: finite numbers, but no training."""

from __future__ import annotations

import math
from collections.abc import Sequence

_JUMP = 1e6  # times the loss of the start
_STAYS = 10.0  # times the loss of the start, at the end
_LEAST = 1e-6  # a loss below this counts as this


def explosion(losses: Sequence[float], start: float) -> dict[str, list[str]]:
    """{"warnings": [one sentence]} when the training loss rose a millionfold above the start model's and stayed high."""
    known = [(number, loss) for number, loss in enumerate(losses, 1) if not math.isnan(loss)]
    if not known or not math.isfinite(start):
        return {}
    base = max(abs(start), _LEAST)
    number, peak = max(known, key=lambda pair: pair[1])
    last = known[-1][1]
    if peak <= _JUMP * base or last <= _STAYS * base:
        return {}
    told = (
        f"The training exploded: the loss rose from {start:.3g} at the start to {peak:.3g} in round {number} and ended at "
        f"{last:.3g}. Lower the learning rate; the models are of no use."
    )
    return {"warnings": [told]}
