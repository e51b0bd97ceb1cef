"""One run of one algorithm: the loop, its checkpoints, what every client gets out of it, and who would stay."""

from coterie.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
