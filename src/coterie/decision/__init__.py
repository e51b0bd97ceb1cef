"""Should the clients of a table learn alone, together, shrunk towards all, or in groups; who gains; how sure is it?

`decide` answers. Everything here is NumPy and SciPy: all candidates are convex or closed-form and solved exactly."""

from coterie.decision.coalitions import Coalitions, coalitions
from coterie.decision.decision import Decision, decide, decide_table, from_evaluation
from coterie.decision.distinguish import distinguish
from coterie.decision.evaluation import METHODS, Evaluation, Scores, evaluate
from coterie.decision.predictor import Predictor
from coterie.decision.rule import Verdict, judge
from coterie.decision.table import Table, make_table

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
