"""Losses of the decision in the units a user knows: accuracy as accuracy, squared error in the target's units, …"""

import numpy as np
import pandas as pd

from coterie.comparison.exact.decision import Decision

LOWER_IS_BETTER = ("mse", "log_loss", "poisson", "gamma", "mae")
COMPLEMENT = ("accuracy", "auc", "r2")  # the decision's loss is one minus the metric


def unit(decision: Decision) -> float:
    """The factor that brings a loss or gain of the decision to the metric's units: the target's variance for mse."""
    return max(decision.table.variance, 1e-300) if decision.metric == "mse" else 1.0


def natural(decision: Decision, losses: pd.DataFrame) -> pd.DataFrame:
    """Losses as values of the metric."""
    return 1 - losses if decision.metric in COMPLEMENT else losses * unit(decision)


def other_metrics(decision: Decision) -> dict[str, pd.DataFrame]:
    """Every metric that was measured, methods × clients, in its own units; NaN for clients without a score."""
    if decision.evaluation is None:
        return {}
    found = {}
    for metric, scores in decision.evaluation.scores.items():
        full = np.full(decision.losses.shape, np.nan)
        full[:, scores.scored] = scores.losses()
        frame = pd.DataFrame(full, index=decision.losses.index, columns=decision.losses.columns)
        scale = decision.table.variance if metric == "mse" else 1.0
        found[metric] = 1 - frame if metric in COMPLEMENT else frame * scale
    return found
