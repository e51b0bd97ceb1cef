"""Should clients learn alone, together, shrunk towards all, or in groups? What does each gain, and how sure is that?

`compare` (`coterie.compare`) answers. `decide` is its core for arrays, which needs no torch (`exact/`)."""

from coterie.base.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
