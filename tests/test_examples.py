"""The examples run and say what they promise."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_clusters_says_who_gains(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "clusters.py"))["main"](rounds=12)
    said = capsys.readouterr().out
    assert "Chosen: 4 clusters; 100% of the clients" in said
    assert "With in groups: " in said
