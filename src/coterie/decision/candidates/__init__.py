"""Ways to learn from a table with clients, all solved to convergence in closed form or by Newton's method."""

from ._rows import Rows
from .base import Candidate, Fit
from .groups import Groups
from .shrunk import Shrunk
from .simple import Alone, Constant, Together

CANDIDATES: dict[str, Candidate] = {
    "constant": Constant(),
    "alone": Alone(),
    "together": Together(),
    "shrunk": Shrunk(),
    "groups": Groups(),
}

__all__ = ["CANDIDATES", "Alone", "Candidate", "Constant", "Fit", "Groups", "Rows", "Shrunk", "Together"]
