"""The larger data files are optional: tests that need them say so when they skip."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture
def data_folder() -> Path:
    folder = os.environ.get("COTERIE_DATA")
    if not folder or not (Path(folder) / "mnist.npz").is_file():
        pytest.skip("set COTERIE_DATA to the folder with mnist.npz, femnist.npz, … to run this test")
    return Path(folder)
