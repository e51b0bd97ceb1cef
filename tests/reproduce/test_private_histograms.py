"""The table of private histograms at a small scale: it is resumable, and its rows are in the right order."""

import json

import pytest

from coterie.reproduce import private_histograms as table


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setitem(table.SCALES, "quick", table.Scale((2500,), tokens=100, deviation=0.8))
    monkeypatch.setattr(table, "BUDGETS", ((15.0, 1e-10),))
    monkeypatch.setattr(table, "CLUSTERS", 4)


def test_the_table_is_made_saved_and_continued(tiny, tmp_path, capsys, monkeypatch):
    path = tmp_path / "results.json"
    table.run("quick", 1, table.Results(path))
    cells = json.loads(path.read_text())

    def risk(name, budget, kind):
        return cells[f"quick n=2500 seed=0 | {name} | {budget}"][kind]

    for kind in ("plain", "tuned"):
        assert risk("oracle centres", "none", kind) <= risk("A+", "15", kind) < risk("private FedAvg", "15", kind)
        assert risk("A+", "15", kind) < risk("Alg. 3, non-private start", "15", kind)
    assert risk("private FedAvg", "15", "plain") == pytest.approx(risk("FedAvg", "none", "plain"), abs=0.01)
    monkeypatch.setattr(table, "synthetic", lambda *_: pytest.fail("a saved cell was made again"))
    table.run("quick", 1, table.Results(path))
    text = table.markdown(cells, "quick")
    assert "| A+ |" in text
    assert "2500 users, ε = 15" in text
    assert "A+" in capsys.readouterr().out
