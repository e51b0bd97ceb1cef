"""The search for neighbouring pairs: it finds nothing in what we ship, and finds what is broken."""

from __future__ import annotations

from typing import Any

import pytest
from conformance_settings import INDIVIDUAL, NAMES, configured

import coterie as ct
from coterie.engines.base import Env
from coterie.training.neighbours import search

PRIVATE = tuple(name for name in NAMES if name not in INDIVIDUAL)


def test_fedavg_passes() -> None:
    found = search(ct.FedAvg(), changes=("grown", "a class of its own"))
    assert not found.violations
    assert "no violation in 4" in found.to_text()


def test_padding_by_the_federation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What once earned a valid receipt: other clients' messages move when one client has more rows."""
    monkeypatch.setattr(Env, "apart", property(lambda self: False))
    found = search(ct.FedAvg(), changes=("grown", "other rows"))
    assert {pair.change for pair in found.violations} == {"grown"}
    assert "moved by" in found.to_text()


def test_a_shape_read_from_one_client_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.training.private_run.undeclared", lambda *_, **__: [])
    found = search(ct.FedAvg(), changes=("a class of its own",))
    assert found.violations
    assert "valid receipts differ" in found.to_text()


def test_the_command(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from coterie.cli.commands import app

    monkeypatch.chdir(tmp_path)
    told = CliRunner().invoke(app, ["privacy", "audit", "local"])
    assert told.exit_code == 0, told.output
    assert "no violation" in told.output


@pytest.mark.slow
@pytest.mark.parametrize("engine", [ct.engines.LocalEngine, ct.engines.LoopEngine])
@pytest.mark.parametrize("name", PRIVATE)
def test_every_registered_algorithm(name: str, engine: Any) -> None:
    found = search(configured(name), engine=engine)
    assert not found.violations, found.to_text()
