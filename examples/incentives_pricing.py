"""When does a seller earn more by *not* using what it knows about its customers?

A seller sees a signal about every buyer (a device, an address, a shopping history) and could charge those who look rich
more. Buyers notice: if discrimination is frequent enough, rich buyers start to hide, which costs them and the seller.
Here half of the buyers value the product at 15, half at 5, and hiding costs each side 5.

What a manager learns here:

1. Using the data always is the worst policy for the seller itself: 6.25 per buyer, against 7.50 for never using it.
2. The best policy is a *promise to ration* the use of data, kept just below the level at which hiding pays: 8.75.
3. A learning algorithm that is "optimal" in the usual sense (no regret) finds the worst policy, because it takes the
   buyers' behaviour for granted. Judge such algorithms by what buyers would have done otherwise (policy regret).
4. Promising exactly the critical level is fragile: buyers sit on the fence, and luck decides. Leave a margin.

Run: python examples/incentives_pricing.py [FOLDER]
"""

import sys
from pathlib import Path

import coterie as ct
from coterie.incentives.figures import utilities_figure


def main(out: Path) -> None:
    game = ct.incentives.PricingGame(mu=0.5, low=5, high=15, buyer_cost=5, seller_cost=5)
    promise = game.commitment()
    print(f"Per buyer: never use data {game.seller_utility(0)}, always {game.seller_utility(1)},")
    print(f"use it with probability {promise.alpha}: {promise.seller_utility}.\n")

    sellers = ["exp3", "cexp3", "stackelberg", "stackelberg-eps", "adaptive"]
    played = ct.incentives.simulate(game, sellers, rounds=10_000, seeds=10)
    columns = ["seller_utility", "seller_q10", "seller_q90", "truthful_share", "regret"]
    print(played.summary()[columns].round(2).to_string())

    print("\nAgainst the best constant policy, with buyers who would have answered it:")
    regret = ct.incentives.policy_regret(played, step=0.1)
    print(regret[["seller_utility", "best_constant", "policy_regret"]].round(2).to_string())

    utilities_figure(played).savefig(out / "incentives_pricing.png", dpi=120)
    print(f"\nFigure: {out / 'incentives_pricing.png'}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
