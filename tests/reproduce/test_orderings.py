"""Every experiment at quick scale: what the papers say about the order of methods holds, or it is known why not."""

import pytest

from coterie.datasets.files import is_available
from coterie.datasets.registry import DATASETS
from coterie.reproduce.names import EXPERIMENTS
from coterie.reproduce.registry import experiment
from coterie.reproduce.runner import finish, records, run


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::coterie.CoterieWarning")
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_papers_claims_hold_at_quick_scale(name, tmp_path):
    one = experiment(name)
    files = [DATASETS[data].file for data in one.needs]
    if not all(file is None or is_available(file) for file in files):
        pytest.skip(f"needs {', '.join(one.needs)} in the folder COTERIE_DATA")
    kept = run(one, "quick", None, tmp_path, lambda line: None)
    finish(one, kept, tmp_path)
    wrong = [f"{c.says} {c.found}" for c in one.claims(records(kept)) if not c.expected]
    assert not wrong
    assert all((tmp_path / f"{name}.{ending}").stat().st_size for ending in ("csv", "png", "svg"))
