"""Search for a pair of neighbouring federations that breaks a private run's promise: `coterie privacy audit ALGORITHM`.

The accountant bounds how far one client's own message can move a sum. It does not cover the messages of the others, so
they must not change at all. One client is changed, grown, shrunk or removed, or gets a class that nobody else has; training
is also tried with steps so long that one differing bit becomes a large difference. A pair refutes the promise if another
client's message differs in a single bit, or if two valid receipts tell the federations apart by their shapes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from coterie.base.settings import with_setting
from coterie.base.tree import Tree, flatten
from coterie.data.federation import Federation
from coterie.errors import ConfigError, CoterieWarning
from coterie.exchange.channels.base import Channel, Where
from coterie.exchange.messages import Ask, Ints
from coterie.learning.local_sgd import LocalSGD
from coterie.learning.models import mlp
from coterie.learning.task import Task
from coterie.privacy.settings import Privacy
from coterie.privacy.taint import public
from coterie.training.run import fit

CHANGES = {
    "other rows": 30, "grown": 36, "shrunk": 3, "a size of its own": 41, "removed": 0, "a class of its own": 30,
    "a label nobody declared": 30,
}  # fmt: skip
"""The changes of the first client, and its number of rows afterwards."""
_SIZES = (30, 30, 30, 17, 29, 5, 12, 30, 28, 30)
_CLASSES = 3
_FEATURES = 7
_WIDTH = 61  # odd: the numbers that a layer computes in another way, its last, are then in every place of a chunk
_UNSTABLE = LocalSGD(steps=150, lr=5.0, batch_size=None, clip=10.0)

Messages = dict[Any, list[tuple[str, torch.Tensor]]]


class Recorder(Channel):
    """Keeps every client's messages, in the order of the asks."""

    separate = True

    def __init__(self) -> None:
        self.sent: Messages = {}

    def up(self, send: Tree, clients: Ints, ask: Ask, where: Where) -> Tree:
        if where.round == 0 and where.ask == 0:  # later questions depend on noise
            for path, t in flatten(send).items():
                for client, row in zip(clients, t, strict=True):
                    name = where.federation.clients[client]
                    self.sent.setdefault(name, []).append((f"{ask.name}: {path}", row.clone()))
        return send


@dataclass(frozen=True)
class Pair:
    """One neighbouring pair: which client's message moved, how far, and whether the receipts are valid and alike."""

    change: str
    steps: str
    moved: float
    client: str
    valid: bool
    alike: bool

    @property
    def violated(self) -> bool:
        return self.moved > 0 or (self.valid and not self.alike)


@dataclass(frozen=True)
class Search:
    """All pairs that were tried."""

    algorithm: str
    pairs: tuple[Pair, ...]

    @property
    def violations(self) -> list[Pair]:
        return [pair for pair in self.pairs if pair.violated]

    def to_text(self) -> str:
        """One line per violation, or one sentence."""
        if not self.violations:
            return (
                f"{self.algorithm}: no violation in {len(self.pairs)} neighbouring pairs; every other client's message is "
                "bit-equal. A search can refute a promise, never prove it."
            )
        told = [
            f"  {pair.change}, {pair.steps}: "
            + (f"the message of {pair.client} moved by {pair.moved:.3g}" if pair.moved else "valid receipts differ")
            for pair in self.violations
        ]
        return "\n".join(
            [f"{self.algorithm}: the promise is violated in {len(told)} of {len(self.pairs)} pairs:", *told]
        )


def neighbours(change: str | None) -> Federation:
    """The federation of the search; the first client is changed."""
    rng, other = np.random.default_rng(0), np.random.default_rng(1)
    data: dict[str, Any] = {
        f"client {i}": (rng.normal(size=(n, _FEATURES)), rng.integers(0, _CLASSES, n)) for i, n in enumerate(_SIZES)
    }
    rows = len(data["client 0"][1]) if change is None else CHANGES[change]
    if change == "removed":
        del data["client 0"]
    elif change is not None:
        y = other.integers(0, _CLASSES + (change == "a class of its own"), rows)
        y[:1] = _CLASSES if "class" in change or "label" in change else 0
        data["client 0"] = (100 * other.normal(size=(rows, _FEATURES)), y)
    clusters = {name: i % 2 for i, name in enumerate(data)}
    classes = None if change == "a class of its own" else public(range(_CLASSES))  # read from rows, or declared
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CoterieWarning)  # a label that nobody declared is left out
        made = Federation.from_arrays(
            data, kind="classification", classes=classes, one_class="allow", test_fraction=0.0, clusters=clusters
        )
    return made if classes is None else made.declare_public("clusters")


def search(
    algorithm: Any,
    *,
    task: Callable[[Federation], Task] | None = None,
    changes: Sequence[str] = tuple(CHANGES),
    engine: Callable[[], Any] | None = None,
) -> Search:
    """Try every change with the algorithm's own steps and with unstable ones."""
    own = [("its own steps", algorithm)]
    wild = with_setting(algorithm, "local", _UNSTABLE)
    forms = own if wild is None else [*own, ("unstable steps", wild)]
    pairs = []
    for steps, form in forms:
        before, receipt = _messages(form, None, task, engine)
        for change in changes:
            try:
                after, other = _messages(form, change, task, engine)
            except ConfigError:
                if change != "a class of its own":
                    raise
                continue  # the algorithm needs declared classes and refuses others: nothing is sent
            client, moved = _furthest(before, after) if change != "a class of its own" else ("", 0.0)
            alike = _shape(receipt) == _shape(other)
            pairs.append(Pair(change, steps, moved, client, receipt.valid and other.valid, alike))
    return Search(type(algorithm).__name__, tuple(pairs))


def _messages(algorithm: Any, change: str | None, task: Any, engine: Any) -> tuple[Messages, Any]:
    fed, recorder = neighbours(change), Recorder()
    made = Task(mlp(_FEATURES, _WIDTH, fed.n_outputs)) if task is None else task(fed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CoterieWarning)
        result = fit(
            public(algorithm), fed, public(made), rounds=1, alone=False, progress=False, channels=[public(recorder)],
            privacy=Privacy(3.0, 1e-6, clip=1.0), engine="local" if engine is None else engine(),
        )  # fmt: skip
    return recorder.sent, result.receipt


def _furthest(before: Messages, after: Messages) -> tuple[str, float]:
    """The other client whose message moved most, and how far; the least float where only the sign of a zero did."""
    worst = ("", 0.0)
    for client in (c for c in before if c != "client 0"):
        for (_, a), (_, b) in zip(before[client], after[client], strict=True):
            same = torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) and torch.equal(a.isnan(), b.isnan())
            if not same:
                far = float((a.double() - b.double()).abs().nan_to_num(1.0).max()) or float(np.finfo(float).tiny)
                worst = max(worst, (str(client), far), key=lambda pair: pair[1])
    return worst


def _shape(receipt: Any) -> Any:
    return [line["dimension"] for line in receipt.releases]
