"""The table of private histograms at a small scale: its rows are in the right order."""

import pytest

from reproductions import private_histograms as table
from reproductions.experiment import Records


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(table, "TOKENS", 100)
    monkeypatch.setattr(table, "WORLDS", {"quick": ((2500, 0.8),)})
    monkeypatch.setattr(table, "BUDGETS", ((15.0, 1e-10),))
    monkeypatch.setattr(table, "CLUSTERS", 4)
    table.synthetic.cache_clear()
    yield
    table.synthetic.cache_clear()


@pytest.mark.slow
def test_the_rows_are_in_order(tiny):
    cells = table.cells("quick")
    made = {name: {"0": table.measure(cell, 0, "quick")} for name, cell in cells.items() if "IFCA" not in name}

    def risk(name, budget, kind):
        return made[f"2,500 users, deviation 0.8 | {name} | {budget}"]["0"][kind]

    for kind in ("plain", "tuned"):
        assert risk("oracle centres", "none", kind) <= risk("A+", "15", kind) < risk("private FedAvg", "15", kind)
        assert risk("A+", "15", kind) < risk("Alg. 3, non-private start", "15", kind)
    assert risk("private FedAvg", "15", "plain") == pytest.approx(risk("FedAvg", "none", "plain"), abs=0.01)
    found = Records("quick", made)
    assert all(claim.holds or claim.paper_is_wrong for claim in table.claims(found))
    assert len(table.rows(found)) == 2 * len(made) - 1
