"""Data: embedded small real sets, loaders for larger ones, generators with known truth, and ways to deal rows to clients.

`heart`, `rain`, `elections` and `digits` need no file. The others are looked for in the folder named by the environment
variable COTERIE_DATA, then in the per-user cache; see `catalogue()` and `find_data`.
"""

from coterie.base.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
