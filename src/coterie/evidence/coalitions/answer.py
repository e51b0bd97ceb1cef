"""The answer of a search for coalitions: the groups, what each client gets and brings, and how sure that is."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from coterie.base.text import listed
from coterie.evidence.gains import Floats

SURE, LIKELY, OPEN = "sure", "likely", "open"
STAYS, MOVES, ALONE = "stays", "moves", "alone"


def how_sure(share: float) -> str:
    """A word for the share of halves that agree. docs/incentives.md says how often such answers were right."""
    return SURE if share >= 0.8 else LIKELY if share >= 0.5 else OPEN


@dataclass(frozen=True, eq=False)
class Coalitions:
    """The groups of clients that learn together.

    ``table`` has a row per client: ``group`` (0 is the largest; −1 alone), ``gets`` ± ``gets_se``
    (gain over alone), ``brings`` ± ``brings_se``, ``verdict`` (stays with the largest group, moves to another, or alone),
    ``sure`` (sure, likely, open), ``rows``.

    ``support`` is the share of random halves of the test rows that give the same groups. ``gets`` and ``mean_gain`` are
    measured on the other halves, which were not used to choose the groups. ``tried`` is the number of groups that were
    trained in the search; it is at most ``planned``."""

    table: pd.DataFrame
    groups: tuple[tuple[Hashable, ...], ...]
    mean_gain: float
    mean_se: float
    support: float
    tried: int
    planned: int
    worth: float
    seceding: tuple[tuple[Hashable, ...], ...]
    contribution: str
    losses: dict[frozenset[int], Floats] = field(repr=False)

    @property
    def lone(self) -> list[Hashable]:
        return list(self.table.index[self.table["group"] < 0])

    @property
    def together(self) -> bool:
        """Whether all clients form one group."""
        return len(self.groups) == 1 and not self.lone

    @property
    def sure(self) -> str:
        return how_sure(self.support)

    @property
    def stable(self) -> bool:
        """Whether there is a group with a positive mean gain on rows not used to choose it, and no group that was tried
        would secede."""
        return bool(self.groups) and self.mean_gain > 0 and not self.seceding

    @property
    def clear(self) -> bool:
        """Whether the mean gain of the clients in groups exceeds 1.645 standard errors."""
        return bool(self.groups) and self.mean_gain > 1.645 * self.mean_se

    def rows_needed(self) -> float:
        """Rows per client that would settle an open question, if the mean gain stayed: n (1.645 se/|gain|)²."""
        if self.mean_gain == 0 or not np.isfinite(self.mean_se):
            return float("inf")
        return float(self.table["rows"].mean() * (1.645 * self.mean_se / abs(self.mean_gain)) ** 2)

    def words(self) -> str:
        """A sentence on what to do, then one on how sure it is."""
        return f"{self._headline()} {self._evidence()}"

    def _headline(self) -> str:
        if not self.groups:
            if self.sure == OPEN or (self.table["sure"] == OPEN).all():
                return self._too_few("train alone")
            return "Nobody gains enough: train alone."
        guess = self._what()
        if self.sure == OPEN or not self.clear or (self.table["sure"] == OPEN).all():
            return self._too_few(guess[0].lower() + guess[1:].rstrip("."))
        return guess

    def _what(self) -> str:
        if self.together:
            return (
                "Everyone gains; stay together."
                if (self.table["gets"].dropna() > 0).all()
                else ("The group gains and nobody clearly loses; stay together.")
            )
        main, alone = self.groups[0], self.lone
        if len(self.groups) == 1 and len(main) > len(alone):
            return (
                f"All but {listed(alone)} stay; {listed(alone)} {'is' if len(alone) == 1 else 'are'} better off alone."
            )
        each = "; ".join(f"{number + 1}: {listed(group, 12)}" for number, group in enumerate(self.groups))
        rest = f"; alone: {listed(alone, 12)}" if alone else ""
        count = f"{len(self.groups)} groups" if len(self.groups) > 1 else "one group"
        return f"They belong in {count} ({each}{rest})."

    def _too_few(self, guess: str) -> str:
        rows = self.rows_needed()
        today = float(self.table["rows"].mean())
        more = f"; about {rows:.0f} rows per client would settle it" if today < rows < 1000 * today else ""
        return f"Too few rows to tell; best guess: {guess}{more}."

    def _evidence(self) -> str:
        parts = [f"{self.support:.0%} of random halves of the test rows give the same groups ({self.sure})"]
        if self.groups:
            parts.append(f"mean gain of the clients in groups {self.mean_gain:+.4g} ± {self.mean_se:.2g}")
        told = "; ".join(parts) + f". {self.tried} groups were trained; "
        if self.seceding:
            return told + f"{' and '.join(listed(g) for g in self.seceding[:2])} would rather form their own."
        return told + "none of them would secede."

    def plot(self, ax: Any = None) -> Any:
        """A plot of what each client brings (across) and gets (up), coloured by group, with error bars; open answers are
        hollow."""
        import matplotlib.pyplot as plt

        ax = plt.subplots(figsize=(5, 4))[1] if ax is None else ax
        t = self.table
        across = t["brings"].fillna(0.0)
        ax.errorbar(across, t["gets"], t["gets_se"], t["brings_se"].fillna(0.0), fmt="none", ecolor="#bbbbbb", zorder=1)
        for group in sorted(t["group"].unique()):
            mine = t["group"] == group
            colour = "#8a8a8a" if group < 0 else f"C{int(group) % 10}"
            face = np.where(t.loc[mine, "sure"] == OPEN, "white", colour).tolist()
            label = "alone" if group < 0 else f"group {int(group) + 1}"
            ax.scatter(across[mine], t.loc[mine, "gets"], c=face, edgecolors=colour, label=label, zorder=2)
        ax.axhline(0, color="black", linewidth=0.8)
        ax.set(xlabel="brings to the others", ylabel="gets over training alone")
        ax.legend(frameon=False)
        ax.spines[["top", "right"]].set_visible(False)
        return ax
