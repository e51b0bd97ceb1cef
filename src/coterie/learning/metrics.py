"""Losses and metrics.

Losses map one client's (outputs, targets) to one number per sample. Metrics score many clients at once: outputs
(clients, samples, out), targets (clients, samples) and a mask of the real samples (their weights, where they have some) give
one number per client. Targets may have a third dimension: a sequence of classes is scored label by label; of several numbers
or yes/no labels per sample the mean over them is taken. Your own metrics are in `scoring`, those of clusterings in
`cluster_metrics`; both can be reached from here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

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
    """Cross-entropy; for a sequence of labels the mean over the given ones (−100 means no label)."""
    if y.dim() == 1:
        return F.cross_entropy(outputs, y, reduction="none")
    each = F.cross_entropy(outputs.movedim(-1, 1), y, reduction="none").flatten(1)
    return each.sum(1) / (y >= 0).flatten(1).sum(1).clamp(min=1)


def mse(outputs: Tensor, y: Tensor) -> Tensor:
    """The squared error of every entry of a sample."""
    return (outputs.reshape(y.shape) - y) ** 2


def bce(outputs: Tensor, y: Tensor) -> Tensor:
    """Binary cross-entropy of yes/no labels; outputs are log odds."""
    z = outputs.reshape(y.shape)
    return F.softplus(z) - z * y.to(z.dtype)


LOSSES: dict[str, SampleLoss] = {"cross_entropy": cross_entropy, "mse": mse, "bce": bce}


# ---- metrics ---------------------------------------------------------------------------------------------------------


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    m = mask.to(values.dtype)
    return (values * m).sum(-1) / m.sum(-1)  # a client without samples has no score: 0/0 is NaN on purpose


def by_entry(metric: Metric) -> Metric:
    """A metric of labels for sequences of them, and for several labels per sample: every label counts as a row."""

    @wraps(metric)
    def scored(outputs: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        if y.dim() == 2:
            return metric(outputs, y, mask)
        flat = y.flatten(1)
        many = mask.repeat_interleave(flat.shape[1] // max(mask.shape[1], 1), 1)
        if y.is_floating_point():
            return metric(outputs.reshape(flat.shape).unsqueeze(-1), flat, many)
        return metric(outputs.flatten(1, -2), flat.clamp(min=0), many * (flat >= 0))

    return scored


def by_column(metric: Metric) -> Metric:
    """The same, but each of several labels or numbers per sample is scored separately, and the mean is taken."""
    rows = by_entry(metric)

    @wraps(metric)
    def scored(outputs: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        if y.dim() == 2 or not y.is_floating_point():
            return rows(outputs, y, mask)
        z, flat = outputs.reshape(*mask.shape, -1), y.reshape(*mask.shape, -1)
        each = [metric(z[..., j : j + 1], flat[..., j], mask) for j in range(flat.shape[-1])]
        return torch.stack(each).nanmean(0)

    return scored


def _logits(outputs: Tensor) -> Tensor:
    """(…, classes); a single output is the logit of class 1."""
    return torch.cat([torch.zeros_like(outputs), outputs], -1) if outputs.shape[-1] == 1 else outputs


def _predicted(outputs: Tensor) -> Tensor:
    return _logits(outputs).argmax(-1)


@by_entry
def accuracy(outputs: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """Share of samples whose class is the likeliest."""
    return _mean((_predicted(outputs) == y).to(outputs.dtype), mask)


@by_column
def balanced_accuracy(outputs: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """Mean recall over the classes that a client's test data contain."""
    logits = _logits(outputs)
    truth = F.one_hot(y.long(), logits.shape[-1]).to(logits.dtype) * mask.unsqueeze(-1).to(logits.dtype)
    right = truth * (logits.argmax(-1) == y).unsqueeze(-1).to(logits.dtype)
    count = truth.sum(-2)
    recall = right.sum(-2) / count.clamp(min=1)
    present = (count > 0).to(logits.dtype)
    return (recall * present).sum(-1) / present.sum(-1)


@by_column
def auc(outputs: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """Area under the ROC curve; several classes: one-versus-rest, mean over the classes present. One class only: NaN."""
    logits = _logits(outputs)
    two = logits.shape[-1] == 2
    scores = logits - logits[..., :1] if two else logits.log_softmax(-1)  # logs: probabilities near 1 would tie
    classes = [1] if two else range(logits.shape[-1])
    areas = torch.stack([_binary_auc(scores[..., c], (y == c) * mask, (y != c) * mask) for c in classes])
    return areas.nanmean(0)


def _binary_auc(score: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    """Share of (positive, negative) pairs in the right order, ties one half; a pair weighs the product of its samples'
    weights, which are 0 for samples of the other kind."""
    negatives, order = torch.where(negative > 0, score, torch.inf).sort(-1)
    weights = F.pad(negative.double().gather(-1, order).cumsum(-1), (1, 0))
    below, not_above = (
        weights.gather(-1, torch.searchsorted(negatives, score.contiguous(), right=right)) for right in (False, True)
    )
    pairs = ((below + not_above) / 2 * positive).sum(-1)
    return (pairs / (positive.double().sum(-1) * weights[..., -1])).to(score.dtype)


@by_entry
def log_loss(outputs: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """Mean of −log of the probability given to the true class."""
    return _mean(-_logits(outputs).log_softmax(-1).gather(-1, y.long().unsqueeze(-1)).squeeze(-1), mask)


@by_entry
def mean_squared_error(outputs: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """Mean of squared errors."""
    return _mean((outputs.reshape(y.shape) - y) ** 2, mask)


@by_column
def r2(outputs: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """Share of the variance explained; NaN for a client whose targets are all equal."""
    spread = _mean((y - _mean(y, mask).unsqueeze(-1)) ** 2, mask)
    return 1 - mean_squared_error(outputs, y, mask) / torch.where(spread > 0, spread, torch.nan)


@by_entry
def mae(outputs: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """Mean of absolute errors."""
    return _mean((outputs.reshape(y.shape) - y).abs(), mask)


@by_column
def rmse(outputs: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """Root of the mean of squared errors."""
    return _mean((outputs.reshape(y.shape) - y) ** 2, mask).sqrt()


@by_column
def f1(outputs: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """Of two classes the F1 of class 1; of more the mean over the classes that a client has or predicts."""
    logits = _logits(outputs)
    count = logits.shape[-1]
    weight = mask.unsqueeze(-1).to(logits.dtype)
    truth, said = (F.one_hot(t.long(), count).to(logits.dtype) * weight for t in (y, logits.argmax(-1)))
    both = (truth * (said > 0)).sum(-2)
    total = truth.sum(-2) + said.sum(-2)
    each = 2 * both / torch.where(total > 0, total, torch.nan)
    return each[..., 1] if count == 2 else each.nanmean(-1)


@by_entry
def calibration_error(outputs: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """Expected calibration error: how far the confidence is from the share of right answers, over 15 bins of confidence.

    Guo et al., "On Calibration of Modern Neural Networks", 2017, https://arxiv.org/abs/1706.04599, Equation 3."""
    confidence, said = _logits(outputs).softmax(-1).max(-1)
    right, weight = (said == y).to(confidence.dtype), mask.to(confidence.dtype)
    bins = F.one_hot((confidence * _BINS).ceil().long().clamp(1, _BINS) - 1, _BINS).to(confidence.dtype)
    gap = ((confidence - right) * weight).unsqueeze(-1) * bins
    return gap.sum(-2).abs().sum(-1) / weight.sum(-1)


def _top(count: int, outputs: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    logits = _logits(outputs)
    best = logits.topk(min(count, logits.shape[-1]), -1).indices
    return _mean((best == y.long().unsqueeze(-1)).any(-1).to(outputs.dtype), mask)


@by_entry
def top_3(outputs: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """Share of samples whose class is among the three likeliest."""
    return _top(3, outputs, y, mask)


@by_entry
def top_5(outputs: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """Share of samples whose class is among the five likeliest."""
    return _top(5, outputs, y, mask)


_BINS = 15
METRICS: dict[str, Metric] = {
    "accuracy": accuracy,
    "balanced_accuracy": balanced_accuracy,
    "auc": auc,
    "f1": f1,
    "top_3": top_3,
    "top_5": top_5,
    "log_loss": log_loss,
    "calibration_error": calibration_error,
    "mse": mean_squared_error,
    "rmse": rmse,
    "mae": mae,
    "r2": r2,
}
FOR_NUMBERS = frozenset({"mse", "rmse", "mae", "r2"})
LOWER_IS_BETTER = frozenset({"log_loss", "calibration_error", "mse", "rmse", "mae"})
