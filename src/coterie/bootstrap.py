"""Paired bootstrap: how sure is the difference between two methods on the same test rows?

Draw b resamples client i's test rows by random numbers of (seed, client, b) alone, so the b-th scores of two results on
one federation come from the same resampled rows and may be subtracted. Works for any metric, also those that are no mean
over rows (AUC, R²).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie import streams
from coterie.exchange import Context
from coterie.metrics import METRICS
from coterie.results import Result
from coterie.tree import Tree

Floats = npt.NDArray[np.float64]


def bootstrap_scores(result: Result, draws: int = 200, seed: int = 0) -> Floats:
    """(clients, draws) values of the first metric on resampled test rows; NaN where a resample has no score."""
    live = result._need_live("test predictions")
    metric = METRICS[live.task.metrics[0]]
    keys = torch.from_numpy(live.federation.keys) ^ streams.base_key(seed)

    def predict(ctx: Context, test: Context) -> Tree:
        outputs = live.algorithm.predict(ctx, live.state, test.x)
        return {"outputs": outputs, "y": test.y, "mask": test.mask, "index": ctx.index}

    def resample(out: Tree) -> Tree:
        outputs, y, mask = out["outputs"], out["y"], out["mask"]
        outputs = outputs if outputs.dim() == 3 else outputs.unsqueeze(-1)
        if not mask.shape[-1]:
            return {"scores": torch.full((len(mask), draws), torch.nan, dtype=torch.float64)}
        own, n = keys[out["index"]], mask.sum(-1, keepdim=True)

        def score(b: int) -> Tensor:
            u = streams.uniform(streams.fold(own, "bootstrap", b), mask.shape[-1], torch.float64)
            rows = (u * n).long()
            wide = rows.unsqueeze(-1).expand(-1, -1, outputs.shape[-1])
            return metric(outputs.gather(1, wide), y.gather(1, rows), mask).double()

        return {"scores": torch.stack([score(b) for b in range(draws)], 1)}

    table: Tensor = live.engine.map(predict, live.everyone(), live.env, test=True, post=resample)["scores"]
    scores: Floats = table.numpy()
    return scores
