"""The commands behind the clustering tables, on tiny settings."""

import os
from pathlib import Path

import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import coterie as ct
from coterie.reproduce.clustering import app, worker_accuracy

needs_mnist = pytest.mark.skipif(
    not (Path(os.environ.get("COTERIE_DATA", "")) / "mnist.npz").is_file() or "COTERIE_DATA" not in os.environ,
    reason="needs mnist.npz in the folder COTERIE_DATA",
)

TINY = {
    "start": ["--seeds", "1", "--clients", "8", "--samples", "20", "--rounds", "3", "--restarts", "2"],
    "rotated": ["--clients", "8", "--samples", "20", "--rounds", "2"],
    "byzantine": ["--clients", "16", "--samples", "20", "--rounds", "1", "--groups", "2", "--percentile", "12.5"],
}
FILES = {"start": "ifca-start", "rotated": "ifca-rotated", "byzantine": "byzantine"}


@needs_mnist
@pytest.mark.parametrize("command", TINY)
def test_a_command_prints_its_table_and_writes_it(command: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [command, *TINY[command], "--out", str(tmp_path)], catch_exceptions=False)
    assert result.exit_code == 0
    assert "seeds 0–0" in result.stdout
    assert "torch" in result.stdout
    for name in (FILES[command], f"{FILES[command]}-runs"):
        assert len(pd.read_csv(tmp_path / f"{name}.csv"))


def test_a_test_worker_takes_the_model_of_smallest_loss() -> None:
    """Two linear models for two clusters; choosing on half the labels leaves the other half to be scored on."""
    fed = ct.datasets.digits(transform="shift_labels", clusters=2, clients=8)
    task = ct.Task(ct.models.linear(64, 10))
    oracle = ct.fit(ct.Oracle(ct.LocalSGD(steps=40, lr=0.5, batch_size=None)), fed, task, rounds=5, alone=False)
    models = oracle.state.models
    own = worker_accuracy(models, fed, task, 40)
    assert own > 0.85
    assert worker_accuracy(models, fed, task, 40, "split") == pytest.approx(own, abs=0.05)
    one = {k: t[:1] for k, t in models.items()}
    assert worker_accuracy(one, fed, task, 40) == pytest.approx(own / 2, abs=0.1)  # right for half of the workers
    swapped = {k: torch.flip(t, [0]) for k, t in models.items()}
    assert worker_accuracy(swapped, fed, task, 40) == own
