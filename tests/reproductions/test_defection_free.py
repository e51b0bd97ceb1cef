"""The MNIST experiment of two firms: its data and its pictures; the run itself takes minutes."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.datasets.files import is_available
from reproductions.defection_free import ALL, DEAL, EXPERIMENT, HIGH_SHARES, WAYS, Labels, two_firms
from reproductions.experiment import Measured, Records


@pytest.mark.skipif(not is_available("mnist.npz"), reason="mnist.npz is not in COTERIE_DATA or the cache")
@pytest.mark.parametrize(("labels", "last"), [("printed", 5), ("matched", 4)])
def test_each_firm_has_its_labels_and_half_of_the_target(labels: Labels, last: int) -> None:
    firms = two_firms(labels, evaluate=400)
    assert list(firms.n_train) == [1000, 1000]
    assert list(firms.n_test) == [200, 200]
    shares = [float((firms.train(c)[1] <= last).double().mean()) for c in firms.clients]
    assert shares == pytest.approx([0.8, 0.2])
    rows = np.concatenate([firms.train(c)[0].numpy().reshape(1000, -1) for c in firms.clients])
    assert len(np.unique(rows, axis=0)) == 2000  # no image belongs to both
    assert abs(float(firms.x.mean())) < 0.05  # normalised


def seeds(one: Measured) -> dict[str, Measured]:
    return {str(seed): one for seed in range(3)}


def test_the_table_the_claims_and_the_picture() -> None:
    shared = {"q_low": [0.1, 0.5, 0.899], "q_high": [0.3, 0.6, 0.9]}
    overtaken = {"q_low": [0.1, 0.5, 0.9], "q_high": [0.3, 0.4, 0.5]}
    still = {"q_low": [0.1, 0.1, 0.1], "q_high": [0.3, 0.6, 0.9]}
    deal = {"q_low": [0.1, 0.2, 0.37], "q_high": [0.3, 0.6, 0.99]}
    books = dict.fromkeys(WAYS, still) | {ALL: shared, HIGH_SHARES: overtaken, DEAL: deal}
    found = Records("quick", {name: seeds(one) for name, one in books.items()})
    claims = EXPERIMENT.claims(found)
    assert [claim.holds for claim in claims] == [True] * 5 + [False] * 2  # one that stands still leaves more
    for way in (ALL, HIGH_SHARES):
        other = Records("quick", {**found.values, way: seeds(still)})
        assert [claim.holds for claim in EXPERIMENT.claims(other)].count(True) == 4
    falls = found.values[DEAL]["0"] | {"q_high": [0.3, 0.9, 0.5]}
    lost = Records("quick", {**found.values, DEAL: seeds(falls)})
    assert not EXPERIMENT.claims(lost)[3].holds
    figure = EXPERIMENT.draw(found)
    assert all(ax.get_ylim()[0] == 0 for ax in figure.axes)
