"""The revenue ledger: what each round of a collaboration did to both firms, and whether anybody lost."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from coterie.incentives.market.bargaining import nash_product
from coterie.incentives.market.duopoly import Duopoly


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
            }
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


@dataclass(frozen=True)
class TestedLedger(RevenueLedger):
    """A ledger on rows that the firms did not climb on, with standard errors; a revenue may fall here.

    `frame` has further columns: `q_*_se`, `revenue_*_se`, and `change_*` with `change_*_se`, the revenue minus that of the
    models when the firms met, on the same rows (paired; by the delta method). `rounds` are the rounds recorded, `starts`
    the qualities of the first models, `errors` the covariance of (low, high) when they met and (low, high) now.
    """

    __test__ = False  # no class of tests, whatever its name

    rounds: tuple[int, ...] = ()
    starts: tuple[tuple[float, ...], ...] = ()
    errors: tuple[npt.NDArray[np.float64], ...] = ()

    @property
    def frame(self) -> pd.DataFrame:
        frame = super().frame
        frame["t"] = list(self.rounds)
        extra: list[dict[str, float]] = []
        for (low, high, _), start, error in zip(self.rows, self.starts, self.errors, strict=True):
            now, before = _slopes(low, high), _slopes(*start)
            found = {"q_low_se": np.sqrt(error[2, 2]), "q_high_se": np.sqrt(error[3, 3])}
            at_start = Duopoly(*start).revenues
            for i, firm in enumerate(("low", "high")):
                change = np.concatenate([-before[i], now[i]])
                revenue = getattr(Duopoly(low, high).revenues, firm)
                found[f"revenue_{firm}_se"] = _sd(now[i] @ error[2:, 2:] @ now[i])
                found[f"change_{firm}"] = revenue - getattr(at_start, firm)
                found[f"change_{firm}_se"] = _sd(change @ error @ change)
            extra.append({name: float(value) for name, value in found.items()})
        names = [f"q_{f}_se" for f in ("low", "high")]
        names += [f"{what}_{f}{se}" for f in ("low", "high") for what, se in _EXTRA]
        return pd.concat([frame, pd.DataFrame(extra, columns=names, index=frame.index)], axis=1)

    def losers(self, z: float = 1.645) -> tuple[str, ...]:
        """The firms ("low", "high") that clearly earn less at the end than when they met: by `z` standard errors."""
        if not self.rows:
            return ()
        last = self.frame.iloc[-1]
        return tuple(f for f in ("low", "high") if last[f"change_{f}"] < -z * last[f"change_{f}_se"])


_EXTRA = (("revenue", "_se"), ("change", ""), ("change", "_se"))


def _sd(variance: float) -> float:
    return float(np.sqrt(max(variance, 0.0)))


def _slopes(q_low: float, q_high: float) -> npt.NDArray[np.float64]:
    """Derivatives of both revenues (firms, qualities), by central differences."""
    step = 1e-6
    sides = []
    for a, b in ((step, 0.0), (0.0, step)):
        up, down = Duopoly(q_low + a, q_high + b).revenues, Duopoly(q_low - a, q_high - b).revenues
        sides.append([(up.low - down.low) / (2 * step), (up.high - down.high) / (2 * step)])
    return np.array(sides).T
