"""A seller who could discriminate, buyers who could evade: privacy as an equilibrium."""
