"""The attack table: what is planned, what the table averages, and one robust run where MNIST is at hand."""

import numpy as np
import pytest

from coterie.datasets.files import is_available
from reproductions import attacks as study
from reproductions.experiment import Records


def test_the_table_has_a_row_per_share_and_method_and_a_column_per_attack() -> None:
    found = Records(
        "paper",
        {
            "none/30 %/IFCA": {"0": {"accuracy": 0.5, "ari": 1.0}, "1": {"accuracy": 0.7, "ari": 1.0}},
            "noise/30 %/IFCA": {"0": {"accuracy": 0.1, "ari": 0.0}},
            "none/10 %/Local": {"0": {"accuracy": 0.4, "ari": 0.0}},
        },
    )
    lines = study.table(found).to_dict("records")
    assert lines[0] == {"share of liars": "30 %", "method": "IFCA", "none": "0.60", "noise": "0.10"}
    assert lines[1] == {"share of liars": "10 %", "method": "Local", "none": "0.40", "noise": ""}


def test_nobody_attacks_local_models_and_the_slow_method_is_attacked_once() -> None:
    assert study.planned("none", "10 %", "Local")
    assert not study.planned("noise", "10 %", "Local")
    assert study.planned("edge of the ball", "30 %", study.SLOW)
    assert not study.planned("edge of the ball", "10 %", study.SLOW)
    assert not study.planned("noise", study.CAPTURED, "IFCA")


@pytest.mark.skipif(not is_available("mnist.npz"), reason="needs mnist.npz in COTERIE_DATA")
def test_a_third_of_liars_breaks_ifca_and_not_its_robust_form() -> None:
    data = study.federation(study.WORLD, 5)
    liars = study.chosen_liars(data, "30 %")
    truth = np.asarray(data.clusters)
    assert np.bincount(truth).tolist() == [10, 10, 10]
    assert np.bincount(truth[np.isin(data.clients, liars)]).tolist() == [3, 3, 3]
    plain, robust = (study.one("sign flip ×3", "30 %", method, 5) for method in ("IFCA", "IFCA, mixing and median"))
    assert robust["ari"] == 1
    assert robust["accuracy"] > plain["accuracy"] + 0.2
