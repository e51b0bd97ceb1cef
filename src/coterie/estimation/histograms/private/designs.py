"""The private runs from end to end: A+ (the default), B+ (many users), FedAvg and IFCA.

A+: quantiles for two clips, a private mean, a start around it at no cost, ten rounds, the choice of α.
B+: the same, but directions and a coreset give the start, and three rounds follow.
All releases of a run share one plan and one ledger. Labels are not part of the output: each user keeps its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from coterie.estimation.histograms.counts import Counts, Floats, Source, has_public_vocabulary
from coterie.estimation.histograms.private import choice, concentration, coreset
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
from coterie.estimation.histograms.user_rows import HistogramRows, Weighting
from coterie.privacy import Line, Privacy, Receipt, Released, combine
from coterie.privacy.account import Account

ROUNDS = {"A+": 10, "B+": 3}
LEVEL = 0.9  # of the quantile of whitened norms that is the clip
_VOCABULARY = (
    "unaccounted: the tokens were read from the users' data or from a file; pass a matrix over a public vocabulary, or "
    "save_counts(folder, blocks, vocabulary=privacy.public([...]))"
)


@dataclass(frozen=True)
class Users:
    """The data of one run: user-weighted rows, the same users' raw counts, and whether the vocabulary is public."""

    rows: HistogramRows
    counts: HistogramRows
    width: int
    public_vocabulary: bool

    @classmethod
    def view(cls, rows: Callable[[Weighting], HistogramRows], width: int, source: Source) -> Users:
        """Both views of the same users; ``source`` says whether its vocabulary is public."""
        return cls(rows("user"), rows("token"), width, has_public_vocabulary(source))

    @classmethod
    def in_memory(cls, counts: Counts, source: Source, threads: int | None) -> Users:
        return cls.view(partial(HistogramRows.in_memory, counts, threads=threads), counts.shape[1], source)

    def choices(self, **more: str) -> dict[str, str]:
        """For each choice that could depend on data, the release that covers it."""
        words = "public" if self.public_vocabulary else _VOCABULARY
        return {"vocabulary": words, "hyper-parameters": "fixed in advance"} | more


@dataclass(frozen=True)
class PrivateFit:
    """The results of a private run. ``tuning`` is None where α was not asked for."""

    centers: Floats
    weights: Floats
    mean: Floats
    tuning: concentration.Tuning | None
    receipt: Receipt


def fit_mixture(
    users: Users,
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
    base = private_mean(users.rows, users.width, account)
    space = private_space(users.rows, base, account, LEVEL)
    rows, lifted, mean = users.rows, None, base
    if reduction is not None:
        rank = reduction.rank_of(clusters, users.width)
        lifted = _reduced(users.rows, space, reduction, rank, account, rng)
        rows = users.rows.reduced(lifted.value.reduce)
        mean = lifted.map(lambda chosen: chosen.lump(chosen.mean))
        space = private_space(rows, mean, account, LEVEL, REDUCED_LINE)
    if start is not None:
        first = start
    elif found:
        directions = coreset.private_directions(users.rows, space, clusters, account, rng)
        first = coreset.coreset_start(users.rows, space, directions, clusters, account, rng)
    else:
        first = mean.map(lambda mean: free_start(mean, clusters, rng))
    late = max(1, rounds - 1) if found else min(4, max(1, rounds // 2))
    shared = private_lloyd(rows, space, first, account, "rounds", rounds, rng, late)
    if lifted is not None:
        shared = combine(lambda s, chosen: Shared(chosen.lift(s.centers), s.weights), shared, lifted)
    if len(sizes) > 1:
        shared = choice.private_choice(users.counts, shared, base, sizes, account)
    tuned = concentration.private_tuning(users.counts, shared.map(lambda s: s.centers), base, account)
    account.kept += [shared, base, tuned]
    paid = {
        "clip of histograms": "released: quantile of norms",
        "clip of whitened histograms": f"released: {CLIP_LINE.name}",
        "concentration": "released: tuning",
        "start": _origin(start) if start is not None else f"released: {'coreset' if found else 'mean'}",
    }
    paid |= {} if reduction is None else {"tokens to cluster on": f"released: {coreset.POWER_LINE.name}"}
    paid |= {} if len(sizes) == 1 else {"number of clusters": f"released: {choice.LINE.name}"}
    receipt = account.closed(users.rows.users, users.choices(**paid), public=("the size of the vocabulary",))
    return PrivateFit(shared.value.centers, shared.value.weights, base.value, tuned.value, receipt)


def _reduced(
    rows: HistogramRows,
    space: Released[Space],
    reduction: TokenReduction,
    rank: int,
    account: Account,
    rng: np.random.Generator,
) -> Released[FittedReduction]:
    """The tokens with large entries in private directions of the whitened users."""
    directions = coreset.private_directions(rows, space, rank, account, rng)
    return combine(lambda axes, here: reduction.choose(axes.basis, axes.squares, here.base), directions, space)


def _origin(start: Released[Floats]) -> str:
    if start.taint:
        return "unaccounted: of unknown origin"
    return f"released: {start.bookings[0].event.name}" if start.bookings else "public"


def fit_fedavg(users: Users, privacy: Privacy, *, tune: bool, seed: int) -> PrivateFit:
    """One private mean; with ``tune`` also α."""
    lines = [Line(MEAN_LINES[0].name, 0.02, MEAN_LINES[0].count), Line("mean", 0.96)]
    account = Account.open(privacy, lines + ([concentration.LINE] if tune else []), seed)
    base = private_mean(users.rows, users.width, account, level=0.99)
    centers = base.map(lambda mean: mean[None])
    tuned = concentration.private_tuning(users.counts, centers, base, account) if tune else None
    account.kept += [base] if tuned is None else [base, tuned]
    paid = {"clip of histograms": "released: quantile of norms"}
    paid |= {} if tuned is None else {"concentration": "released: tuning"}
    receipt = account.closed(users.rows.users, users.choices(**paid), public=("the size of the vocabulary",))
    return PrivateFit(centers.value, np.ones(1), base.value, None if tuned is None else tuned.value, receipt)
