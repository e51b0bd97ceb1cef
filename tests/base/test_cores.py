"""How many cores are used, and that a limit is kept."""

from __future__ import annotations

import os

import pytest

import coterie as ct
from coterie.base.cores import usable_cores


def test_a_limit_is_kept_and_no_more_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COTERIE_CORES", raising=False)
    there = usable_cores()
    assert 1 <= there <= (os.cpu_count() or 1)
    monkeypatch.setenv("COTERIE_CORES", "1")
    assert usable_cores() == ct.engines.LocalEngine().workers == 1
    monkeypatch.setenv("COTERIE_CORES", "1000")
    assert usable_cores() == there
    for wrong in ("0", "-1", "many", "1.5"):
        monkeypatch.setenv("COTERIE_CORES", wrong)
        with pytest.raises(ct.errors.ConfigError, match="COTERIE_CORES must be a whole number"):
            usable_cores()
