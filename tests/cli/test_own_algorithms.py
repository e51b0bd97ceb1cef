"""An algorithm of one's own in a configuration file: from an installed package, or from a module that its user allows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import coterie as ct
from coterie.cli.config import Config

CODE = '''
from dataclasses import dataclass
from pathlib import Path
import coterie as ct

Path(__file__).with_name("imported").touch()

@dataclass(frozen=True, kw_only=True)
class Half(ct.FedAvg):
    """FedAvg with half steps of the server."""
    server_lr: float = 0.5

class Plain:
    pass
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of Python's path with a module, and a package's entry points as an installer writes them."""
    (tmp_path / "half_steps.py").write_text(CODE)
    (tmp_path / "broken_steps.py").write_text("raise OSError('no steps')")
    info = tmp_path / "halves-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: halves\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[coterie.algorithms]\nhalf = half_steps:Half\nlost = half_steps:Lost\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "half_steps", raising=False)
    return tmp_path


def made(name: str, **options: Any) -> Any:
    return Config.parse({"data": {"name": "heart"}, "algorithm": {"name": name, **options}}).algorithm()


def test_an_installed_package_offers_its_algorithms_by_name(folder: Path) -> None:
    algorithm = made("half", server_lr=0.25, local={"steps": 2})
    assert (type(algorithm).__name__, algorithm.server_lr, algorithm.local.steps) == ("Half", 0.25, 2)
    result = ct.fit(algorithm, ct.datasets.heart(), rounds=1, alone=False)
    assert len(result.scores()) == 4


def test_a_module_is_imported_only_if_its_user_allows_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTERIE_ALGORITHMS", "others")
    with pytest.raises(ct.errors.ConfigError, match=r"you have not allowed that. .*COTERIE_ALGORITHMS=half_steps"):
        made("half_steps:Half")
    assert not (folder / "imported").exists()
    monkeypatch.setenv("COTERIE_ALGORITHMS", "others, half_steps")
    assert made("half_steps:Half").server_lr == 0.5
    assert (folder / "imported").exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("half_steps:Lost", "cannot be imported: module 'half_steps' has no attribute 'Lost'"),
        ("half_steps:Plain", "is no algorithm"),
        ("broken_steps:Half", "cannot be imported: no steps"),
        ("lost", "cannot be imported"),
        ("hafl", "is unknown. Did you mean 'half'"),
    ],
)
def test_what_cannot_be_an_algorithm_is_one_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: str
) -> None:
    monkeypatch.setenv("COTERIE_ALGORITHMS", "half_steps,broken_steps")
    with pytest.raises(ct.errors.ConfigError, match=words):
        made(name)
