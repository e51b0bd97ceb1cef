"""Answers that are none, and a worker whose sites give them: `python faults.py ADDRESS…` is `coterie flower worker`, but a
site whose folder holds `faults.json` ({round: kind}) spoils its answers in those rounds."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from coterie.base.tree import flatten, unflatten
from coterie.flower import Site, wire


def _with(answer: bytes, **changes: Any) -> bytes:
    head, tree = wire.unpack(answer)
    for path, value in changes.items():
        if path in head:
            head[path] = value
        else:
            flat = flatten(tree)
            flat[next(k for k in flat if k.startswith(path))] = value
            tree = unflatten(flat)
    return wire.pack(head, tree)


def _sum(answer: bytes) -> Any:
    """The first of the sums."""
    return next(iter(flatten(wire.unpack(answer)[1]["sums"]).values()))


BAD: dict[str, Any] = {
    "malformed": lambda a: b"nonsense",
    "cut off": lambda a: a[:-7],
    "no bytes": lambda a: None,
    "oversized": lambda a: a + bytes(3 << 20),
    "nan": lambda a: _with(a, sums=torch.full_like(_sum(a), float("nan"))),
    "infinite": lambda a: _with(a, weights=torch.full((1,), float("inf"), dtype=torch.float64)),
    "wrong shape": lambda a: _with(a, sums=torch.zeros(1, 2, dtype=torch.float64)),
    "wrong type": lambda a: _with(a, weights=torch.zeros(1, dtype=torch.float32)),
    "negative weight": lambda a: _with(a, weights=torch.full((1,), -3.0, dtype=torch.float64)),
    "others' clients": lambda a: _with(a, clients=[0, 1]),
    "more clients than it has": lambda a: _with(a, counts=torch.tensor([50])),
    "a number that is none": lambda a: _with(a, clients=["1", "4"]),
    "a number too large": lambda a: _with(a, clients=[2**63]),
    "names within names": lambda a: wire.pack(wire.unpack(a)[0], {"a": torch.ones(1), "a/b/c": torch.ones(1)}),
    "loss of text": lambda a: _with(a, info={"loss": ["x", 1]}),
    "loss without count": lambda a: _with(a, info={"loss": 5}),
    "loss of nothing": lambda a: _with(a, info={"loss": []}),
    "loss of infinitely many": lambda a: _with(a, info={"loss": [1.0, float("inf")]}),
    "loss of nan": lambda a: _with(a, info={"loss": [float("nan"), 1]}),
    "loss of too many": lambda a: _with(a, info={"loss": [0.0, 10**18]}),
    "too large": lambda a: _with(a, sums=torch.full_like(_sum(a), 1e200)),
    "no dictionary": lambda a: _with(a, info=[1]),
}


class FaultySite(Site):
    def answer(self, block: bytes) -> bytes:
        answer = super().answer(block)
        head, file = wire.unpack(block)[0], self.folder / "faults.json"
        kind = json.loads(file.read_text()).get(str(head["round"])) if file.exists() and head["do"] == "ask" else None
        return answer if kind is None else BAD[kind](answer)


if __name__ == "__main__":
    from coterie.cli import main
    from coterie.flower import apps

    apps.Site = FaultySite  # type: ignore[misc]
    main(["flower", "worker", *sys.argv[1:]])
