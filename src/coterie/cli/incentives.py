"""``coterie incentives duopoly`` and ``coterie incentives pricing``: a table on the screen and a figure in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from coterie.base.disk import writing
from coterie.cli.screen import Screen
from coterie.incentives.market.bargaining import nash_bargaining
from coterie.incentives.market.duopoly import Duopoly
from coterie.incentives.pricing.game import PricingGame
from coterie.incentives.pricing.sellers import SELLERS
from coterie.incentives.pricing.simulation import simulate

app = typer.Typer(no_args_is_help=True, help="Who would stay? Competing firms, and privacy as an equilibrium.")


def _save(figure: Any, out: Path) -> None:
    with writing(out) as partial:
        figure.savefig(partial, dpi=150, format=out.suffix[1:].lower())


def _check_file(out: Path) -> None:
    """Check the figure's file before the work."""
    from matplotlib.figure import Figure

    kinds = Figure().canvas.get_supported_filetypes()
    if not out.parent.is_dir():
        raise typer.BadParameter(f"The folder of --out must exist; {out.parent} does not. Create it first.")
    if out.suffix[1:].lower() not in kinds:
        raise typer.BadParameter(f"--out must end in one of {', '.join(kinds)}; got {out.name}.")


@app.command()
def duopoly(
    q_low: Annotated[float, typer.Option(help="Quality of the weaker firm's model today, above 0.")] = 0.1,
    q_high: Annotated[float, typer.Option(help="Quality of the stronger firm's model today.")] = 0.5,
    q_max: Annotated[float, typer.Option(help="Best quality that both firms' data could give.")] = 1.0,
    out: Annotated[Path, typer.Option(help="File for the figure.")] = Path("duopoly.png"),
) -> None:
    """What two competing firms earn today, if they share everything, and if they bargain."""
    _check_file(out)
    bargain = nash_bargaining(q_low, q_high, q_max)
    now, free, agreed = (Duopoly(q_low, q_high), Duopoly(q_max, q_max), Duopoly(bargain.q_low, bargain.q_high))
    table = Table(title="Two firms, one market")
    for column in ("", "firm", "quality", "price", "demand", "revenue"):
        table.add_column(column, justify="left" if column in ("", "firm") else "right")
    for name, market in (("today", now), ("share everything", free), ("bargain", agreed)):
        numbers = zip((market.q_low, market.q_high), market.prices, market.demands, market.revenues, strict=True)
        for title, firm, row in zip((name, ""), ("low", "high"), numbers, strict=True):
            table.add_row(title, firm, *(f"{value:.4f}" for value in row), end_section=firm == "high")
    Screen().print(table)
    if now.revenues.low > 0:
        low, high = (after / before for after, before in zip(bargain.revenues, now.revenues, strict=True))
        typer.echo(f"The bargain multiplies the low firm's revenue by {low:.2f} and the high firm's by {high:.2f}:")
    typer.echo(f"the high firm gets the best model, and the low firm stops at {bargain.ratio:.1%} of its quality.")
    if bargain.q_low < q_low:
        typer.echo("That is below the low firm's model of today, so training alone cannot reach this bargain.")
    from coterie.incentives.figures import duopoly_figure

    _save(duopoly_figure(bargain, now), out)
    typer.echo(f"Figure: {out}")


@app.command()
def pricing(
    mu: Annotated[float, typer.Option(help="Share of high-value buyers.")] = 0.5,
    low: Annotated[float, typer.Option(help="What low-value buyers would pay.")] = 5.0,
    high: Annotated[float, typer.Option(help="What high-value buyers would pay.")] = 15.0,
    buyer_cost: Annotated[float, typer.Option(help="Cost to a buyer of hiding its type.")] = 5.0,
    seller_cost: Annotated[float, typer.Option(help="Cost to the seller of a buyer hiding its type.")] = 5.0,
    seller: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(SELLERS)}; repeat for more.")] = None,
    rounds: Annotated[int, typer.Option(help="Rounds of the repeated game.")] = 20_000,
    seeds: Annotated[int, typer.Option(help="Runs with different random numbers.")] = 20,
    n_buyers: Annotated[int, typer.Option(help="New buyers per round.")] = 10,
    out: Annotated[Path, typer.Option(help="File for the figure.")] = Path("pricing.png"),
) -> None:
    """What a seller earns by using, ignoring, or promising to ration what it knows about its buyers."""
    _check_file(out)
    game = PricingGame(mu, low, high, buyer_cost, seller_cost)
    chosen = seller or list(SELLERS)
    played = simulate(game, chosen, rounds=rounds, seeds=seeds, n_buyers=n_buyers)
    table = Table(title=f"Averages over {rounds:,} rounds and {seeds} seeds, per buyer")
    for column in ("seller", "earns", "10–90 %", "buyer", "belief", "truthful", "regret"):
        table.add_column(column, justify="left" if column == "seller" else "right", no_wrap=True)
    for name, row in played.summary().iterrows():
        cells = (row["buyer_utility"], row["belief"], row["truthful_share"], row["regret"])
        band = f"{row['seller_q10']:.2f}–{row['seller_q90']:.2f}"
        table.add_row(str(name), f"{row['seller_utility']:.3f}", band, *(f"{cell:.3f}" for cell in cells))
    Screen().print(table)
    best = game.commitment()
    typer.echo(
        f"One-shot equilibrium: the seller earns {game.seller_utility(0):.4g} if it never uses signals and "
        f"{game.seller_utility(1):.4g} if it always does. Its best promise is to use them with probability "
        f"{best.alpha:.3g} and earns {best.seller_utility:.4g}."
    )
    from coterie.incentives.figures import utilities_figure

    _save(utilities_figure(played), out)
    typer.echo(f"Figure: {out}")
