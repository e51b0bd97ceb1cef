"""The studies run, resume and tabulate."""

import json

import pytest

from reproductions.study.__main__ import main
from reproductions.study.trained import Trained, simulate_trained


def test_a_study_resumes(tmp_path, capsys):
    out = tmp_path / "null.json"
    given = ["null", "--only", "noise r20", "--out", str(out)]
    assert main([*given, "--worlds", "1"]) == 0
    first = json.loads(out.read_text())
    assert main([*given, "--worlds", "2", "--figure", str(tmp_path / "null.svg")]) == 0
    both = json.loads(out.read_text())
    assert len(first) == 1
    assert len(both) == 2
    assert both[next(iter(first))] == next(iter(first.values()))
    assert "noise r20" in capsys.readouterr().out
    assert (tmp_path / "null.svg").stat().st_size > 1000


def test_the_study_of_a_continuum_tells_what_the_reference_changes(tmp_path, capsys):
    out = tmp_path / "continuum.json"
    assert main(["continuum", "--only", "r20", "--worlds", "1", "--first-seed", "3", "--out", str(out)]) == 0
    found = {record["world"].split()[0]: record for record in json.loads(out.read_text()).values()}
    assert set(found) == {"partial", "line", "even", "groups", "pair"}
    assert found["groups"]["advice"] == "groups"
    assert found["line"]["advice"] != "groups"
    assert "found again" in capsys.readouterr().out


@pytest.mark.slow
def test_the_study_of_trained_networks_knows_their_truth(tmp_path, capsys):
    """Fresh rows, not test rows: repeated units flatter the measured score alone."""
    out = tmp_path / "trained.json"
    world = Trained("repeated", "log_loss", m=3, rows=24)
    record = simulate_trained(world, 1)
    assert record["real"]["local"] == 0
    assert record["gain"]["fedavg"] < record["real"]["fedavg"]  # copies of training rows help alone in the test
    out.write_text(json.dumps({"a": record}))
    assert main(["trained", "--worlds", "0", "--out", str(out)]) == 0
    assert "wrong claims" in capsys.readouterr().out
