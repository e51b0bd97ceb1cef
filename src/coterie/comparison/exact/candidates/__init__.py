"""Ways to learn from a table with clients, all solved to convergence in closed form or by Newton's method."""

from coterie.comparison.exact.candidates.base import Candidate, Fit
from coterie.comparison.exact.candidates.groups import Groups
from coterie.comparison.exact.candidates.rows import Rows
from coterie.comparison.exact.candidates.shrunk import Shrunk
from coterie.comparison.exact.candidates.simple import Alone, Constant, Together

CANDIDATES: dict[str, Candidate] = {
    "constant": Constant(),
    "alone": Alone(),
    "together": Together(),
    "shrunk": Shrunk(),
    "groups": Groups(),
}

__all__ = ["CANDIDATES", "Alone", "Candidate", "Constant", "Fit", "Groups", "Rows", "Shrunk", "Together"]
