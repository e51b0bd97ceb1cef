"""Who would stay, who would leave, who would found a group of their own; what each client gets and what it brings."""

from coterie.evidence.coalitions.answer import Coalitions
from coterie.evidence.coalitions.find import find
from coterie.evidence.coalitions.search import FOLD_Z, SPLIT_Z, Settings

__all__ = [
    "FOLD_Z",
    "SPLIT_Z",
    "Coalitions",
    "Settings",
    "find",
]
