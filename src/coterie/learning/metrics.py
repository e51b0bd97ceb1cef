"""Losses and metrics.

Losses map one client's (outputs, targets) to one number per sample. Metrics score many clients at once: outputs
(clients, samples, out), targets (clients, samples) and a mask of the real samples give one number per client. Metrics of
clusterings are in `cluster_metrics` and can be reached from here.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.learning.cluster_metrics import PairwiseQuality as PairwiseQuality
from coterie.learning.cluster_metrics import adjusted_rand as adjusted_rand
from coterie.learning.cluster_metrics import cluster_accuracy as cluster_accuracy
from coterie.learning.cluster_metrics import pairwise_quality as pairwise_quality
from coterie.learning.cluster_metrics import parameter_distance as parameter_distance

SampleLoss = Callable[[Tensor, Tensor], Tensor]
Metric = Callable[[Tensor, Tensor, Tensor], Tensor]


# ---- losses ----------------------------------------------------------------------------------------------------------


def cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(outputs, y, reduction="none")


def mse(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs.reshape(y.shape) - y) ** 2


def bce(outputs: Tensor, y: Tensor) -> Tensor:
    z = outputs.reshape(y.shape)
    return F.softplus(z) - z * y.to(z.dtype)


LOSSES: dict[str, SampleLoss] = {"cross_entropy": cross_entropy, "mse": mse, "bce": bce}


# ---- metrics ---------------------------------------------------------------------------------------------------------


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    m = mask.to(values.dtype)
    return (values * m).sum(-1) / m.sum(-1)  # a client without samples has no score: 0/0 is NaN on purpose


def _logits(outputs: Tensor) -> Tensor:
    """(…, classes); a single output is the logit of class 1."""
    return torch.cat([torch.zeros_like(outputs), outputs], -1) if outputs.shape[-1] == 1 else outputs


def _predicted(outputs: Tensor) -> Tensor:
    return _logits(outputs).argmax(-1)


def accuracy(outputs: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    return _mean((_predicted(outputs) == y).to(outputs.dtype), mask)


def balanced_accuracy(outputs: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """Mean recall over the classes that a client's test data contain."""
    logits = _logits(outputs)
    truth = F.one_hot(y.long(), logits.shape[-1]).to(logits.dtype) * mask.unsqueeze(-1).to(logits.dtype)
    right = truth * (logits.argmax(-1) == y).unsqueeze(-1).to(logits.dtype)
    count = truth.sum(-2)
    recall = right.sum(-2) / count.clamp(min=1)
    present = (count > 0).to(logits.dtype)
    return (recall * present).sum(-1) / present.sum(-1)


def auc(outputs: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """Area under the ROC curve; several classes: one-versus-rest, mean over the classes present. One class only: NaN."""
    logits = _logits(outputs)
    two = logits.shape[-1] == 2
    scores = logits - logits[..., :1] if two else logits.log_softmax(-1)  # logs: probabilities near 1 would tie
    classes = [1] if two else range(logits.shape[-1])
    areas = torch.stack([_binary_auc(scores[..., c], (y == c) & mask.bool(), (y != c) & mask.bool()) for c in classes])
    return areas.nanmean(0)


def _binary_auc(score: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    """Share of (positive, negative) pairs in the right order, ties one half."""
    sorted_negatives = torch.where(negative, score, torch.inf).sort(-1).values
    below = torch.searchsorted(sorted_negatives, score.contiguous())
    not_above = torch.searchsorted(sorted_negatives, score.contiguous(), right=True)
    pairs = ((below + not_above).to(score.dtype) / 2 * positive).sum(-1)
    return pairs / (positive.sum(-1) * negative.sum(-1))


def log_loss(outputs: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    return _mean(-_logits(outputs).log_softmax(-1).gather(-1, y.long().unsqueeze(-1)).squeeze(-1), mask)


def mean_squared_error(outputs: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    return _mean((outputs.reshape(y.shape) - y) ** 2, mask)


def r2(outputs: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """Share of the variance explained; NaN for a client whose targets are all equal."""
    spread = _mean((y - _mean(y, mask).unsqueeze(-1)) ** 2, mask)
    return 1 - mean_squared_error(outputs, y, mask) / torch.where(spread > 0, spread, torch.nan)


METRICS: dict[str, Metric] = {
    "accuracy": accuracy,
    "balanced_accuracy": balanced_accuracy,
    "auc": auc,
    "log_loss": log_loss,
    "mse": mean_squared_error,
    "r2": r2,
}
FOR_NUMBERS = frozenset({"mse", "r2"})
LOWER_IS_BETTER = frozenset({"log_loss", "mse"})
