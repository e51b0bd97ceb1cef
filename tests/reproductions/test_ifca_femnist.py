"""Table 2 of IFCA by the authors' code: heads on frozen features, chosen by training losses, and the best of all looks."""

import numpy as np
import pytest
import torch

import coterie as ct
from coterie.algorithms.ifca import FromSplit
from coterie.datasets.files import is_available
from reproductions import ifca_femnist
from reproductions.experiment import Records
from reproductions.ifca_femnist import MANY, PAPER, RANDOM, SIZES, claims, judged, method, rows


def two_writers():
    """The first writes class 0 for large values, the second class 1; the third row of each is a test row."""
    x, y = np.array([[1.0], [2.0], [3.0]]), np.array([0, 0, 0])
    return ct.Federation.from_flat(
        np.concatenate([x, x]).astype(np.float32),
        np.concatenate([y, y + 1]),
        sizes=np.array([3, 3]),
        clients=range(2),
        n_test=np.array([1, 1]),
        kind="classification",
        classes=range(2),
        one_class="allow",
    )


def test_a_writer_is_judged_by_the_head_of_least_training_loss():
    heads = {"weight": torch.tensor([[[1.0], [-1.0]], [[-1.0], [1.0]]]), "bias": torch.zeros(2, 2)}
    right, label = judged(heads, two_writers(), None)
    assert label.tolist() == [0, 1]
    assert right.tolist() == [1.0, 1.0]
    right, label = judged(heads, two_writers(), np.array([1, 1]))  # one-shot: the head of its part, whatever its loss
    assert right.tolist() == [0.0, 1.0]


def test_every_head_trains_on_its_part_for_twenty_rounds_of_its_own():
    assert method("IFCA, k = 3", SIZES["paper"]).start == FromSplit(60)
    assert method(RANDOM, SIZES["paper"]).start == "random"
    assert method("IFCA, k = 2", SIZES["paper"]).samples_weighted


def table(**other):
    one = {"best": 70.0, "last": 69.5, "sizes": [1, 1]}
    found = dict.fromkeys((*PAPER, RANDOM, MANY), one) | {
        RANDOM: one | {"sizes": [0, 2]},
        MANY: one | {"sizes": [1] * 6},
    }
    found |= {name: one | {"best": 71.0, "last": 70.8} for name in ("IFCA, k = 2", "IFCA, k = 3")}
    found |= {"local": one | {"best": 50.0}} | other
    return Records("paper", {name: dict.fromkeys("012345", value) for name, value in found.items()})


def test_claims_can_fail():
    marks = [claim.mark for claim in claims(table())]
    assert marks == ["holds"] * 4 + ["undecided"] + ["does not hold"] * 2 + ["the paper is wrong here"]
    worse = claims(table(**{"global": {"best": 72.0, "last": 72.0, "sizes": []}}))
    assert [claim.finding for claim in worse[2:4]] == ["does not hold"] * 2
    assert len([row for row in rows(table()) if row.paper is not None]) == 7


@pytest.mark.slow
@pytest.mark.skipif(not is_available("femnist.npz"), reason="needs femnist.npz in COTERIE_DATA")
def test_frozen_features_are_those_of_the_last_but_one_layer():
    data = ifca_femnist.features("quick", 0)
    assert data.x.shape[1] == SIZES["quick"].hidden
    assert float(data.x.min()) == 0.0  # behind a ReLU
    assert data.sizes("test").tolist() == ifca_femnist.pictures("quick", 0).sizes("test").tolist()
    assert ifca_femnist.regressions("quick", 0).shape == (SIZES["quick"].writers, 62 * 784)
