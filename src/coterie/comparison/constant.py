"""The overall average as a yardstick: a method that does not beat it has learned nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coterie.learning.metrics import METRICS
from coterie.training.result import Result
from coterie.tree import Tree


@dataclass(frozen=True)
class Gate:
    """`score`: the constant's mean metric over clients. `beats`: by how much less log loss (or squared error, over the
    target's variance) the method has, mean over clients; `error`: of that mean, over test rows."""

    score: float
    beats: float
    error: float


def against_constant(result: Result) -> Gate:
    """Every client's own predictor against the class shares (or the mean) of all training rows, on its test rows."""
    live = result.evaluation
    proper = METRICS["mse" if live.federation.kind == "regression" else "log_loss"]
    guess, scale = _constant(result)
    scorer = live.task.scorers[0]

    def post(out: Tree) -> Tree:
        outputs, y, mask = out["outputs"], out["y"], out["mask"]
        constant = guess.to(outputs.dtype).expand(*y.shape, len(guess))
        better = _per_row(proper, constant, y, mask) - _per_row(proper, outputs, y, mask)
        n = mask.sum(-1)
        mean = (better * mask).sum(-1) / n
        spread = ((better - mean.unsqueeze(-1)) ** 2 * mask).sum(-1) / n**2
        return {"score": scorer(constant, y, mask), "mean": mean, "variance": spread}

    told = {k: v.double().numpy() for k, v in live.on_test_rows(post).items()}
    known = np.isfinite(told["mean"])
    if not known.any():
        return Gate(float("nan"), 0.0, float("inf"))
    m = int(known.sum())
    score = told["score"][np.isfinite(told["score"])]
    return Gate(
        float(score.mean()) if len(score) else float("nan"),
        float(told["mean"][known].mean()) / scale,
        max(float(np.sqrt(told["variance"][known].sum())) / m / scale, 1e-12),
    )


def _per_row(metric: object, outputs: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    if not mask.shape[-1]:
        return torch.zeros_like(mask, dtype=torch.float64)
    one = torch.ones(mask.numel(), 1, dtype=outputs.dtype)
    values: Tensor = metric(outputs.flatten(0, 1).unsqueeze(1), y.reshape(-1, 1), one)  # type: ignore[operator]
    return values.reshape(mask.shape).double()


def _constant(result: Result) -> tuple[Tensor, float]:
    """Outputs of the constant, and the variance of the target (1 for classes)."""
    data = result.evaluation.federation
    y = torch.from_numpy(data.rows("train")[1])
    if data.kind == "regression":
        return y.double().mean().reshape(1), max(float(y.double().var(correction=0)), 1e-300)
    shares = torch.bincount(y.long(), minlength=data.n_outputs).double() + 1e-6
    return (shares / shares.sum()).log(), 1.0
