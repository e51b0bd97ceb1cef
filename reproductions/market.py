"""Figures 3.4–3.8 of Werner's dissertation: what it says of two firms' revenues and of their bargain, computed exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from coterie.incentives import nash_bargaining
from coterie.incentives.figures import plot_revenues
from coterie.incentives.market.bargaining import nash_product, pacing_bound, quality_cap
from coterie.incentives.market.duopoly import equilibrium_revenues
from reproductions.claims import Claim, Margin, sure
from reproductions.drawing import curves, panels
from reproductions.experiment import Cells, Experiment, Measured, Records, Row, Scale

GRID: dict[Scale, int] = {"quick": 12, "paper": 40}  # starting qualities on either axis
RATIOS = (0.1, 0.3, 0.5, 0.7, 0.9)
SHOWN = ((0.05, 0.9), (0.1, 0.5), (0.2, 0.6), (0.3, 0.6), (0.1, 0.3))  # starts drawn in Figure 3.8


def cells(scale: Scale) -> Cells:
    return {"3.4": revenues, "3.5": cap, "3.6": pacing, "3.7, 3.8": bargains}


def measure(part: Any, seed: int, scale: Scale) -> Measured:
    return dict(part(scale))


def revenues(scale: Scale) -> Measured:
    """Figure 3.4 (Proposition 1): signs of all four slopes on a grid of qualities, and where U_l is largest."""
    q = np.linspace(0.01, 1.0, 10 * GRID[scale])
    low, high = np.meshgrid(q, q, indexing="ij")
    u_low, u_high = equilibrium_revenues(low, np.maximum(high, low))
    below = low < high
    both = below[1:, :] & below[:-1, :]
    fine = np.linspace(0.001, 0.999, 9981)
    top = float(fine[int(np.argmax(equilibrium_revenues(fine, 1.0)[0]))])
    up_in_high = all(bool((np.diff(u, axis=1)[below[:, :-1]] >= -1e-12).all()) for u in (u_low, u_high))
    return {
        "best_low_quality": top,
        "rise_in_high": up_in_high,
        "high_falls_in_low": bool((np.diff(u_high, axis=0)[both] <= 1e-12).all()),
    }


def cap(scale: Scale) -> Measured:
    """Figure 3.5 (Lemma 24): the least of B(a, b) − a over b ≥ 1."""
    ratio = np.linspace(0.0, 1.0, 10 * GRID[scale] + 1)[:, None]
    growth = np.geomspace(1.0, 100.0, 10 * GRID[scale])[None, :]
    return {"least": float((np.asarray(quality_cap(ratio, growth)) - ratio).min())}


def pacing(scale: Scale) -> Measured:
    """Figure 3.6: b_ρ, and its least value b̃."""
    ratio = np.linspace(0.0, 0.78, 2 * GRID[scale] + 16)
    bound = np.array([pacing_bound(float(r)) for r in ratio])
    fine = np.linspace(0.3, 0.4, 101)
    values = [pacing_bound(float(r)) for r in fine]
    at = int(np.argmin(values))
    return {
        "ratio": ratio.round(4).tolist(),
        "bound": bound.round(5).tolist(),
        "least": values[at],
        "where": float(fine[at]),
    }


def bargains(scale: Scale) -> Measured:
    """Figures 3.7 and 3.8 over a grid of starts: the inequality's smallest gap, and the largest ρ* (Lemma 25)."""
    left, right, largest, beyond = [], [], 0.0, 0.0
    for q_high in np.linspace(0.05, 0.99, GRID[scale]):
        for share in np.linspace(0.01, 0.99, GRID[scale]):
            bargain = nash_bargaining(float(share * q_high), float(q_high))
            if share > bargain.ratio:
                beyond = max(beyond, bargain.ratio)
                continue
            largest = max(largest, bargain.ratio)
            left.append((4 - 5 * bargain.ratio) * float(np.log10(1 / q_high)))
            right.append(bargain.ratio - float(share))
    keep = np.linspace(0, len(left) - 1, min(len(left), 300)).astype(int)
    gaps = np.array(left) - np.array(right)
    return {
        "left": np.round(np.array(left)[keep], 4).tolist(),
        "right": np.round(np.array(right)[keep], 4).tolist(),
        "gap": float(gaps.min()),
        "starts": len(left),
        "largest": largest,
        "beyond": beyond,
    }


def rows(found: Records) -> list[Row]:
    pace, bargain = found.of("3.6")[0], found.of("3.7, 3.8")[0]
    top = found.of("3.4")[0]["best_low_quality"]
    return [
        Row(
            "3.4: quality of the low firm at which it earns most (q_h = 1)",
            4 / 7,
            [top],
            tolerance=1e-3,
            digits=4,
            exact=True,
            reference="closed form",
        ),
        Row("3.6: least bound of the growth of q_h, b̃", 1.03, [pace["least"]], tolerance=0.005, digits=4, exact=True),
        Row("3.6: ratio ρ where b_ρ is least", 0.33, [pace["where"]], tolerance=0.02, digits=2, exact=True),
        Row(
            "3.8: largest bargain ρ* of starts with ρ₀ ≤ ρ*",
            0.43,
            [bargain["largest"]],
            tolerance=0.01,
            digits=3,
            exact=True,
        ),
        Row("3.8: the same where ρ₀ > ρ*", None, [bargain["beyond"]], digits=3, exact=True),
        Row("3.7: least gap between the two sides", None, [bargain["gap"]], digits=4, exact=True),
    ]


def claims(found: Records) -> list[Claim]:
    slopes, least, bargain = found.of("3.4")[0], found.of("3.5")[0]["least"], found.of("3.7, 3.8")[0]
    return [
        Claim(
            "Both revenues rise with the high firm's quality, and the high firm's falls with the low firm's (3.4).",
            [sure("so", bool(slopes["rise_in_high"] and slopes["high_falls_in_low"]))],
            "So at every point of the grid.",
        ),
        Claim(
            "B(a, b) ≥ a for all b ≥ 1 (3.5).",
            [Margin("least difference", [least + 1e-12], True)],
            f"The least difference is {least:.1g}.",
        ),
        Claim(
            "(4 − 5ρ*) log₁₀(q_h*/q_h,0) ≥ ρ* − ρ₀ (3.7).",
            [Margin("smallest gap", [bargain["gap"]], exact=True)],
            f"So for all {bargain['starts']} starts with ρ₀ ≤ ρ*; the smallest gap is {bargain['gap']:.4f}.",
        ),
        Claim(
            "The bargain's ρ* is at most 0.43 (3.8).",
            [Margin("0.43 less the largest", [0.43 - bargain["largest"]], exact=True)],
            f"At most {bargain['largest']:.3f} where ρ₀ ≤ ρ*, and up to {bargain['beyond']:.2f} for other starts.",
        ),
    ]


def draw(found: Records) -> Figure:
    figure, (first, second, third, fourth, fifth) = panels(5, columns=3)
    plot_revenues(ax=first).set_title("3.4: revenues")
    first.legend(frameon=False, fontsize=7, loc="upper right")
    growth = np.linspace(1.0, 2.0, 60)
    lines = {f"a = {a}": np.asarray(quality_cap(a, growth)) - a for a in RATIOS}
    curves(second, list(growth), lines, "3.5: B(a, b) − a", "growth b of the high quality", "").legend(
        fontsize=7, frameon=False
    )
    pace = found.of("3.6")[0]
    curves(third, pace["ratio"], {"": pace["bound"]}, "3.6: bound of growth in a round", "ratio ρ", "")
    third.set_ylim(1.0, 1.4)
    third.axhline(pace["least"], color="0.6", ls=":", lw=1)
    bargain = found.of("3.7, 3.8")[0]
    fourth.plot(bargain["right"], bargain["left"], ".", ms=3, color="#2a7f62")
    fourth.axline((0, 0), slope=1, color="0.6", ls=":", lw=1)
    fourth.set(title="3.7: left side over right side", xlabel="ρ* − ρ₀", ylabel="(4 − 5ρ*) log₁₀(1/q_h,0)")
    _products(fifth)
    for ax in (fourth, fifth):
        ax.spines[["top", "right"]].set_visible(False)
    return figure


def _products(ax: Axes) -> None:
    """Figure 3.8: the Nash product over the low firm's quality, each with its own largest value."""
    q = np.linspace(0.002, 0.998, 500)
    low, high = equilibrium_revenues(q, 1.0)
    for q_low, q_high in SHOWN:
        bargain = nash_bargaining(q_low, q_high)
        ax.plot(q, nash_product(low, high, bargain.disagreement) / bargain.value, lw=1, label=f"({q_low}, {q_high})")
        ax.plot([bargain.q_low], [1.0], "o", ms=4, color="#2a7f62")
    ax.axvline(0.43, color="0.6", ls=":", lw=1)
    ax.set(title="3.8: Nash product, largest = 1", xlabel="low firm's quality (q_h = 1)")
    ax.legend(frameon=False, fontsize=7, title="start", title_fontsize=7)


EXPERIMENT = Experiment(
    name="market",
    work="Werner, chapter 3",
    shows="Figures 3.4–3.8",
    cells=cells,
    measure=measure,
    rows=rows,
    claims=claims,
    draw=draw,
    size="as printed",
    seeds={"quick": 1, "paper": 1},
    drawn=False,
    setting=lambda scale: (
        f"Exact; {GRID[scale]} × {GRID[scale]} starting qualities (the dissertation's grids are not printed)."
    ),
)
