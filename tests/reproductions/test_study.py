"""The studies run, resume and tabulate."""

import json

from reproductions.study.__main__ import main


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
