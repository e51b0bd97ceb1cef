"""Should the clients of a table learn alone, together, shrunk towards all, or in groups? Who gains, and how sure is that?

`decide` answers, with NumPy and SciPy alone: all candidates are convex or closed-form and solved exactly."""

from coterie.comparison.exact.decision import Decision, decide, decide_table, from_evaluation
from coterie.comparison.exact.distinguish import distinguish
from coterie.comparison.exact.evaluation import Evaluation, evaluate
from coterie.comparison.exact.predictor import Predictor
from coterie.comparison.exact.ridge_coalitions import coalitions
from coterie.data.coded_table import Table, make_table
from coterie.evidence.coalitions import Coalitions
from coterie.evidence.rule import Verdict, judge
from coterie.evidence.scores import METHODS, Scores

__all__ = [
    "METHODS",
    "Coalitions",
    "Decision",
    "Evaluation",
    "Predictor",
    "Scores",
    "Table",
    "Verdict",
    "coalitions",
    "decide",
    "decide_table",
    "distinguish",
    "evaluate",
    "from_evaluation",
    "judge",
    "make_table",
]
