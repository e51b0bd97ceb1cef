"""Coalitions: the clients that would stay, leave or form a group of their own, and what each client gets and brings."""

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
