"""The repeated pricing game, many seeds at once: `simulate`, its result, and policy regret.

Sections 4.3 and 4.4 of
"Collaborative Learning: Aligning Goals and Outcomes" (Werner, 2024,
http://www2.eecs.berkeley.edu/Pubs/TechRpts/2024/EECS-2024-143.html).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np
import pandas as pd

from coterie.base.annotations import guarded
from coterie.base.arguments import shown
from coterie.errors import ConfigError
from coterie.incentives.market.duopoly import FloatArray
from coterie.incentives.pricing.buyers import BUYERS, Buyers
from coterie.incentives.pricing.game import PricingGame
from coterie.incentives.pricing.repeated import play
from coterie.incentives.pricing.sellers import SELLERS, Mixed, Seller

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SellerLike = str | Seller
SellersLike = SellerLike | Sequence[SellerLike] | Mapping[str, SellerLike]
P = TypeVar("P")


@dataclass(frozen=True, eq=False)
class Simulation:
    """Averages over the first `round` rounds, for every seller and seed, in the tidy table `frame`.

    Columns: `seller_utility` per buyer; `buyer_utility` per θ_H buyer; `belief` α̂; `alpha_bar` the seller's
    true average probability of different prices; `truthful_share` of rounds; `regret` per buyer against the best
    fixed price per signal; and the shares of rounds priced `high_high`, `low_low`, `pd` and `reverse_pd`.
    """

    game: PricingGame
    buyers: Buyers
    n_buyers: int
    rounds: int
    frame: pd.DataFrame

    @property
    def sellers(self) -> list[str]:
        """Labels of the sellers, in the order given."""
        return list(self.frame["seller"].unique())

    @property
    def final(self) -> pd.DataFrame:
        """One row per seller and seed: averages over all rounds."""
        return self.frame[self.frame["round"] == self.rounds].reset_index(drop=True)

    @property
    def seller_utility(self) -> FloatArray:
        """Average utility per buyer over all rounds; shape (sellers, seeds)."""
        return self.array("seller_utility")[..., -1]

    @property
    def buyer_utility(self) -> FloatArray:
        """Average utility of θ_H buyers over all rounds; shape (sellers, seeds)."""
        return self.array("buyer_utility")[..., -1]

    def array(self, column: str) -> FloatArray:
        """A column of `frame` as an array of shape (sellers, seeds, checkpoints)."""
        values = self.frame[column].to_numpy(dtype=float)
        return values.reshape(len(self.sellers), self.frame["seed"].nunique(), -1)

    def summary(self) -> pd.DataFrame:
        """One row per seller: means over seeds, the 10 % and 90 % quantiles of the seller's utility, and what it falls
        short of U_1*, the best a seller can reach in the long run."""
        groups = self.final.drop(columns=["seed", "round"]).groupby("seller", sort=False)
        table = groups.mean()
        spread = groups["seller_utility"].quantile(np.array([0.1, 0.9])).unstack()
        table.insert(1, "seller_q10", spread[0.1])
        table.insert(2, "seller_q90", spread[0.9])
        table.insert(3, "short_of_optimum", self.game.commitment().seller_utility - table["seller_utility"])
        return table

    def plot_utilities(self, who: Literal["seller", "buyer"] = "seller", ax: Axes | None = None) -> Axes:
        """Average utility over time with the 10–90 % band over seeds (Figure 4.2)."""
        from coterie.incentives import figures

        return figures.plot_utilities(self, who, ax)

    def plot_belief(self, ax: Axes | None = None) -> Axes:
        """The buyers' belief α̂ and the truth ᾱ over time (Figure 4.3)."""
        from coterie.incentives import figures

        return figures.plot_belief(self, ax)

    def plot_actions(self, ax: Axes | None = None) -> Axes:
        """Shares of the four price pairs, one bar per seller (Figure 4.4)."""
        from coterie.incentives import figures

        return figures.plot_actions(self, ax)


@guarded
def simulate(
    game: PricingGame,
    seller: SellersLike = "all",
    buyers: str | Buyers = "cber",
    rounds: int = 20_000,
    seeds: int | Sequence[int] = 20,
    *,
    n_buyers: int = 10,
    checkpoints: int = 200,
) -> Simulation:
    """Play the repeated game; averages are kept at `checkpoints` evenly spaced rounds.

    `seller` is a name of `SELLERS`, an object with the methods of `Seller`, a list or dict of them, or `"all"`;
    `buyers` is a name of `BUYERS` or an object; `seeds` is the number of runs (seeds 0, 1, …) or the seeds. All
    sellers meet the same buyers, and a run does not depend on which other seeds run beside it.
    """
    chosen = named_sellers(seller)
    crowd = _lookup(buyers, BUYERS, "buyers")
    runs = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    if rounds < 1 or not runs or checkpoints < 1:
        raise ConfigError(
            f"rounds, seeds and checkpoints must be at least 1; got {rounds}, {seeds}, {checkpoints}. "
            "Use 1 or more for each."
        )
    crowd.check(n_buyers)
    marks = np.unique(np.linspace(0, rounds, min(checkpoints, rounds) + 1).round().astype(int))
    frames = []
    for name, player in chosen.items():
        averages = play(game, player, crowd, runs, n_buyers=n_buyers, marks=marks)
        index = {"seller": name, "seed": np.repeat(runs, marks.size - 1), "round": np.tile(marks[1:], len(runs))}
        frames.append(pd.DataFrame({**index, **{column: values.ravel() for column, values in averages.items()}}))
    return Simulation(game, crowd, n_buyers, rounds, pd.concat(frames, ignore_index=True))


@guarded
def policy_regret(simulation: Simulation, *, step: float = 0.05, seeds: int = 3) -> pd.DataFrame:
    """What each seller lost against the best *constant mixed* seller, whose buyers would have behaved differently.

    The game is played again for every pair (h̄, h) of probabilities of the high price at the high and low signal on a
    grid; the pairs meet the same buyers. Ordinary regret keeps the buyers' signals fixed and so misses this loss.
    """
    if not 0 < step <= 1:
        raise ConfigError(f"step must lie in (0, 1]; got {step}. Use for example 0.1.")
    levels = np.linspace(0.0, 1.0, round(1 / step) + 1)
    hh, hl = (grid.reshape(-1, 1) for grid in np.meshgrid(levels, levels, indexing="ij"))
    averages = play(
        simulation.game,
        Mixed(hh, hl),
        simulation.buyers,
        range(seeds),
        n_buyers=simulation.n_buyers,
        marks=np.unique(np.linspace(0, simulation.rounds, 51).round().astype(int)),
        variants=(hh.size,),
    )
    utility = averages["seller_utility"][..., -1].mean(axis=1)
    best = int(np.argmax(utility))
    table = simulation.final.groupby("seller", sort=False)[["seller_utility"]].mean()
    table["best_constant"] = utility[best]
    table["best_high_at_high"], table["best_high_at_low"] = float(hh[best, 0]), float(hl[best, 0])
    table["policy_regret"] = table["best_constant"] - table["seller_utility"]
    return table


def named_sellers(seller: SellersLike) -> dict[str, Seller]:
    """Sellers by label; objects without a name are labelled by their `repr`."""
    if isinstance(seller, str) and seller == "all":
        return dict(SELLERS)
    if isinstance(seller, Mapping):
        found = {name: _lookup(s, SELLERS, "seller") for name, s in seller.items()}
    else:
        several = seller if isinstance(seller, Sequence) and not isinstance(seller, str) else [seller]
        found = {s if isinstance(s, str) else repr(s): _lookup(s, SELLERS, "seller") for s in several}
    if not found:
        raise ConfigError("simulate needs at least one seller; got none. Name one, such as 'adaptive'.")
    return found


def _require_methods(player: object, registry: Mapping[str, object], what: str) -> None:
    """Every player has the public methods that all those of the registry have."""
    common = set.intersection(*({n for n in dir(one) if n[0] != "_"} for one in registry.values()))
    methods = [n for n in sorted(common) if all(callable(getattr(one, n)) for one in registry.values())]
    if isinstance(player, type) or not all(callable(getattr(player, name, None)) for name in methods):
        raise ConfigError(
            f"{what} must be one of {', '.join(registry)}, or an object with {', '.join(methods)}; got {shown(player)}."
        )


def _lookup(player: str | P, registry: Mapping[str, P], what: str) -> P:
    if not isinstance(player, str):
        _require_methods(player, registry, what)
        return player
    if player not in registry:
        raise ConfigError(f"Unknown {what} {player!r}; choose one of {', '.join(registry)} or pass an object.")
    return registry[player]
