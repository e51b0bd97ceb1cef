"""One run of one algorithm: the loop, its checkpoints, every client's result, and which clients would stay."""

from coterie.base.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
