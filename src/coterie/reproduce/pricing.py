"""Figures 4.1–4.5 of Werner's dissertation by one command: ``python -m coterie.reproduce.pricing --out DIR``.

The running example: half the buyers value the product at 15, the others at 5; evading costs buyer and seller 5 each;
ten new buyers per round. Figure 4.1 (left) needs θ_L ≥ μθ_H and uses values 10 and 15 and a buyer cost of 2.5.
The dissertation does not give the horizon and the number of runs of Figures 4.2–4.4: 20,000 rounds and 10 seeds here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coterie.incentives import PricingGame, bias_sweep, simulate
from coterie.incentives.figures import bias_figure, equilibrium_figure, simulation_figure

EXAMPLE = PricingGame(mu=0.5, low=5, high=15, buyer_cost=5, seller_cost=5)
CASE_A = PricingGame(mu=0.5, low=10, high=15, buyer_cost=2.5, seller_cost=1)
SELLERS = ("exp3", "cexp3", "stackelberg", "stackelberg-eps", "adaptive")


def make_figures(out: Path, rounds: int = 20_000, seeds: int = 10) -> list[Path]:
    """Write the five figures and the table behind Figures 4.2–4.4 to ``out``; returns the paths."""
    out.mkdir(parents=True, exist_ok=True)
    simulation = simulate(EXAMPLE, SELLERS, rounds=rounds, seeds=seeds)
    sweep = bias_sweep(EXAMPLE, rounds=rounds, seeds=max(1, seeds // 2))
    figures = {
        "figure-4-1.png": equilibrium_figure(CASE_A, EXAMPLE),
        "figure-4-2.png": simulation_figure(simulation, "utilities"),
        "figure-4-3.png": simulation_figure(simulation, "belief"),
        "figure-4-4.png": simulation_figure(simulation, "actions"),
        "figure-4-5.png": bias_figure(sweep),
    }
    for name, figure in figures.items():
        figure.savefig(out / name, dpi=150)
    simulation.summary().to_csv(out / "pricing-summary.csv")
    sweep.to_csv(out / "pricing-bias.csv", index=False)
    return [out / name for name in (*figures, "pricing-summary.csv", "pricing-bias.csv")]


def main(
    out: Annotated[Path, typer.Option(help="Folder for the figures and tables.")],
    rounds: Annotated[int, typer.Option(min=50)] = 20_000,
    seeds: Annotated[int, typer.Option(min=1)] = 10,
) -> None:
    """Make Figures 4.1–4.5."""
    for path in make_figures(out, rounds, seeds):
        typer.echo(path)


if __name__ == "__main__":
    typer.run(main)
