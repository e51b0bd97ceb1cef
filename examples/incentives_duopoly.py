"""Should two competing firms train a model together?

Two firms sell models to the same customers. The better model is sold at a higher price, the worse one as the cheap
alternative. If both firms pool everything they learn, they end with the same model, customers take the cheaper one, and
prices fall to zero: a great model and no income. So the stronger firm will walk away, unless the deal is made such that
*nobody's revenue falls in any round*.

What a manager learns here:

1. How much each firm earns today, and at the fair deal (the Nash bargaining solution).
2. That the fair deal leaves the weaker firm at roughly 37 % of the stronger firm's quality in this example: it is the
   *distance* between the models that both firms live on.
3. Which of four ways to collaborate would be abandoned, and by whom.

Run: python examples/incentives_duopoly.py [FOLDER]
"""

import sys
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

import coterie as ct
from coterie.incentives.figures import plot_ledger

SCHEMES = {
    "complete sharing": ct.incentives.CompleteSharing(),
    "only the high firm shares": ct.incentives.OnlyHighShares(),
    "only the low firm shares": ct.incentives.OnlyLowShares(low_trains=False),
    "defection-free": ct.incentives.DefectionFreeSharing(),
}


def schemes_figure(rounds: int = 100) -> Figure:
    """Qualities (top) and revenues (bottom) under every scheme, on quadratic losses."""
    figure = Figure(figsize=(12.4, 5.6), layout="constrained")
    axes = figure.subplots(2, len(SCHEMES), sharex=True, sharey="row")
    for column, (name, scheme) in enumerate(SCHEMES.items()):
        low, high = ct.incentives.quadratic_firms(0.15, 0.6, 0.95, max_step=0.2)
        ledger = ct.incentives.collaborate(low, high, scheme, rounds=rounds, q_max=0.95).ledger
        plot_ledger(ledger, "quality", axes[0, column]).set(title=name, xlabel="")
        plot_ledger(ledger, "revenue", axes[1, column])
    for ax in axes[:, 1:].flat:
        ax.set_ylabel("")
    for row in axes:
        row[0].set_ylim(bottom=0)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    return figure


def main(out: Path) -> None:
    today, deal = ct.incentives.Duopoly(0.1, 0.5), ct.incentives.nash_bargaining(0.1, 0.5)
    print(f"Today the firms earn {today.revenues.low:.4f} and {today.revenues.high:.4f} per customer.")
    print(f"After the deal: {deal.revenues.low:.4f} and {deal.revenues.high:.4f}; qualities {deal.q_low:.4f} and 1.")

    rows = {}
    for name, scheme in SCHEMES.items():
        low, high = ct.incentives.quadratic_firms(0.15, 0.60, 0.95)
        ledger = ct.incentives.collaborate(low, high, scheme, rounds=200, q_max=0.95).ledger
        frame = ledger.frame
        rows[name] = {
            "low firm, start": frame["revenue_low"].iloc[0],
            "end": frame["revenue_low"].iloc[-1],
            "high firm, start": frame["revenue_high"].iloc[0],
            "end ": frame["revenue_high"].iloc[-1],
            "largest loss in a round": ledger.largest_drop,
        }
    print("\nRevenues on a toy problem; a loss is a reason to leave:")
    print(pd.DataFrame(rows).T.round(4).to_string())

    crowded = ct.incentives.Market([0.1, deal.q_low, 1.0]).revenues
    cost_high, cost_low = 1 - crowded[2] / deal.revenues.high, 1 - crowded[1] / deal.revenues.low
    print("\nA third firm that enters at today's low quality costs the two partners of the deal")
    print(f"{cost_high:.0%} (high firm) and {cost_low:.0%} (low firm) of their revenue.")

    schemes_figure().savefig(out / "incentives_duopoly.png", dpi=120)
    print(f"\nFigure: {out / 'incentives_duopoly.png'}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
