"""Who would stay, who would leave, who would found a group of their own; what each client gets and what it brings."""

from coterie.decision.coalitions.exact import PooledRidge, coalitions
from coterie.decision.coalitions.find import find
from coterie.decision.coalitions.found import Coalitions
from coterie.decision.coalitions.search import FOLD_Z, SPLIT_Z, Settings

__all__ = [
    "FOLD_Z",
    "SPLIT_Z",
    "Coalitions",
    "PooledRidge",
    "Settings",
    "coalitions",
    "find",
]
