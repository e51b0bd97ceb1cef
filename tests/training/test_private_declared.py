"""What a private run's receipt says of declarations and callbacks, also after the run was broken off and resumed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import coterie as ct
from coterie.cli.commands import main
from coterie.cli.config import start
from coterie.errors import ConfigError
from coterie.privacy import non_private, public

pytestmark = pytest.mark.filterwarnings("ignore::coterie.errors.CoterieWarning")
EXACT = ct.Privacy(3.0, 1e-6, clip=0.5)
FEDAVG = ct.FedAvg(local=ct.LocalSGD(steps=1, lr=0.1, batch_size=None))


@pytest.fixture(scope="module")
def fed() -> ct.Federation:
    rng = np.random.default_rng(0)
    rows = {f"c{i}": (rng.normal(size=(8, 3)), np.arange(8) % 2) for i in range(12)}
    return ct.Federation.from_arrays(rows, classes=public([0, 1]))


def run(fed: ct.Federation, **options: Any) -> ct.Result:
    how: dict[str, Any] = {"rounds": 3, "alone": False, "progress": False, "privacy": EXACT}
    return ct.fit(FEDAVG, fed, **how | options)


def test_a_start_that_was_declared_public_is_listed(fed: ct.Federation) -> None:
    plain = run(fed)
    start = {name: t.clone() for name, t in plain.evaluation.env.initial.items()}
    given = run(fed, start=public(start)).receipt
    assert given is not None
    assert given.valid
    assert "declared public by the user: the start" in given.public
    assert plain.receipt is not None
    assert "declared public by the user: the start" not in plain.receipt.public


@pytest.mark.parametrize("rate", [1e-30, 1e-7])
def test_a_cohort_so_small_that_delta_alone_permits_clear_updates_is_refused(fed: ct.Federation, rate: float) -> None:
    with pytest.raises(ConfigError, match="no noise would be needed"):
        run(fed, cohort=rate)


def test_a_callback_that_broke_a_run_off_voids_the_resumed_one_too(fed: ct.Federation, tmp_path: Path) -> None:
    """It may have done so by clear values, and the resumed run is a round short then."""

    def broken_off(run: Any) -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        run(fed, out=tmp_path, callbacks=[broken_off])
    receipt = run(fed, out=tmp_path, resume=True).receipt
    assert receipt is not None
    assert not receipt.valid
    assert "broken_off" in receipt.reasons[0]


def test_what_was_declared_before_a_resume_stays_listed(fed: ct.Federation, tmp_path: Path) -> None:
    seen: list[int] = []

    def mine(run: Any) -> None:
        seen.append(run.done)
        if len(seen) == 2:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        run(fed, out=tmp_path, callbacks=[public(mine)])
    receipt = run(fed, out=tmp_path, resume=True).receipt
    assert receipt is not None
    assert receipt.valid
    assert receipt.public.count("declared public by the user: the callback mine") == 1


def test_declaring_a_value_public_does_not_wash_its_history_off() -> None:
    clear = non_private([1.0], "from clear rows")
    assert public(clear) is clear
    assert public(public(3)).value == 3


def test_what_a_network_is_found_to_be_does_not_tell_how_many_rows_there_are() -> None:
    def alone(rows: int) -> bool:
        task = ct.Task(lambda: nn.Sequential(nn.Linear(3, 2), nn.Softmax(0)))
        data = {i: (np.eye(rows if i == 0 else 1, 3), np.zeros(rows if i == 0 else 1, int)) for i in range(3)}
        task.check(ct.Federation.from_arrays(data, classes=public([0, 1])), look=False)
        return task.alone

    assert alone(1) == alone(3)


@pytest.mark.parametrize("change", [lambda t: t.numpy(), lambda t: t.long(), lambda t: t[:1]])
def test_a_start_that_does_not_fit_is_refused_in_one_sentence(fed: ct.Federation, change: Any) -> None:
    start = {name: change(t) for name, t in ct.Task.default(fed).init(0).items()}
    with pytest.raises(ConfigError, match="start needs a floating-point tensor"):
        run(fed, start=public(start))


def test_seeds_on_splits_of_clear_rows_are_remembered() -> None:
    rng = np.random.default_rng(5)
    rows = {f"c{i}": (rng.normal(size=(8, 3)), np.arange(8) % 2) for i in range(12)}

    def split(seed: int) -> ct.Federation:
        return ct.Federation.from_arrays(rows, classes=public([0, 1]), seed=seed)

    ct.fit_seeds(FEDAVG, split, seeds=[1], rounds=1, alone=False, progress=False)
    receipt = run(split(2)).receipt
    assert receipt is not None
    assert "fit_seeds" in receipt.reasons[0]


@pytest.mark.skipif(os.name != "posix", reason="other systems have no such modes")
def test_the_folder_of_a_private_run_is_for_its_owner_alone(fed: ct.Federation, tmp_path: Path) -> None:
    """Beside the release it holds clients' states, clear scores and the ledger."""
    old = os.umask(0o022)
    try:
        run(fed, out=tmp_path / "new" / "run")
        (tmp_path / "own").mkdir()
        run(fed, out=tmp_path / "own")  # its owner chose the mode
        run(fed, out=tmp_path / "plain", privacy=None)
        (tmp_path / "run.toml").write_text(CONFIG)
        start(tmp_path / "run.toml", out=tmp_path / "command")
    finally:
        os.umask(old)
    for folder in (tmp_path / "new" / "run", tmp_path / "command"):
        assert (folder / "receipt.json").exists()
        assert not [p for p in (folder, *folder.iterdir()) if p.stat().st_mode & 0o077]
    assert {(tmp_path / name).stat().st_mode & 0o777 for name in ("own", "plain", "new")} == {0o755}


def test_a_receipt_is_that_of_the_result_beside_it(
    fed: ct.Federation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plain run, a run of other rounds, and a run without its receipt."""
    run(fed, out=tmp_path / "private")
    run(fed, out=tmp_path / "shorter", rounds=1)
    run(fed, out=tmp_path / "plain", privacy=None)
    assert ct.Result.load(tmp_path / "private").receipt.valid  # type: ignore[union-attr]
    assert receipt_command(tmp_path / "private") == 0
    for name, why in (("shorter", "its checksum is wrong"), ("plain", "is not of the result beside it")):
        shutil.copy(tmp_path / "private" / "receipt.json", tmp_path / name / "receipt.json")
        with pytest.raises(ConfigError, match=why):
            ct.Result.load(tmp_path / name)
        capsys.readouterr()
        assert receipt_command(tmp_path / name) == receipt_command(tmp_path / name / "receipt.json") == 2
        assert "PRIVACY RECEIPT" not in capsys.readouterr().out
    (tmp_path / "private" / "receipt.json").unlink()
    with pytest.raises(ConfigError, match="damaged"):
        ct.Result.load(tmp_path / "private")


def receipt_command(place: Path) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["privacy", "receipt", str(place)])
    return int(ended.value.code or 0)


CONFIG = """
[data]
name = "heart"
[algorithm]
name = "fedavg"
[run]
rounds = 1
[privacy]
epsilon = 3
delta = 1e-6
clip = 0.5
"""
