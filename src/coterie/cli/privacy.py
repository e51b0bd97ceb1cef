"""`coterie privacy budget`, `receipt` and `audit`: the noise that a budget needs, a run's releases, and a test of them."""

from __future__ import annotations

from json import dumps, loads
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.errors import ConfigError

if TYPE_CHECKING:
    from coterie.privacy import Receipt

app = typer.Typer(no_args_is_help=True, help="Differential privacy: budgets, receipts and audits.")

Epsilon = Annotated[float, typer.Option(help="ε, above 0; 3 is a usual choice, above 8 is weak.")]
Delta = Annotated[float, typer.Option(help="δ, well below 1 / number of clients.")]
Rounds = Annotated[int, typer.Option(min=1, help="Number of releases.")]
Sampling = Annotated[float, typer.Option(help="Probability with which a client takes part in a round (Poisson).")]
Adjacency = Annotated[str, typer.Option(help="zero-out or replace.")]
MECHANISMS = ("joint-sum", "group-sums", "local-gaussian", "one-bit", "noisy-power", "quantile", "unit-moments")


@app.command()
def budget(
    epsilon: Epsilon,
    delta: Delta,
    rounds: Rounds,
    sampling: Sampling = 1.0,
    adjacency: Adjacency = "zero-out",
    parameters: Annotated[int | None, typer.Option(min=1, help="Numbers that one client sends.")] = None,
    clients: Annotated[int | None, typer.Option(min=1, help="Number of clients.")] = None,
) -> None:
    """The noise that a budget needs, and what it means for the number of parameters and clients."""
    from coterie.privacy import budget_text

    typer.echo(
        budget_text(epsilon, delta, rounds, sampling, adjacency=adjacency, dimension=parameters, clients=clients)
    )


@app.command()
def receipt(
    run: Annotated[Path, typer.Argument(help="Folder of a private run, or its receipt.json.")],
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the readable page.")] = False,
    ledger: Annotated[
        Path | None, typer.Option(help="The run's ledger; by default the one that the receipt names.")
    ] = None,
) -> None:
    """What a private run released, what it cost, and what is not covered. The receipt is checked against its ledger."""
    from coterie.training.files import FILES, check_receipt

    found = _read(run)
    checked = found.verify(ledger)
    if not checked.fault:
        folder = run if run.is_dir() else run.parent
        if (folder / FILES[0]).is_file():  # refuse a receipt that lies beside the result of another run
            check_receipt(folder)
        # JSON without characters that could steer a terminal
        typer.echo(dumps(loads(found.to_json()), indent=2) if json else found.to_text())
    typer.echo(checked.sentence, err=json or bool(checked.fault))
    if checked.fault or not found.valid:
        raise typer.Exit(1)


@app.command()
def adopt(ledger: Annotated[Path, typer.Argument(help="A ledger that was copied or moved.")]) -> None:
    """State that this copy of a ledger is the only one in use. Receipts will name the day and the old place."""
    from coterie.privacy import adopt as adopt_ledger

    typer.echo(adopt_ledger(ledger))


@app.command()
def audit(
    what: Annotated[
        str,
        typer.Argument(
            help=f"Folder of a private run, an algorithm such as fedavg, or one of {', '.join(MECHANISMS)}."
        ),
    ],
    epsilon: Epsilon = 1.0,
    delta: Delta = 1e-5,
    trials: Annotated[int, typer.Option(min=100, help="Trials in each of the two worlds.")] = 20_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the trials; exact noise takes none.")] = 0,
    out: Annotated[Path, typer.Option(help="File for the picture.")] = Path("audit.png"),
) -> None:
    """Try to refute a claim: a canary is in one of two worlds, and only the releases may show in which.

    A mechanism is run with simulated noise at --epsilon and --delta. For a run, its booked releases are simulated again,
    which audits its accounting. With an algorithm's name neighbouring federations are searched for a pair in which one
    client changes the messages of others, or the shape of a release. An audit can refute a claim, never prove it."""
    from coterie.algorithms import NAMES
    from coterie.privacy import audit as run_audit

    if what in NAMES and not Path(what).exists():
        return _neighbours(what)
    if not out.parent.is_dir():
        raise ConfigError(f"The folder of --out must exist; {out.parent} does not. Create it first.")
    from matplotlib.figure import Figure

    worlds, claim, at = _mechanism(what, epsilon, delta) if what in MECHANISMS else _events(Path(what))
    found = run_audit(worlds, claim, trials, seed, delta=at)
    typer.echo(found.to_text())
    figure = Figure(figsize=(6, 4), layout="constrained")
    found.plot(figure.subplots())
    figure.savefig(out, dpi=150)
    typer.echo(f"Figure: {out}")
    if found.verdict == "fail":
        raise typer.Exit(1)
    return None


def _neighbours(name: str) -> None:
    from coterie.algorithms import ALGORITHMS
    from coterie.training.neighbours import search

    found = search(ALGORITHMS[name].example())
    typer.echo(found.to_text())
    if found.violations:
        raise typer.Exit(1)


def _read(run: Path) -> Receipt:
    from coterie.privacy import Receipt

    file = run / "receipt.json" if run.is_dir() else run
    if not file.is_file():
        raise ConfigError(f"{run} holds no receipt. Name the folder of a finished private run.")
    try:
        return Receipt.from_json(file.read_text("utf-8"))
    except ValueError as error:
        raise ConfigError(
            f"{file} is not a privacy receipt ({error}). Name the folder of a finished private run."
        ) from None


def _events(run: Path) -> tuple[Any, Any, float]:
    """The releases of a run as two worlds, and the claim of its receipt."""
    from coterie.privacy import PointClaim, compose, event_worlds
    from coterie.privacy.verification import events_of

    if not run.exists():
        raise ConfigError(f"{run} is neither a folder of a run nor one of {', '.join(MECHANISMS)}. Name one of them.")
    found = _read(run)
    if not found.releases:
        raise ConfigError(f"The run in {run} released nothing, so there is nothing to audit.")
    events = events_of(found)
    costs = compose(events)
    claim = costs if costs.epsilon(found.delta) <= found.epsilon + 1e-3 else PointClaim(found.epsilon, found.delta)
    return event_worlds(events), claim, found.delta


def _mechanism(name: str, epsilon: float, delta: float) -> tuple[Any, Any, float]:
    """A mechanism calibrated to (ε, δ), as two worlds and its claim."""
    from coterie.privacy import (
        GroupSums,
        JointSum,
        LocalGaussian,
        NoisyPower,
        OneBit,
        Quantile,
        UnitMoments,
        compose,
        mechanism_worlds,
        noise_multiplier,
    )

    made: Any
    if name == "one-bit":
        made = OneBit("audit", epsilon)
    elif name == "local-gaussian":
        made = LocalGaussian.calibrated("audit", 4, 1.0, epsilon, delta)
    else:
        z = noise_multiplier(epsilon, delta, 1)
        made = {
            "joint-sum": JointSum("audit", 4, 1.0, z),
            "group-sums": GroupSums("audit", 3, 4, 1.0, z),
            "noisy-power": NoisyPower("audit", 4, 2, 1.0, z),
            "quantile": Quantile("audit", 0.5, 1e-3, 1e3, z, 100),
            "unit-moments": UnitMoments("audit", 5, 4, 1.0, z, 2),
        }[name]
    return mechanism_worlds(made, "simulation"), compose([made.event("simulation")]), delta
