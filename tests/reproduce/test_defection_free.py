"""The MNIST experiment of two firms: its data and its pictures; the run itself takes minutes."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure

from coterie.datasets.files import is_available
from coterie.incentives import RevenueLedger
from coterie.reproduce.defection_free import ALWAYS, Labels, defection_free_figure, sharing_figure, table, two_firms


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


def test_the_table_and_the_pictures() -> None:
    book = RevenueLedger().record(0.1, 0.3).record(0.12, 0.31).record(0.2, 0.5)
    books = dict.fromkeys(ALWAYS, book)
    assert table(books).loc["at the start", "q_high"] == 0.3
    assert table(books).loc["both share everything", "q_low"] == 0.2
    for figure in (sharing_figure(books, ALWAYS[1:]), defection_free_figure(book)):
        assert isinstance(figure, Figure)
        assert all(ax.get_ylim()[0] == 0 for ax in figure.axes)
