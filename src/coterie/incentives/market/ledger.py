"""The revenue ledger: what each round of a collaboration did to both firms, and whether anybody lost."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pandas as pd

from coterie.incentives.market.bargaining import nash_product
from coterie.incentives.market.duopoly import Duopoly

COLUMNS = (
    "t",
    "q_low",
    "q_high",
    "rho",
    "price_low",
    "price_high",
    "revenue_low",
    "revenue_high",
    "nash_product",
    "step_high",
)


@dataclass(frozen=True)
class RevenueLedger:
    """One entry per round; `record` returns a longer ledger. Entry 0 is the state before any collaboration.

    The columns of `frame` are in firm order (see `coterie.incentives.market.duopoly`): `q_low` stays with the
    firm that was worse at the start, even after it overtakes. `nash_product` is measured against entry 0 and is NaN
    where a firm earns less than at the start; `step_high` is the high firm's step size α_h (0 where it did not move).
    """

    rows: tuple[tuple[float, float, float], ...] = field(default=())

    def record(self, q_low: float, q_high: float, step_high: float = 0.0) -> RevenueLedger:
        """The ledger with one more round: the qualities after it and the high firm's step size."""
        Duopoly(q_low, q_high)  # refuses qualities that are not positive numbers
        return replace(self, rows=(*self.rows, (float(q_low), float(q_high), float(step_high))))

    @property
    def frame(self) -> pd.DataFrame:
        """The ledger as a table with columns `t, q_low, q_high, rho, price_*, revenue_*, nash_product, step_high`."""
        markets = [Duopoly(low, high) for low, high, _ in self.rows]
        frame = pd.DataFrame(
            {
                "t": range(len(markets)),
                "q_low": [m.q_low for m in markets],
                "q_high": [m.q_high for m in markets],
                "rho": [m.q_low / m.q_high for m in markets],
                "price_low": [m.prices.low for m in markets],
                "price_high": [m.prices.high for m in markets],
                "revenue_low": [m.revenues.low for m in markets],
                "revenue_high": [m.revenues.high for m in markets],
                "nash_product": float("nan"),
                "step_high": [step for *_, step in self.rows],
            },
            columns=list(COLUMNS),
        )
        if markets:
            frame["nash_product"] = nash_product(frame["revenue_low"], frame["revenue_high"], markets[0].revenues)
        return frame

    @property
    def largest_drop(self) -> float:
        """The largest fall of either firm's revenue in one round; 0 if no round lowered either."""
        steps = self.frame[["revenue_low", "revenue_high"]].diff().iloc[1:]
        return max(0.0, float(-steps.to_numpy().min())) if len(steps) else 0.0

    def defection_free(self, tolerance: float = 1e-12) -> bool:
        """True if no round lowered either firm's revenue by more than `tolerance`."""
        return self.largest_drop <= tolerance
