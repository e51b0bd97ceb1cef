"""Who would stay? Competing firms that learn together, and privacy as an equilibrium of a pricing game.

- `Duopoly`, `Market`: prices, demands and revenues when models of different quality compete.
- `nash_bargaining`, `quality_cap`, `pacing_constant`: what two firms should agree on, and how fast to get there.
- `collaborate` with a scheme (`DefectionFreeSharing` and three that somebody would leave): a revenue ledger.
- `PricingGame`, `simulate`: when does a seller gain by *not* using the data it has?
"""

from coterie.incentives.market.bargaining import (
    Bargain,
    nash_bargaining,
    nash_product,
    pacing_bound,
    pacing_constant,
    quality_cap,
)
from coterie.incentives.market.climb import Climb
from coterie.incentives.market.defection_free import (
    Collaboration,
    CompleteSharing,
    DefectionFreeSharing,
    Firm,
    Learner,
    OnlyHighShares,
    OnlyLowShares,
    climb,
    collaborate,
    descent,
    low_target,
    quadratic_firms,
)
from coterie.incentives.market.duopoly import Duopoly, Pair, equilibrium_revenues
from coterie.incentives.market.ledger import RevenueLedger
from coterie.incentives.market.many_firms import Market
from coterie.incentives.pricing.buyers import BUYERS, CBER, Buyers, FixedEvasion
from coterie.incentives.pricing.game import Commitment, DeviationGains, Equilibrium, PricingGame
from coterie.incentives.pricing.sellers import (
    SELLERS,
    AdaptiveStackelberg,
    ContextualExp3IX,
    Exp3IX,
    Mixed,
    NoDiscrimination,
    Prices,
    Sales,
    Seller,
    Stackelberg,
    View,
)
from coterie.incentives.pricing.simulation import Simulation, policy_regret, simulate

__all__ = [
    "BUYERS",
    "CBER",
    "SELLERS",
    "AdaptiveStackelberg",
    "Bargain",
    "Buyers",
    "Climb",
    "Collaboration",
    "Commitment",
    "CompleteSharing",
    "ContextualExp3IX",
    "DefectionFreeSharing",
    "DeviationGains",
    "Duopoly",
    "Equilibrium",
    "Exp3IX",
    "Firm",
    "FixedEvasion",
    "Learner",
    "Market",
    "Mixed",
    "NoDiscrimination",
    "OnlyHighShares",
    "OnlyLowShares",
    "Pair",
    "Prices",
    "PricingGame",
    "RevenueLedger",
    "Sales",
    "Seller",
    "Simulation",
    "Stackelberg",
    "View",
    "climb",
    "collaborate",
    "descent",
    "equilibrium_revenues",
    "low_target",
    "nash_bargaining",
    "nash_product",
    "pacing_bound",
    "pacing_constant",
    "policy_regret",
    "quadratic_firms",
    "quality_cap",
    "simulate",
]
