"""Should clients learn alone, together, shrunk towards all, or in groups; what each gains; and how sure that is.

`compare` is the one door (`coterie.compare`). `decide` is its core for arrays, which needs no torch (`exact/`)."""

from coterie.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
