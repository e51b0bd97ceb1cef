"""Table 2.1's loss is what the right label lacks of probability 1, and every look of a run is kept."""

import numpy as np
import pytest
import torch

from reproductions.experiment import Records
from reproductions.werner_mnist import ON_P, PAPER, TASKS, claims, lacking, missed, rows


def test_missed_is_one_less_the_probability_of_the_label():
    outputs = torch.log(torch.tensor([[0.7, 0.2, 0.1], [0.3, 0.3, 0.4]]))
    assert lacking(outputs, torch.tensor([0, 2])).tolist() == pytest.approx([0.3, 0.6])
    assert float(missed(outputs, torch.tensor([0, 2]))) == pytest.approx(0.45)


def test_a_look_of_every_run_and_the_last_one_in_the_table():
    one = {"round": [20, 40, 80], "accuracy": [10.0, 20.0, 30.0], "missed": [0.9, 0.8, 0.7], "loss": [2.0, 1.5, 1.0]}
    seeds = ("0", "1", "2")
    cells = {f"{t}, {m}": dict.fromkeys(seeds, one | {"clusters": [0.5, 0.7, 1.0]}) for t in TASKS for m in PAPER[t]}
    cells |= {f"{t}, {m}{ON_P}": {**cells[f"{t}, {m}"]} for t in TASKS for m in ("Local", "IFCA")}
    found = Records("paper", cells)
    shown = {row.what: row.mean for row in rows(found)}
    assert shown["rotation, FC: accuracy"] == 30.0
    assert shown["rotation, FC: 1 − p of the label"] == pytest.approx(0.7)
    assert shown["rotation, KNN: cross-entropy"] == 1.0
    worse = one | {"accuracy": [5.0, 20.0, 31.0], "clusters": [0.5, 0.7, 1.0]}
    cells["rotation, IFCA"] = dict.fromkeys(seeds, worse)
    better = claims(Records("paper", cells))[1]
    assert better.refuted
    assert "it has 10.0, 20.0, 30.0, Local 10.0, 20.0, 30.0 (rotation)" in better.unlike
    assert np.isfinite([row.mean for row in rows(found)]).all()
