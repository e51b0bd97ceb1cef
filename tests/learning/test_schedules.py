"""Learning-rate schedules against torch's, and their settings."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import coterie as ct
from coterie.learning.schedules import Cosine, StepDecay, Warmup


def rates(make: Any) -> list[float]:
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 1.0)
    scheduler, found = make(optimiser), []
    for _ in range(10):
        found.append(scheduler.get_last_lr()[0])
        optimiser.step()
        scheduler.step()
    return found


@pytest.mark.parametrize("over", ["rounds", "steps"])
def test_they_are_torchs(over: Any) -> None:
    def at(schedule: Any) -> list[float]:
        return [schedule(t, 99) if over == "rounds" else schedule(99, t) for t in range(10)]

    annealed = rates(lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 10, 0.1))
    assert at(Cosine(10, 0.1, over)) == pytest.approx(annealed)
    assert at(StepDecay(3, 0.5, over)) == pytest.approx(rates(lambda o: torch.optim.lr_scheduler.StepLR(o, 3, 0.5)))
    ramp = rates(lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda t: min((t + 1) / 4, 1)))
    assert at(Warmup(4, over)) == pytest.approx(ramp)
    assert at(Warmup(4, over, then=Cosine(10, 0.1, over))) == pytest.approx(
        [a * b for a, b in zip(ramp, annealed, strict=True)]
    )
    assert Cosine(10, 0.1, over)(50, 50) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Cosine(0), "Cosine needs length"),
        (lambda: Cosine(3, floor=2.0), "floor to be a number from 0 to 1"),
        (lambda: StepDecay(3, factor=0.0), "factor to be a finite number above 0"),
        (lambda: Warmup(3, over="epochs"), "over to be one of 'rounds', 'steps'"),  # type: ignore[arg-type]
        (lambda: ct.LocalSGD(nesterov=True), "momentum above 0"),
        (lambda: ct.LocalSGD(clip=0.0), "clip to be a finite number above 0, or None"),
        (lambda: ct.LocalAdam(beta1=1.0), "beta1 to be a number of at least 0 and below 1"),
        (lambda: ct.LocalAdam(eps=0.0), "eps to be a finite number above 0"),
        (lambda: ct.LocalAdam(lr=-1.0), "LocalAdam needs lr to be a finite number of at least 0"),
    ],
)
def test_bad_settings_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ct.errors.ConfigError, match=message):
        make()
