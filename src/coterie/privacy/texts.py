"""The texts that the command line prints about privacy."""

from __future__ import annotations

from coterie.base.annotations import guarded
from coterie.base.arguments import Count, Part, Positive
from coterie.privacy.accounting import curve, noise_multiplier, rounds_cost
from coterie.privacy.loudness import signal
from coterie.privacy.receipt import WEAK
from coterie.privacy.terms import Adjacency, Delta


@guarded
def budget_text(
    epsilon: Positive,
    delta: Delta,
    rounds: Count,
    sampling: Part = 1.0,
    *,
    adjacency: Adjacency = "zero-out",
    dimension: Count | None = None,
    clients: Count | None = None,
) -> str:
    """The noise that a budget requires, and the number of clients that this noise requires for a number of parameters."""
    z = noise_multiplier(epsilon, delta, rounds, sampling, adjacency=adjacency)
    costs = rounds_cost(z, rounds, sampling, adjacency)
    who = (
        "every client in every round"
        if sampling == 1
        else f"Poisson sampling, each client with probability {sampling:g}"
    )
    lines = [
        f"budget      ε = {epsilon:g}, δ = {delta:g}, unit: one whole client, adjacency: {adjacency}",
        f"rounds      {rounds}, {who}",
        f"noise       z = {z:.4g}: σ = z·Δ on the sum, Δ = {'clip' if adjacency == 'zero-out' else '2·clip'}",
        f"accountant  {costs.accountant}",
        "the same noise at other ε: "
        + ", ".join(f"δ({e:g}) = {d:.3g}" for e, d in curve(costs, (epsilon / 2, epsilon, 2 * epsilon))),
        "",
        "parameters  clients that are enough (noise of one round = clip)",
    ]
    sizes = [10, 1_000, 100_000] if dimension is None else [dimension]
    for size in sizes:
        lines.append(f"{size:>10,}  {signal(z, size, 1, sampling, adjacency=adjacency).enough:,}")
    if dimension is not None and clients is not None:
        found = signal(z, dimension, clients, sampling, adjacency=adjacency)
        lines += [
            "",
            found.warning or f"with {clients:,} clients the noise of a round is {found.ratio:.2g} of the clip.",
        ]
    if epsilon > 8:
        lines += ["", f"ε = {epsilon:g}: {WEAK}."]
    return "\n".join(lines)
