"""A worker whose sites draw exact noise as a function of the sum it is added to, so that two runs can be compared. A site
whose folder holds the file `wait` stops in its second round, until it is killed."""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

from coterie.flower import Site, wire
from coterie.privacy.mechanisms.noise import ExactNoise


def gaussian(self: Any, total: Any, sigma: float) -> Any:
    seed = np.frombuffer(np.ascontiguousarray(total).tobytes(), np.uint32)
    return total + np.rint(np.random.default_rng(seed).normal(scale=sigma, size=total.shape)).astype(np.int64)


class WaitingSite(Site):
    def answer(self, block: bytes) -> bytes:
        head = wire.unpack(block)[0]
        if (self.folder / "wait").exists() and head["do"] == "ask" and head["round"] == 1:
            (self.folder / "waiting").touch()
            time.sleep(600)
        return super().answer(block)


if __name__ == "__main__":
    from coterie.cli import main
    from coterie.flower import apps

    ExactNoise.gaussian = gaussian  # type: ignore[method-assign]
    apps.Site = WaitingSite  # type: ignore[misc]
    main(["flower", "worker", *sys.argv[1:]])
