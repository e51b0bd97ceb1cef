"""Every metric against scikit-learn, many clients at once, ragged and padded."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from torch import Tensor

from coterie.learning.metrics import FOR_NUMBERS, LOSSES, LOWER_IS_BETTER, METRICS

SIZES = (30, 1, 12, 25, 2)


def padded(rng: np.random.Generator, width: int, classes: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """Padding holds wild values: a metric that looks at it is wrong."""
    outputs = torch.full((len(SIZES), max(SIZES), width), 1e6, dtype=torch.float64)
    y = torch.zeros(len(SIZES), max(SIZES), dtype=torch.float64 if classes is None else torch.int64)
    mask = torch.zeros(len(SIZES), max(SIZES), dtype=torch.float64)
    for c, n in enumerate(SIZES):
        outputs[c, :n] = torch.from_numpy(np.round(4 * rng.normal(size=(n, width))) / 4)  # exact quarters: ties
        y[c, :n] = torch.from_numpy(rng.normal(size=n) if classes is None else rng.integers(0, classes, n))
        mask[c, :n] = 1
    return outputs, y, mask


def by_sklearn(name: str, z: np.ndarray, y: np.ndarray, classes: int) -> float:
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    if z.shape[1] == 1:
        p = np.concatenate([1 / (1 + np.exp(z)), 1 / (1 + np.exp(-z))], 1)
    if name == "accuracy":
        return float(sk.accuracy_score(y, p.argmax(1)))
    if name == "balanced_accuracy":
        present = [sk.recall_score(y, p.argmax(1), labels=[c], average="macro") for c in np.unique(y)]
        return float(np.mean(present))
    if name == "log_loss":
        return float(sk.log_loss(y, p, labels=list(range(classes))))
    if len(np.unique(y)) < 2:
        return float("nan")
    chosen = [1] if classes == 2 else [c for c in range(classes) if c in y]
    return float(np.mean([sk.roc_auc_score(y == c, p[:, c]) for c in chosen]))


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("name", ["accuracy", "balanced_accuracy", "log_loss", "auc"])
def test_classification_metrics(name: str, width: int) -> None:
    classes = max(width, 2)
    outputs, y, mask = padded(np.random.default_rng(0), width, classes)
    got = METRICS[name](outputs, y, mask)
    for c, n in enumerate(SIZES):
        expected = by_sklearn(name, outputs[c, :n].numpy(), y[c, :n].numpy(), classes)
        assert float(got[c]) == pytest.approx(expected, rel=1e-9, nan_ok=True), c
    assert bool(got[1].isnan()) == (name == "auc")  # one sample: no pair to order


def test_balanced_accuracy_is_scikit_learns_when_predictions_stay_among_the_classes_present() -> None:
    outputs, y, mask = padded(np.random.default_rng(1), 2, 2)
    got = METRICS["balanced_accuracy"](outputs, y, mask)
    assert float(got[0]) == pytest.approx(sk.balanced_accuracy_score(y[0, :30], outputs[0, :30].argmax(-1)))


@pytest.mark.parametrize("name", sorted(FOR_NUMBERS))
def test_regression_metrics(name: str) -> None:
    outputs, y, mask = padded(np.random.default_rng(0), 1, None)
    got = METRICS[name](outputs, y, mask)
    score = {
        "mse": sk.mean_squared_error,
        "rmse": sk.root_mean_squared_error,
        "mae": sk.mean_absolute_error,
        "r2": sk.r2_score,
    }[name]
    for c, n in enumerate(SIZES):
        if n > 1:
            assert float(got[c]) == pytest.approx(float(score(y[c, :n], outputs[c, :n, 0])), rel=1e-9)
    assert bool(got[1].isnan()) == (name == "r2")  # one target has no spread


def test_auc_counts_ties_as_one_half_and_sees_beyond_probabilities_of_one() -> None:
    y, mask = torch.tensor([[0, 1, 1]]), torch.ones(1, 3)
    tied = torch.tensor([[[1.0], [1.0], [2.0]]])
    assert METRICS["auc"](tied, y, mask).item() == 0.75
    sure = torch.tensor([[[40.0], [50.0], [60.0]]])  # sigmoid is 1.0 for all three in float32
    assert METRICS["auc"](sure, y, mask).item() == 1.0


def test_a_client_without_test_rows_has_no_score() -> None:
    outputs, y, mask = torch.zeros(1, 3, 2), torch.zeros(1, 3, dtype=torch.int64), torch.zeros(1, 3)
    for name, metric in METRICS.items():
        z = outputs[..., :1] if name in FOR_NUMBERS else outputs
        assert metric(z, y.double() if name in FOR_NUMBERS else y, mask).isnan().all(), name


def test_losses_give_one_number_a_sample() -> None:
    rng = np.random.default_rng(0)
    z, y = torch.from_numpy(rng.normal(size=(6, 1))), torch.tensor([0, 1, 1, 0, 1, 0])
    bce = torch.nn.functional.binary_cross_entropy_with_logits(z[:, 0], y.double(), reduction="none")
    torch.testing.assert_close(LOSSES["bce"](z, y), bce)
    two = torch.cat([torch.zeros_like(z), z], 1)
    torch.testing.assert_close(LOSSES["cross_entropy"](two, y), bce)
    torch.testing.assert_close(LOSSES["mse"](z, y.double()), (z[:, 0] - y) ** 2)
    assert METRICS.keys() >= LOWER_IS_BETTER
