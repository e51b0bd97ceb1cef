"""Figures of the pricing game and of the duopoly.

Figures 3.1 to 3.4 and 4.1 to 4.4 of
"Collaborative Learning: Aligning Goals and Outcomes" (Werner, 2024,
http://www2.eecs.berkeley.edu/Pubs/TechRpts/2024/EECS-2024-143.html).

`plot_*` functions draw into given Axes (or new ones) and return them; `*_figure` functions return a whole Figure
that is not registered with pyplot: save it with `figure.savefig`.
"""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING, Literal

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from coterie.errors import ConfigError
from coterie.incentives.market.bargaining import Bargain
from coterie.incentives.market.duopoly import Duopoly, equilibrium_revenues
from coterie.incentives.market.revenue_ledger import RevenueLedger

if TYPE_CHECKING:
    from coterie.incentives.pricing.simulation import Simulation

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe–Ito, colour-blind safe
LOW, HIGH = COLOURS[1], COLOURS[0]
LABELS = {
    "exp3": "Exp3 (ignores signals)",
    "cexp3": "CExp3 (uses signals)",
    "stackelberg": "commits to α*",
    "stackelberg-eps": "commits to α* − 0.05",
    "adaptive": "adaptive commitment",
    "pd": "always discriminates",
    "no-pd": "never discriminates",
}
ACTIONS = {
    "high_high": "high price for all",
    "low_low": "low price for all",
    "pd": "by signal (PD)",
    "reverse_pd": "reverse PD",
}
ACTION_COLOURS = (HIGH, COLOURS[5], LOW, COLOURS[3])


def _axes(ax: Axes | None) -> Axes:
    return plt.subplots(layout="constrained")[1] if ax is None else ax


def _label(seller: str) -> str:
    return LABELS.get(seller, seller)


def plot_utilities(simulation: Simulation, who: Literal["seller", "buyer"] = "seller", ax: Axes | None = None) -> Axes:
    """Average utility over time, mean and 10–90 % band over seeds (Figure 4.2)."""
    if who not in ("seller", "buyer"):
        raise ConfigError(f'who must be "seller" or "buyer"; got {who!r}. Choose one of them.')
    new, ax = ax is None, _axes(ax)
    game, rounds = simulation.game, np.sort(simulation.frame["round"].unique())
    for seller, values, colour in zip(
        simulation.sellers, simulation.array(f"{who}_utility"), cycle(COLOURS), strict=False
    ):
        ax.plot(rounds, values.mean(axis=0), color=colour, lw=1.8, label=_label(seller))
        ax.fill_between(rounds, *np.quantile(values, [0.1, 0.9], axis=0), color=colour, alpha=0.15, lw=0)
    utility = game.seller_utility if who == "seller" else game.buyer_utility
    for alpha, style in ((0.0, ":"), (game.alpha_star, "--"), (1.0, "-.")):
        ax.axhline(float(utility(alpha)), color="0.5", ls=style, lw=1, zorder=0)
    name = "seller, per buyer" if who == "seller" else "high-value buyer"
    ax.set(xlabel="round", ylabel=f"average utility ({name})", xlim=(0, rounds[-1]))
    ax.set_title("grey: equilibrium at α = 0 (dotted), α* (dashed), 1 (dash-dotted)", fontsize=9)
    ax.xaxis.set_major_locator(MaxNLocator(5))
    if new:
        ax.legend(frameon=False, fontsize=8)
    return ax


def plot_belief(simulation: Simulation, ax: Axes | None = None) -> Axes:
    """The buyers' belief α̂ (line) and the seller's true average ᾱ (dots) over time (Figure 4.3)."""
    new, ax = ax is None, _axes(ax)
    rounds = np.sort(simulation.frame["round"].unique())
    pairs = zip(simulation.array("belief"), simulation.array("alpha_bar"), strict=True)
    for seller, (belief, truth), colour in zip(simulation.sellers, pairs, cycle(COLOURS), strict=False):
        style = "--" if seller == "adaptive" else "-"  # its line covers that of the seller who commits to α*
        ax.plot(rounds, belief.mean(axis=0), color=colour, lw=1.8, ls=style, label=_label(seller))
        ax.fill_between(rounds, *np.quantile(belief, [0.1, 0.9], axis=0), color=colour, alpha=0.15, lw=0)
        every = slice(None, None, max(1, rounds.size // 15))
        ax.plot(rounds[every], truth.mean(axis=0)[every], "o", color=colour, ms=4, mfc="none")
    ax.axhline(simulation.game.alpha_star, color="0.5", ls="--", lw=1, zorder=0)
    ax.set(xlabel="round", ylabel="probability of price discrimination", xlim=(0, rounds[-1]), ylim=(-0.03, 1.05))
    ax.set_title("Belief α̂ (line) and truth ᾱ (circles); dashed: α*", fontsize=9)
    ax.xaxis.set_major_locator(MaxNLocator(5))
    if new:
        ax.legend(frameon=False, fontsize=8)
    return ax


def plot_actions(simulation: Simulation, ax: Axes | None = None) -> Axes:
    """Share of all rounds with each pair of prices, one bar per seller (the last round of Figure 4.4)."""
    ax = _axes(ax)
    shares = simulation.final.groupby("seller", sort=False)[list(ACTIONS)].mean().iloc[::-1]
    left = np.zeros(len(shares))
    for (action, label), colour in zip(ACTIONS.items(), ACTION_COLOURS, strict=True):
        ax.barh([_label(str(s)) for s in shares.index], shares[action], left=left, color=colour, label=label)
        left += shares[action].to_numpy()
    ax.set(xlabel="share of rounds", xlim=(0, 1))
    ax.legend(frameon=False, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0), fontsize=8, columnspacing=1)
    return ax


def plot_revenues(q_high: float = 1.0, bargain: Bargain | None = None, ax: Axes | None = None) -> Axes:
    """Equilibrium revenues against the low firm's quality (Figure 3.4), with the bargaining solution if given."""
    ax = _axes(ax)
    q_low = np.linspace(0.001, 0.999, 400) * q_high
    low, high = equilibrium_revenues(q_low, q_high)
    ax.plot(q_low, high, color=HIGH, lw=2, label="high firm")
    ax.plot(q_low, low, color=LOW, lw=2, label="low firm")
    ax.axvline(4 / 7 * q_high, color="0.6", ls=":", label="best for the low firm: 4/7 of the high quality")
    if bargain is not None:
        ax.axvline(
            bargain.q_low, color=COLOURS[2], ls="--", label=f"bargaining solution: low quality {bargain.q_low:.4f}"
        )
        ax.plot([bargain.q_low] * 2, bargain.revenues, "o", color=COLOURS[2])
    ax.set(xlabel=f"quality of the low firm (high firm: {q_high:g})", ylabel="revenue", xlim=(0, q_high))
    ax.set_ylim(bottom=0)
    ax.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, fontsize=9)
    return ax


def plot_ledger(ledger: RevenueLedger, what: Literal["quality", "revenue"] = "revenue", ax: Axes | None = None) -> Axes:
    """Qualities or revenues of both firms over the rounds of a collaboration (Figures 3.1–3.3)."""
    ax = _axes(ax)
    frame, column = ledger.frame, {"quality": "q", "revenue": "revenue"}[what]
    ax.plot(frame["t"], frame[f"{column}_high"], color=HIGH, lw=2, label="firm that starts better")
    ax.plot(frame["t"], frame[f"{column}_low"], color=LOW, lw=2, label="firm that starts worse")
    ax.set(xlabel="round", ylabel=what)
    return ax


def utilities_figure(simulation: Simulation) -> Figure:
    """Figure 4.2: the utilities of both sides."""
    figure = Figure(figsize=(11, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    plot_utilities(simulation, "seller", left)
    plot_utilities(simulation, "buyer", right)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    return figure


def duopoly_figure(bargain: Bargain, now: Duopoly) -> Figure:
    """Left: revenues against the low firm's quality, the high firm's being the best. Right: both firms' revenues."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    plot_revenues(bargain.q_high, bargain, left)
    positions = np.arange(3)
    free = Duopoly(bargain.q_high, bargain.q_high)
    outcomes = [now.revenues, free.revenues, bargain.revenues]
    for offset, firm, colour in ((-0.2, "low", LOW), (0.2, "high", HIGH)):
        values = [getattr(revenues, firm) for revenues in outcomes]
        bars = right.bar(positions + offset, values, width=0.38, color=colour, label=f"{firm} firm")
        right.bar_label(bars, fmt="%.3f", fontsize=8)
    right.set_xticks(positions, ["today", "share everything", "bargain"])
    right.set(ylabel="revenue")
    right.legend(frameon=False)
    return figure
