"""Who would stay? Competing firms that learn together, and privacy as an equilibrium of a pricing game.

- `Duopoly`, `Market`: prices, demands and revenues when models of different quality compete.
- `nash_bargaining`, `quality_cap`, `pacing_constant`: what two firms should agree on, and how fast to get there.
- `collaborate` with a scheme (`DefectionFreeSharing` and three that somebody would leave): a revenue ledger.
- `PricingGame`, `simulate`: when does a seller gain by *not* using the data it has?
"""

from coterie.base.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
