"""Clients that keep an optimiser's memory can be compared with training alone; the memory may be empty."""

from __future__ import annotations

import numpy as np
import pytest

import coterie as ct


@pytest.mark.parametrize("settings", [{"keep": True}, {"keep": True, "momentum": 0.9}])
def test_kept_memory_survives_the_comparison_with_training_alone(settings: dict[str, float]) -> None:
    rng = np.random.default_rng(0)
    data = {name: (rng.normal(size=(12, 2)).astype(np.float32), np.tile([0, 1], 6)) for name in "abcd"}
    result = ct.fit(ct.FedAvg(ct.LocalSGD(steps=1, **settings)), ct.Federation.from_arrays(data), rounds=1)
    assert len(result.evaluate()) == 4
