"""Should the clients of a table learn alone, together, shrunk towards all, or in groups; who gains; how sure is it?

`decide` answers. Everything here is NumPy and SciPy: all candidates are convex or closed-form and solved exactly."""

from .decision import Decision, decide, from_evaluation
from .distinguish import distinguish
from .evaluation import METHODS, Evaluation, Scores, evaluate
from .predictor import Predictor
from .rule import Verdict, judge
from .table import Table, make_table

__all__ = [
    "METHODS",
    "Decision",
    "Evaluation",
    "Predictor",
    "Scores",
    "Table",
    "Verdict",
    "decide",
    "distinguish",
    "evaluate",
    "from_evaluation",
    "judge",
    "make_table",
]
