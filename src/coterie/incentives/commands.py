"""``coterie incentives duopoly`` and ``coterie incentives pricing``: a table on the screen and a figure in a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from coterie.incentives.bargaining import nash_bargaining
from coterie.incentives.duopoly import Duopoly
from coterie.incentives.pricing_game import PricingGame
from coterie.incentives.sellers import SELLERS
from coterie.incentives.simulation import simulate

app = typer.Typer(no_args_is_help=True, help="Who would stay? Competing firms, and privacy as an equilibrium.")
T = TypeVar("T")


@app.callback()
def _group() -> None:
    """Who would stay? Competing firms, and privacy as an equilibrium."""


def _or_exit(make: Callable[[], T]) -> T:
    """Turn the one-sentence errors of the library into the command line's own (exit code 2)."""
    try:
        return make()
    except (ValueError, OSError) as error:
        raise typer.BadParameter(str(error)) from None


@app.command()
def duopoly(
    q_low: Annotated[float, typer.Option(help="Quality of the weaker firm's model today, above 0.")] = 0.1,
    q_high: Annotated[float, typer.Option(help="Quality of the stronger firm's model today.")] = 0.5,
    q_max: Annotated[float, typer.Option(help="Best quality that both firms' data could give.")] = 1.0,
    out: Annotated[Path, typer.Option(help="File for the figure.")] = Path("duopoly.png"),
) -> None:
    """What two competing firms earn today, if they share everything, and if they bargain."""
    bargain = _or_exit(lambda: nash_bargaining(q_low, q_high, q_max))
    now, free, agreed = (Duopoly(q_low, q_high), Duopoly(q_max, q_max), Duopoly(bargain.q_low, bargain.q_high))
    table = Table(title="Two firms, one market (low firm / high firm)")
    for column in ("", "quality", "price", "demand", "revenue"):
        table.add_column(column, justify="left" if not column else "right")
    for name, market in (("today", now), ("share everything", free), ("bargain", agreed)):
        pairs = ((market.q_low, market.q_high), market.prices, market.demands, market.revenues)
        table.add_row(name, *(f"{low:.4f} / {high:.4f}" for low, high in pairs))
    Console().print(table)
    typer.echo(
        f"Stop helping the low firm at {bargain.ratio:.1%} of the high firm's quality: the low firm then earns "
        f"{bargain.revenues.low / now.revenues.low:.2f} times today's revenue, the high firm "
        f"{bargain.revenues.high / now.revenues.high:.2f} times."
        if now.revenues.low > 0
        else f"Today's models are equally good and nobody earns anything; the bargain is a ratio of {bargain.ratio:.1%}."
    )
    from coterie.incentives.figures import duopoly_figure

    _or_exit(lambda: duopoly_figure(bargain, now).savefig(out, dpi=150))
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
    game = _or_exit(lambda: PricingGame(mu, low, high, buyer_cost, seller_cost))
    chosen = seller or list(SELLERS)
    played = _or_exit(lambda: simulate(game, chosen, rounds=rounds, seeds=seeds, n_buyers=n_buyers))
    table = Table(title=f"Averages over {rounds:,} rounds and {seeds} seeds, per buyer")
    for column in ("seller", "seller earns", "10–90 %", "buyer gains", "belief", "truthful", "regret"):
        table.add_column(column, justify="left" if column == "seller" else "right")
    for name, row in played.summary().iterrows():
        cells = (row["buyer_utility"], row["belief"], row["truthful_share"], row["regret"])
        band = f"{row['seller_q10']:.2f}–{row['seller_q90']:.2f}"
        table.add_row(str(name), f"{row['seller_utility']:.3f}", band, *(f"{cell:.3f}" for cell in cells))
    Console().print(table)
    best = game.commitment()
    typer.echo(
        f"One-shot equilibrium: {game.seller_utility(0):.4g} without signals, {game.seller_utility(1):.4g} with signals "
        f"always used; best promise: use them with probability {best.alpha:.3g} and earn {best.seller_utility:.4g}."
    )
    from coterie.incentives.figures import simulation_figure

    _or_exit(lambda: simulation_figure(played, "utilities").savefig(out, dpi=150))
    typer.echo(f"Figure: {out}")
