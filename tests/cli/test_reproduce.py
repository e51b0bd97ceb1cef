"""`coterie reproduce` runs from a checkout, and says so elsewhere."""

from pathlib import Path

import pytest

import coterie
from coterie import cli


def test_elsewhere_it_says_where_the_experiments_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(coterie, "__file__", str(tmp_path / "site-packages" / "coterie" / "__init__.py"))
    with pytest.raises(SystemExit) as stop:
        cli.main(["reproduce", "means"])
    assert stop.value.code != 0
    said = " ".join(capsys.readouterr().err.split())
    assert "not part of the installed package" in said
    assert "clone the repository" in said
    assert "Traceback" not in said
