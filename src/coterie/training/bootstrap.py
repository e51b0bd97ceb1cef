"""Paired bootstrap: how sure is the difference between two methods on the same test rows?

Draw b resamples client i's test rows by random numbers of (seed, client, b) alone, so the b-th scores of two results on
one federation come from the same resampled rows and may be subtracted. This works for any metric, also if it is not a mean
over rows (AUC, R²).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from coterie import randomness
from coterie.evidence.gains import Floats
from coterie.training.result import Result
from coterie.tree import Tree

_BLOCK = 1 << 20  # resampled outputs at a time
ROW_MEANS = frozenset(
    {"accuracy", "log_loss", "mse", "mae", "top_3", "top_5"}
)  # means over rows, so one number per row is enough


def bootstrap_scores(result: Result, draws: int = 200, seed: int = 0) -> Floats:
    """(clients, draws) values of the first metric on resampled test rows; NaN where a resample has no score."""
    live = result.evaluation
    scorer = live.task.scorers[0]
    metric = _row_mean if scorer.name in ROW_MEANS else scorer
    keys = randomness.client_keys(live.federation.keys, seed)

    def resample(out: Tree) -> Tree:
        outputs, y, mask = out["outputs"], out["y"], out["mask"]
        if not mask.shape[-1]:
            return {"scores": torch.full((len(mask), draws), torch.nan, dtype=torch.float64)}
        if scorer.name in ROW_MEANS:
            alone = scorer(
                outputs.flatten(0, 1).unsqueeze(1), y.flatten(0, 1).unsqueeze(1), mask.new_ones(mask.numel(), 1)
            )
            outputs = alone.reshape(*mask.shape, 1)
        own, n = keys[out["index"]], mask.sum(-1, keepdim=True)
        size = max(_BLOCK // max(outputs.numel(), 1), 1)

        def scores(block: Tensor) -> Tensor:
            """Every client as often as there are draws in the block."""
            keys_ = randomness.fold(randomness.fold(own, "bootstrap").unsqueeze(-1), block)
            rows = (randomness.uniform(keys_, mask.shape[-1], torch.float64) * n.unsqueeze(-1)).long().flatten(0, 1)
            client = torch.arange(len(mask)).repeat_interleave(len(block)).unsqueeze(-1)
            return (
                metric(outputs[client, rows], y[client, rows], mask[client.squeeze(-1)]).double().reshape(len(mask), -1)
            )

        return {"scores": torch.cat([scores(block) for block in torch.split(torch.arange(draws), size)], 1)}

    table: Tensor = live.on_test_rows(resample)["scores"]
    scores: Floats = table.numpy()
    return scores


def gain_error(gain: Floats, differences: list[Floats], overlap: Floats) -> Floats:
    """Standard error of the mean gain over S seeds.

    Test rows: v is the bootstrap variance of one seed; two seeds share a part ρ = `overlap` of their test rows, so the
    mean has v (1 + (S − 1) ρ) / S. Training: the variance over seeds minus that of the test rows, v (1 − ρ),
    divided by S."""
    n = np.maximum(np.isfinite(gain).sum(axis=0), 1)  # a seed may have no score: one class among its test rows
    v = column_mean(np.stack([_variance(d.T) for d in differences]))
    rows = v * (1 + (n - 1) * overlap) / n
    excess = np.nan_to_num(_variance(gain, ddof=1)) - v * (1 - overlap)
    error: Floats = np.sqrt(rows + np.where(n > 1, np.maximum(excess, 0), 0) / n)
    return error


def column_mean(values: Floats) -> Floats:
    """The mean of every column over its finite numbers; NaN for a column without any."""
    mean: Floats = np.ma.masked_invalid(values).mean(axis=0).filled(np.nan)
    return mean


def _variance(values: Floats, ddof: int = 0) -> Floats:
    masked = np.ma.masked_invalid(values)
    variance: Floats = np.asarray(np.ma.filled(masked.var(axis=0, ddof=ddof), np.nan), np.float64)
    return variance


def _row_mean(values: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    return (values.squeeze(-1).double() * mask).sum(-1) / mask.sum(-1)
