"""What the server of `DefectionFree` keeps of its two firms, and the ledger of revenues that follows from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from coterie.base.tree import Params
from coterie.errors import ConfigError
from coterie.exchange.server_knowledge import one_per
from coterie.incentives.market.revenue_ledger import RevenueLedger, TestedLedger

COLUMNS = ("q_low", "q_high", "step_high", "target")
TESTED = 1 + 4 + 16  # whether both firms answered; qualities of four models on test rows; their covariance
WORST = 1e-5  # a market needs positive qualities


@dataclass(frozen=True)
class DefectionFreeState:
    """`models` are in the federation's order. `ledger` has one row per round, with COLUMNS; row 0 is when they met. `high`
    is the position of the high firm, −1 before they met. `first` are the models when they met, `best` the estimate of the
    best quality (0: not estimated), `tested` what `ledger(result, rows="test")` tells of, one row like `ledger`'s."""

    models: Params = field(metadata=one_per("client"))
    ledger: Tensor = field(metadata=one_per("nobody"))
    high: Tensor
    first: Params = field(metadata=one_per("client"), default_factory=dict)
    best: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float64))
    tested: Tensor = field(
        metadata=one_per("nobody"), default_factory=lambda: torch.zeros(0, TESTED, dtype=torch.float64)
    )

    def __post_init__(self) -> None:
        if not self.first:
            object.__setattr__(self, "first", self.models)


def ledger(result: Any, rows: Literal["measured", "test"] = "measured") -> RevenueLedger:
    """The revenue ledger of a run of `DefectionFree` (its Result or its state): `.frame`, `.largest_drop`,
    `.defection_free()`. Row 0 is the market when the firms met.

    rows: "measured" are the rows that measured quality: on them no round lowers a revenue, because the firms climb on them.
    "test" are the test rows, with standard errors (`TestedLedger`): there no such promise holds."""
    state = result if isinstance(result, DefectionFreeState) else result.state
    if not isinstance(state, DefectionFreeState):
        raise ConfigError(f"Only a run of DefectionFree keeps a revenue ledger; got a {type(state).__name__}.")
    if rows not in ("measured", "test"):
        raise ConfigError(f"A ledger has rows='measured' or rows='test'; got {rows!r}.")
    if rows == "test":
        return _on_test_rows(state)
    book = RevenueLedger()
    for q_low, q_high, step_high, _ in state.ledger.tolist():
        book = book.record(q_low, q_high, step_high)
    return book


def _on_test_rows(state: DefectionFreeState) -> TestedLedger:
    """Rounds in which a firm did not answer are left out."""
    known = (state.tested[:, 0] > 0).nonzero().flatten().tolist()
    if not known and len(state.tested):
        raise ConfigError("A ledger on test rows needs at least two test rows of both firms; there are too few.")
    if len(state.tested) != len(state.ledger):
        raise ConfigError("This run recorded nothing on test rows. Run it again with this version.")
    qualities = state.tested[:, 1:5].clamp(min=WORST)
    return TestedLedger(
        tuple((*qualities[t, 2:].tolist(), float(state.ledger[t, 2])) for t in known),
        tuple(known),
        tuple(tuple(qualities[t, :2].tolist()) for t in known),
        tuple((state.tested[t, 5:] / 2).reshape(4, 4).numpy() for t in known),  # of a mean over two firms
    )
