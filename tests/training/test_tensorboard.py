"""Callbacks see the live run; TensorBoard gets its numbers and its groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coterie as ct

SGD = ct.LocalSGD(steps=2, lr=0.1, batch_size=None)


class Writer:
    def __init__(self) -> None:
        self.kept: list[tuple[str, float, int]] = []

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.kept.append((name, value, step))

    def flush(self) -> None:
        pass


def test_a_callback_of_one_argument_receives_the_live_run(fed: ct.Federation, task: ct.Task) -> None:
    seen: list[tuple[int, Any, np.ndarray]] = []

    def log(run: ct.training.Run) -> None:
        seen.append((run.history[-1]["round"], run.state, run.evaluation().clusters()))

    result = ct.fit(ct.IFCA(clusters=2, local=SGD), fed, task, rounds=3, alone=False, callbacks=[log])
    assert [n for n, _, _ in seen] == [1, 2, 3]
    assert seen[-1][1] is result.state
    assert np.array_equal(seen[-1][2], result.clusters.to_numpy())
    unwatched = ct.fit(ct.IFCA(clusters=2, local=SGD), fed, task, rounds=3, alone=False)
    assert result.history["loss"].equals(unwatched.history["loss"])


def test_tensorboard_gets_every_number_and_the_groups(fed: ct.Federation, task: ct.Task) -> None:
    writer = Writer()
    board = ct.training.TensorBoard(writer)
    result = ct.fit(
        ct.IFCA(clusters=2, local=SGD), fed, task, rounds=3, evaluate_every=3, alone=False, callbacks=[board]
    )  # fmt: skip
    losses = [value for name, value, _ in writer.kept if name == "loss"]
    assert losses == pytest.approx(result.history["loss"].tolist())
    assert ("test_accuracy", 3) in {(name, step) for name, _, step in writer.kept}
    last = {name: value for name, value, step in writer.kept if step == 3}
    sizes = result.clusters.value_counts()
    assert len(sizes) == 2
    assert {f"groups/size of {g}": n for g, n in sizes.items()}.items() <= last.items()
    assert 0 <= last["groups/share that moved"] <= 1


def test_tensorboard_writes_files(fed: ct.Federation, task: ct.Task, tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="no tensorboardX here: pip install 'coterie[tensorboard]'")
    ct.fit(ct.FedAvg(SGD), fed, task, rounds=2, alone=False, callbacks=[ct.training.TensorBoard(tmp_path)])
    (file,) = tmp_path.glob("events*")
    assert b"bytes_up" in file.read_bytes()


def test_a_wrong_setting_is_one_sentence() -> None:
    with pytest.raises(ct.errors.ConfigError, match="groups_every must be ≥ 0"):
        ct.training.TensorBoard(Writer(), groups_every=-1)
