"""Groups of very different sizes: the table, and the study on its smallest world where MNIST is at hand."""

import pytest

from coterie.datasets.files import is_available
from reproductions.experiment import Records
from reproductions.lopsided import WORLDS, cells, one, table


def test_the_table_counts_runs_that_were_right() -> None:
    def run(ari: float, large: float, others: float) -> dict[str, float]:
        return {"ari": ari, "ari_large": large, "ari_others": others, "accuracy": 0.5}

    found = Records(
        "paper",
        {
            ".7/.1/.1/.1/updates": {"0": run(1, 1, 1), "1": run(0.9, 1, 0.9)},
            ".7/.1/.1/.1/random": {"0": run(0.2, 0.3, 0.99)},
        },
    )
    (line,) = table(found).to_dict("records")
    assert line["groups"] == ".7/.1/.1/.1"
    assert line["from updates: right"] == "1 of 2 (2 among clients with eight rows or more)"
    assert line["from updates: index ± s.e."] == "0.95 ± 0.05"
    assert line["random: right"] == "0 of 1 (1 without the odd clients)"


def test_every_world_is_measured_from_updates() -> None:
    assert {name for name, start in cells("paper").values() if start == "updates"} == set(WORLDS)


@pytest.mark.skipif(not is_available("mnist.npz"), reason="needs mnist.npz in COTERIE_DATA")
def test_a_small_group_is_found_beside_a_large_one() -> None:
    assert one(WORLDS[".85/.05×3"], "updates", 300, rounds=3)["ari"] > 0.95
