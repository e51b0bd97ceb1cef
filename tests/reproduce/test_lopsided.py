"""Groups of very different sizes: the table, and the study on its smallest world where MNIST is at hand."""

from pathlib import Path

import pytest

from coterie.datasets.files import is_available
from coterie.reproduce.lopsided import WORLDS, one, study, table


def test_the_table_counts_runs_that_were_right() -> None:
    about = {"world": {"shares": [1.0]}, "accuracy": 0.5}
    records = {
        ".7/.1/updates/0": about | {"ari": 1.0, "ari_large": 1.0, "ari_others": 1.0},
        ".7/.1/updates/1": about | {"ari": 0.9, "ari_large": 1.0, "ari_others": 0.9},
        ".7/.1/random/0": about | {"ari": 0.2, "ari_large": 0.3, "ari_others": 0.99},
    }
    found = table(records).set_index(["world", "start"])
    assert found.loc[(".7/.1", "updates"), ["runs", "right", "right_large", "right_others"]].tolist() == [2, 1, 2, 1]
    assert found.loc[(".7/.1", "random"), ["runs", "right", "right_large", "right_others"]].tolist() == [1, 0, 0, 1]


@pytest.mark.skipif(not is_available("mnist.npz"), reason="needs mnist.npz in COTERIE_DATA")
def test_a_small_group_is_found_beside_a_large_one(tmp_path: Path) -> None:
    world = WORLDS[".85/.05×3"]
    assert one(world, "updates", 300, rounds=3)["ari"] > 0.95


@pytest.mark.skipif(not is_available("mnist.npz"), reason="needs mnist.npz in COTERIE_DATA")
@pytest.mark.slow
def test_the_study_goes_on_where_it_ended(tmp_path: Path) -> None:
    out = tmp_path / "lopsided.json"
    first = study(range(1), out, only="equal, 20")
    assert study(range(1), out, only="equal, 20") == first
    assert len(first) == 2
