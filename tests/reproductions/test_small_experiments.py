"""The experiments that take a second: they run, and what they claim holds, or it is known why not."""

import pytest

from reproductions.registry import experiment
from reproductions.runner import records, run


@pytest.mark.parametrize("name", ["means", "mixtures", "elections"])
def test_claims(name, tmp_path):
    one = experiment(name)
    kept = run(one, "quick", 1 if name != "elections" else None, tmp_path, lambda line: None)
    assert all(claim.expected for claim in one.claims(records(kept))), one.claims(records(kept))
