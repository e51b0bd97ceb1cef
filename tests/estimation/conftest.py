"""A run is made once; then again on neighbouring data with the *same* noisy outputs, whatever the data say.

So every release of the second run sees the same earlier outputs as in the first, and its integers before noise may
differ by no more than its own Δ: that is what privacy under adaptive composition asks for."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from coterie.privacy import Ledger, SimulationNoise, account


@dataclass
class Replay:
    """Noise that records totals, and plays the outputs of an earlier run."""

    seed: int
    played: list = field(default_factory=list)
    totals: list = field(default_factory=list)
    outputs: list = field(default_factory=list)
    name: str = "simulation"
    source: str = "replay"

    def gaussian(self, total, sigma):
        self.totals.append((total.copy(), sigma))
        number = len(self.outputs)
        out = self.played[number] if self.played else SimulationNoise([self.seed, number]).gaussian(total, sigma)
        self.outputs.append(out)
        return out

    def bits(self, size):
        return SimulationNoise(self.seed).bits(size)


@pytest.fixture
def differences(monkeypatch):
    """differences(fit, data, neighbour): (event, ‖integers − integers′‖, Δ on the integers) of every release of `fit`."""

    def compare(fit, data, neighbour):
        with monkeypatch.context() as patch:
            return _compare(patch, fit, data, neighbour)

    return compare


def _compare(monkeypatch, fit, data, neighbour):
    events: list = []
    book = Ledger.book
    monkeypatch.setattr(Ledger, "book", lambda self, event: (events.append(event), book(self, event))[1])
    first = Replay(0)
    monkeypatch.setattr(account, "make_noise", lambda *_: first)
    fit(data)
    made = list(events)
    second = Replay(0, played=first.outputs)
    monkeypatch.setattr(account, "make_noise", lambda *_: second)
    fit(neighbour)
    assert len(made) == len(first.totals) == len(second.totals) > 0
    assert [e.sigma for e in made] == [e.sigma for e in events[len(made) :]]
    out = []
    for event, (a, sigma), (b, _) in zip(made, first.totals, second.totals, strict=True):
        out.append((event, float(np.linalg.norm((a - b).astype(np.float64))), sigma / event.noise_multiplier))
    return out
