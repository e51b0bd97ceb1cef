"""The three pictures of failing worlds."""

from pathlib import Path

import pytest

from reproductions.failing_pictures import main


def test_three_pictures_are_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["noisy.png", "stuck.png", "vanishing.png"]
    assert all(file.stat().st_size > 10_000 for file in tmp_path.iterdir())
    assert "noisy.png" in capsys.readouterr().out
