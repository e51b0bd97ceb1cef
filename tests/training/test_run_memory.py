"""Memory follows the model and the chunk, not the number of clients."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MEASURE = """
import resource, sys
import numpy as np, torch
import coterie as ct
torch.set_num_threads(1)
folder, n = sys.argv[1], int(sys.argv[2])
fed = ct.Federation.load(folder)
task = ct.Task(ct.models.mlp(20, 200, 2))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
ct.fit(ct.FedAvg(ct.LocalSGD(steps=2)), fed, task, rounds=2, cohort=n, alone=False, engine=ct.engines.LocalEngine(workers=2))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.slow
def test_a_round_of_many_clients_needs_little_more_than_a_round_of_few(tmp_path: Path) -> None:
    """20,000 models of 18 kB would be 360 MB side by side; only chunks of them exist at a time."""
    import numpy as np

    import coterie as ct

    n = 20_000
    x = np.random.default_rng(0).normal(size=(4 * n, 20)).astype(np.float32)
    ct.Federation.from_flat(x, np.tile([0, 1, 0, 1], n), sizes=np.full(n, 4), clients=range(n)).save(tmp_path)

    def megabytes(cohort: int) -> float:
        command = [sys.executable, "-c", MEASURE, str(tmp_path), str(cohort)]
        return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    few, many = megabytes(1000), megabytes(n)
    assert many - few < 100, (few, many)
