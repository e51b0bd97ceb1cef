"""Every experiment at quick scale: what the papers say about the order of methods holds, or it is known why not."""

import shutil

import pytest

from coterie.datasets.files import is_available
from coterie.datasets.registry import DATASETS
from reproductions.names import EXPERIMENTS
from reproductions.registry import experiment
from reproductions.runner import finish, records, run


def lacks(need):
    """Whether something an experiment names is not at hand: a data set, a file, or R."""
    if need.startswith("Rscript"):
        return shutil.which("Rscript") is None
    file = DATASETS[need].file if need in DATASETS else need if need.endswith(".npz") else None
    return file is not None and not is_available(file)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::coterie.errors.CoterieWarning")
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_papers_claims_hold_at_quick_scale(name, tmp_path):
    one = experiment(name)
    if any(lacks(need) for need in one.needs):
        pytest.skip(f"needs {', '.join(one.needs)}")
    kept = run(one, "quick", None, tmp_path, lambda line: None)
    finish(one, kept, tmp_path)
    wrong = [f"{c.says} {c.found}" for c in one.claims(records(kept)) if not c.expected]
    assert not wrong
    assert all((tmp_path / f"{name}.{ending}").stat().st_size for ending in ("csv", "png", "svg"))
