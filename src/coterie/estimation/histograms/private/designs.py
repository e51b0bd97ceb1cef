"""The private runs from end to end: A+ (the default), B+ (many users), FedAvg and IFCA.

A+: quantiles for two clips, a private mean, a start around it at no cost, ten rounds, the choice of α.
B+: the same, but directions and a coreset give the start, and three rounds follow.
All releases of a run share one plan and one ledger. Labels are not part of the output: each user keeps its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from coterie.errors import ConfigError
from coterie.estimation.histograms.counts import Floats
from coterie.estimation.histograms.private import choice, concentration, coreset
from coterie.estimation.histograms.private.crowd import Crowd, Users
from coterie.estimation.histograms.private.noisy_lloyd import Shared, free_start, private_lloyd
from coterie.estimation.histograms.private.space import (
    CLIP_LINE,
    MEAN_LINES,
    REDUCED_LINE,
    Space,
    private_mean,
    private_space,
)
from coterie.estimation.histograms.reduction import FittedReduction, TokenReduction
from coterie.privacy import Line, Privacy, Receipt, Released, combine
from coterie.privacy.account import Account

ROUNDS = {"A+": 10, "B+": 3}
LEVEL = 0.9  # of the quantile of whitened norms that is the clip


@dataclass(frozen=True)
class PrivateFit:
    """The results of a private run. ``tuning`` is None where α was not asked for."""

    centers: Floats
    weights: Floats
    mean: Floats
    tuning: concentration.Tuning | None
    receipt: Receipt


def fit_mixture(
    users: Crowd,
    privacy: Privacy,
    *,
    clusters: int | list[int],
    method: str,
    rounds: int,
    seed: int,
    start: Released[Floats] | None,
    reduction: TokenReduction | None = None,
) -> PrivateFit:
    """Design A+ or B+. ``start``: given first centres instead of those of the design. Several `clusters`: the fit has the
    most, and a release chooses. With a `reduction` the rounds run on the tokens that private directions choose."""
    sizes = [clusters] if isinstance(clusters, int) else clusters
    clusters = max(sizes)
    rng = np.random.default_rng([seed, 1])  # public coins
    found = method == "B+" and start is None
    share = 0.40 if found else 0.86 if reduction is None else 0.55
    extra = [coreset.POWER_LINE, coreset.CORESET_LINE] if found else []
    extra += [] if reduction is None else [coreset.POWER_LINE, REDUCED_LINE]
    extra += [choice.LINE] if len(sizes) > 1 else []
    lines = [*MEAN_LINES, CLIP_LINE, *extra, Line("rounds", share, rounds), concentration.LINE]
    account = Account.open(privacy, lines, seed)
    for reason in () if start is None else account.ledger.unpaid(start.bookings):
        account.ledger.void(reason)
    base = private_mean(users, account)
    space = private_space(users, base, account, LEVEL)
    clustered, lifted, mean = users, None, base
    if reduction is not None:
        if not isinstance(users, Users):
            raise ConfigError(
                "A reduction of the vocabulary needs users' rows in memory; clients elsewhere tell only sums. "
                "Leave reduction out."
            )
        rank = reduction.rank_of(clusters, users.width)
        lifted = _reduced(users, space, reduction, rank, account, rng)
        mean = lifted.map(lambda chosen: chosen.lump(chosen.mean))
        clustered = replace(users, rows=users.rows.reduced(lifted.value.reduce), width=len(mean.value))
        space = private_space(clustered, mean, account, LEVEL, REDUCED_LINE)
    if start is not None:
        first = start
    elif found:
        directions = coreset.private_directions(clustered, space, clusters, account, rng)
        first = coreset.coreset_start(clustered, space, directions, clusters, account, rng)
    else:
        first = mean.map(lambda mean: free_start(mean, clusters, rng))
    late = max(1, rounds - 1) if found else min(4, max(1, rounds // 2))
    shared = private_lloyd(clustered, space, first, account, "rounds", rounds, rng, late)
    if lifted is not None:
        shared = combine(lambda s, chosen: Shared(chosen.lift(s.centers), s.weights), shared, lifted)
    if len(sizes) > 1:
        shared = choice.private_choice(users, shared, base, sizes, account)
    tuned = concentration.private_tuning(users, shared.map(lambda s: s.centers), base, account)
    account.kept += [shared, base, tuned]
    paid = {
        "clip of histograms": "released: quantile of norms",
        "clip of whitened histograms": f"released: {CLIP_LINE.name}",
        "concentration": "released: tuning",
        "start": _origin(start) if start is not None else f"released: {'coreset' if found else 'mean'}",
    }
    paid |= {} if reduction is None else {"tokens to cluster on": f"released: {coreset.POWER_LINE.name}"}
    paid |= {} if len(sizes) == 1 else {"number of clusters": f"released: {choice.LINE.name}"}
    receipt = account.closed(users.users, users.choices(**paid), **users.about())
    return PrivateFit(shared.value.centers, shared.value.weights, base.value, tuned.value, receipt)


def _reduced(
    users: Users,
    space: Released[Space],
    reduction: TokenReduction,
    rank: int,
    account: Account,
    rng: np.random.Generator,
) -> Released[FittedReduction]:
    """The tokens with large entries in private directions of the whitened users."""
    directions = coreset.private_directions(users, space, rank, account, rng)
    return combine(lambda axes, here: reduction.choose(axes.basis, axes.squares, here.base), directions, space)


def _origin(start: Released[Floats]) -> str:
    if start.taint:
        return "unaccounted: of unknown origin"
    return f"released: {start.bookings[0].event.name}" if start.bookings else "public"


def fit_fedavg(users: Crowd, privacy: Privacy, *, tune: bool, seed: int) -> PrivateFit:
    """One private mean; with ``tune`` also α."""
    lines = [Line(MEAN_LINES[0].name, 0.02, MEAN_LINES[0].count), Line("mean", 0.96)]
    account = Account.open(privacy, lines + ([concentration.LINE] if tune else []), seed)
    base = private_mean(users, account, level=0.99)
    centers = base.map(lambda mean: mean[None])
    tuned = concentration.private_tuning(users, centers, base, account) if tune else None
    account.kept += [base] if tuned is None else [base, tuned]
    paid = {"clip of histograms": "released: quantile of norms"}
    paid |= {} if tuned is None else {"concentration": "released: tuning"}
    receipt = account.closed(users.users, users.choices(**paid), **users.about())
    return PrivateFit(centers.value, np.ones(1), base.value, None if tuned is None else tuned.value, receipt)
