"""Targets of several entries, sample weights, and metrics of one's own: the same numbers as scikit-learn's and torch's."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn import metrics as sk
from torch import Tensor, nn

import coterie as ct
from coterie.learning.metrics import METRICS
from coterie.learning.scoring import Scorer
from coterie.training.row_losses import row_losses

SGD = ct.LocalSGD(steps=4, lr=0.1, batch_size=8)
rng = np.random.default_rng(0)


def clients(make: Any, sizes: tuple[int, ...] = (9, 14, 30), **options: Any) -> ct.Federation:
    draw = np.random.default_rng(1)
    data = {f"c{i}": make(draw.normal(size=(n, 4)), draw) for i, n in enumerate(sizes)}
    return ct.Federation.from_arrays(data, **options)


def both_engines(fed: ct.Federation, task: ct.Task, rounds: int = 4) -> ct.Result:
    fast, plain = (ct.fit(ct.FedAvg(SGD), fed, task, rounds=rounds, engine=e, alone=False) for e in ("local", "loop"))
    np.testing.assert_allclose(fast.scores(), plain.scores(), rtol=1e-3, atol=1e-3)
    return fast


# ---- several entries a sample ------------------------------------------------------------------------------------------


def test_several_numbers_a_sample() -> None:
    weight = np.random.default_rng(2).normal(size=(4, 3))
    fed = clients(lambda x, d: (x, x @ weight + 0.01 * d.normal(size=(len(x), 3))))
    assert (fed.kind, fed.n_outputs, fed.y.shape[1]) == ("regression", 3, 3)
    task = ct.Task(lambda: nn.Linear(4, 3), "mse", ("mse", "rmse", "mae", "r2"))
    result = both_engines(fed, task, rounds=10)
    x, y = fed.test("c2")
    with torch.no_grad():
        out = result.model("c2")(x)
    scores = result.scores().loc["c2"]
    np.testing.assert_allclose(scores["mse"], F.mse_loss(out, y), rtol=1e-5)
    np.testing.assert_allclose(scores["mae"], sk.mean_absolute_error(y, out), rtol=1e-5)
    np.testing.assert_allclose(scores["rmse"], sk.root_mean_squared_error(y, out), rtol=1e-5)
    np.testing.assert_allclose(scores["r2"], sk.r2_score(y, out), rtol=1e-4)
    assert scores["r2"] > 0.9
    ct.fit(ct.FedAvg(SGD), fed, rounds=1)  # the task that is taken by default
    with pytest.raises(ct.errors.TaskError, match="mse needs a model with 3 outputs"):
        ct.fit(ct.FedAvg(SGD), fed, ct.Task(lambda: nn.Linear(4, 1), "mse"), rounds=1)
    with pytest.raises(ct.errors.DataError, match="one target"):
        ct.compare(fed)


def test_several_labels_a_sample() -> None:
    fed = clients(lambda x, d: (x, x[:, :3] + 0.3 * d.normal(size=(len(x), 3)) > 0))
    assert (fed.kind, fed.n_outputs) == ("multilabel", 3)
    task = ct.Task(lambda: nn.Linear(4, 3), "bce", ("accuracy", "f1", "auc", "log_loss"))
    result = both_engines(fed, task)
    x, y = fed.test("c2")
    with torch.no_grad():
        out = result.model("c2")(x)
    scores = result.scores().loc["c2"]
    np.testing.assert_allclose(scores["accuracy"], ((out > 0) == y.bool()).double().mean(), rtol=1e-6)
    np.testing.assert_allclose(scores["f1"], sk.f1_score(y, out > 0, average="macro"), rtol=1e-5)
    np.testing.assert_allclose(scores["log_loss"], F.binary_cross_entropy_with_logits(out, y), rtol=1e-5)
    assert ct.Task.default(fed).loss == "bce"
    with pytest.raises(ct.errors.TaskError, match=r"several labels\. Use loss='bce'"):
        ct.fit(ct.FedAvg(SGD), fed, ct.Task(lambda: nn.Linear(4, 3)), rounds=1)
    with pytest.raises(ct.errors.DataError, match=r"0 or 1; client 'c0' holds 2"):
        clients(lambda x, d: (x, np.full((len(x), 2), 2)), kind="multilabel")


class PerPlace(nn.Module):
    """A class for each of four places."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x.unsqueeze(-1))
        return out


def test_sequences_of_labels() -> None:
    def make(x: Any, d: Any) -> Any:
        y = np.digitize(x, (-0.5, 0.5))
        y[:, 0] = np.where(d.uniform(size=len(x)) < 0.3, -100, y[:, 0])
        return x, y

    fed = clients(make)
    assert (fed.kind, fed.n_outputs, fed.classes) == ("classification", 3, (0, 1, 2))
    task = ct.Task(PerPlace, metric=("accuracy", "balanced_accuracy", "log_loss", "top_3"))
    result = both_engines(fed, task, rounds=20)
    x, y = fed.test("c2")
    with torch.no_grad():
        out = result.model("c2")(x)
    real = y >= 0
    assert not real.all()
    scores = result.scores().loc["c2"]
    np.testing.assert_allclose(scores["accuracy"], sk.accuracy_score(y[real], out.argmax(-1)[real]), rtol=1e-6)
    np.testing.assert_allclose(scores["log_loss"], F.cross_entropy(out[real], y[real]), rtol=1e-5)
    assert scores["accuracy"] > 0.6
    assert scores["top_3"] == 1
    with pytest.raises(ct.errors.TaskError, match="one row of classes per label"):
        ct.fit(ct.FedAvg(SGD), fed, ct.Task(lambda: nn.Linear(4, 3)), rounds=1)


# ---- weights -----------------------------------------------------------------------------------------------------------


def test_a_weight_of_two_is_the_sample_twice() -> None:
    x, y = rng.normal(size=(12, 4)).astype("float32"), rng.integers(0, 2, 12)
    twice = np.repeat(np.arange(12), np.where(np.arange(12) < 4, 2, 1))
    how = ct.LocalSGD(steps=5, lr=0.1, batch_size=None)
    task = ct.Task(lambda: nn.Linear(4, 2), metric=("accuracy", "log_loss", "f1", "calibration_error"))

    def run(engine: str, *arrays: Any) -> ct.Result:
        fed = ct.Federation.from_arrays({"a": {"train": arrays, "test": arrays}, "b": {"train": arrays}})
        return ct.fit(ct.FedAvg(how), fed, task, rounds=2, engine=engine, alone=False)

    for engine in ("local", "loop"):
        weighed = run(engine, x, y, np.where(np.arange(12) < 4, 0.5, 0.25))
        plain = run(engine, x[twice], y[twice])
        for name, t in weighed.state.model.items():
            torch.testing.assert_close(t, plain.state.model[name])
        np.testing.assert_allclose(weighed.scores().loc["a"], plain.scores().loc["a"], rtol=1e-5)
    ragged = ct.fit(ct.FedAvg(SGD), weighed.federation, task, rounds=2, alone=False)  # mini-batches
    again = ct.fit(ct.FedAvg(SGD), weighed.federation, task, rounds=2, alone=False, engine="loop")
    torch.testing.assert_close(ragged.state.model["weight"], again.state.model["weight"])
    with pytest.raises(ct.errors.DataError, match="Leave the weights out"):
        row_losses(weighed)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"a": (np.ones((2, 1)), [0, 1], [1.0, 0.0])}, "one positive number a sample"),
        (
            {"a": (np.ones((2, 1)), [0, 1], [1.0]), "b": (np.ones((2, 1)), [0, 1], [1, 1])},
            "'a' needs a weight for each",
        ),
        ({"a": (np.ones((2, 1)), [0, 1]), "b": (np.ones((2, 1)), [0, 1], [1, 1])}, "client 'a' has no weights"),
    ],
)
def test_bad_weights_are_named(data: Any, message: str) -> None:
    with pytest.raises(ct.errors.DataError, match=message):
        ct.Federation.from_arrays(data)


# ---- metrics -----------------------------------------------------------------------------------------------------------


def test_new_metrics_are_scikit_learns() -> None:
    out, y = torch.from_numpy(rng.normal(size=(2, 40, 4))), torch.from_numpy(rng.integers(0, 4, (2, 40)))
    mask = torch.ones(2, 40)
    mask[1, 25:] = 0
    for i, n in enumerate((40, 25)):
        said, truth = out[i, :n].argmax(-1), y[i, :n]
        assert float(METRICS["f1"](out, y, mask)[i]) == pytest.approx(sk.f1_score(truth, said, average="macro"))
        top = sk.top_k_accuracy_score(truth, out[i, :n], k=3, labels=range(4))
        assert float(METRICS["top_3"](out, y, mask)[i]) == pytest.approx(top)
    two = out[..., :2]
    binary = sk.f1_score(y[0] % 2, two[0].argmax(-1))
    assert float(METRICS["f1"](two, y % 2, mask)[0]) == pytest.approx(binary)


@pytest.mark.parametrize("classes", [2, 4])
def test_weighted_metrics_are_scikit_learns(classes: int) -> None:
    own = np.random.default_rng(classes)
    out, y = own.normal(size=(60, classes)), own.integers(0, classes, 60)
    if classes == 2:
        out = np.round(4 * out) / 4  # there are ties
    w = own.integers(1, 5, 60)
    p, said = np.exp(out) / np.exp(out).sum(1, keepdims=True), out.argmax(1)
    scores = np.stack([out[:, 0] - out[:, 1], out[:, 1] - out[:, 0]], 1) if classes == 2 else p
    areas = [sk.roc_auc_score(y == c, scores[:, c], sample_weight=w) for c in range(classes)]
    expected = {
        "accuracy": sk.accuracy_score(y, said, sample_weight=w),
        "balanced_accuracy": sk.balanced_accuracy_score(y, said, sample_weight=w),
        "f1": sk.f1_score(y, said, average="binary" if classes == 2 else "macro", sample_weight=w),
        "auc": areas[1] if classes == 2 else np.mean(areas),
        "log_loss": sk.log_loss(y, p, sample_weight=w),
    }
    given = [torch.from_numpy(a).unsqueeze(0) for a in (out, y, w.astype(float))]
    assert {name: float(METRICS[name](*given)) for name in expected} == pytest.approx(expected)
    for name, function in (("mae", sk.mean_absolute_error), ("rmse", sk.root_mean_squared_error), ("r2", sk.r2_score)):
        numbers = [given[0][..., :1], given[0][..., 1], given[2]]
        right = function(out[:, 1], out[:, 0], sample_weight=w)
        assert float(METRICS[name](*numbers)) == pytest.approx(right), name


def test_one_output_has_two_classes_among_the_three_likeliest() -> None:
    out, y = torch.randn(1, 20, 1), torch.arange(20).unsqueeze(0) % 2
    assert float(METRICS["top_3"](out, y, torch.ones(1, 20))) == 1


def test_calibration_error_by_hand() -> None:
    """Confidences 0.9 (right and wrong) and 0.6 (right): |0.9 − 0.5|·2/3 + |0.6 − 1|·1/3."""
    p = torch.tensor([[[0.9, 0.1], [0.9, 0.1], [0.6, 0.4]]])
    error = METRICS["calibration_error"](p.log(), torch.tensor([[0, 1, 0]]), torch.ones(1, 3))
    assert float(error) == pytest.approx(0.4 * 2 / 3 + 0.4 / 3)


def share_of_class_0(outputs: Tensor, y: Tensor) -> float:
    assert outputs.shape[0] == y.shape[0]
    return float((outputs.argmax(-1) == 0).double().mean())


def many_at_once(outputs: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    return mask.sum(-1)


class Counting:
    """What torchmetrics offers."""

    higher_is_better = False

    def __init__(self, pause: float = 0.0) -> None:
        self.pause = pause
        self.reset()

    def reset(self) -> None:
        self.wrong, self.total = 0, 0

    def update(self, preds: Tensor, target: Tensor) -> None:
        time.sleep(self.pause)
        self.wrong += int((preds.argmax(-1) != target).sum())
        self.total += len(target)

    def compute(self) -> Tensor:
        return torch.tensor(self.wrong / self.total)


def test_a_metric_is_a_function_or_an_object(make_fed: Any) -> None:
    fed = make_fed(sizes=(40, 64, 50))
    own = (
        Counting(),
        share_of_class_0,
        many_at_once,
        Scorer(share_of_class_0, "again", lower_is_better=True),
        "accuracy",
    )
    task = ct.Task(lambda: nn.Linear(4, 3), metric=own)
    assert task.metrics == ("Counting", "share_of_class_0", "many_at_once", "again", "accuracy")
    assert task.sign == -1
    result = ct.fit(ct.FedAvg(SGD), fed, task, rounds=1, alone="equal budget", evaluate_every=1)
    table = result.evaluate()
    np.testing.assert_allclose(table["Counting"], 1 - table["accuracy"], atol=1e-6)
    np.testing.assert_allclose(table["gain"], table["alone"] - table["Counting"])
    assert (table["many_at_once"] == table["n_test"]).all()
    assert result.participation().metric == "Counting"
    assert "test_again" in result.history
    with pytest.raises(ct.errors.TaskError, match="need different names"):
        ct.Task(lambda: nn.Linear(4, 3), metric=("accuracy", "accuracy"))
    with pytest.raises(ct.errors.TaskError, match="a name, a function, or an object"):
        ct.Task(lambda: nn.Linear(4, 3), metric=(3,))


def test_an_object_scores_one_client_at_a_time_whatever_the_workers(make_fed: Any) -> None:
    fed = make_fed(sizes=(40,) * 12)
    task = ct.Task(lambda: nn.Linear(4, 3), metric=(Counting(pause=0.002), "accuracy"))
    result = ct.fit(ct.FedAvg(SGD), fed, task, rounds=0, alone=False, engine=ct.engines.LocalEngine(chunk=1, workers=4))
    np.testing.assert_allclose(result.scores()["Counting"], 1 - result.scores()["accuracy"], atol=1e-6)


def test_a_metric_of_several_numbers_is_refused_in_one_sentence(make_fed: Any) -> None:
    task = ct.Task(lambda: nn.Linear(4, 3), metric=Scorer(lambda outputs, y: outputs.mean(0), name="means"))
    with pytest.raises(ct.errors.TaskError, match="The metric means must give one number per client; got tensor"):
        ct.fit(ct.FedAvg(SGD), make_fed(), task, rounds=0, alone=False).scores()
