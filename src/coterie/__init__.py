"""coterie: find out who should learn together, and let them.

Every public name is listed in `__init__.pyi` with the room it lives in, and imported when first used.
"""

from coterie.lazy import attach

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = attach(__name__, __file__)
