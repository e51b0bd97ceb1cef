"""One estimate per client, strengthened by what the clients have in common: means, rates, regressions, histograms."""

from coterie.base.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
