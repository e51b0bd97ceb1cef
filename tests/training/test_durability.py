"""Runs that are stopped, that cannot write, or that meet another run in their folder."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import coterie as ct
from coterie.base import disk
from coterie.base.tree import flatten
from coterie.exchange.messages import Cohort, Exchange
from coterie.training import checkpoint
from coterie.training.explosion import explosion
from coterie.training.run import Run, begin_local

SGD = ct.LocalSGD(steps=2, lr=0.1, batch_size=8)

CHILD = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # where the parent ignores it
import numpy as np, torch
import coterie as ct
from coterie.training.run import Run
torch.set_num_threads(1)
rng = np.random.default_rng(0)
fed = ct.Federation.from_arrays({i: (rng.normal(size=(12, 3)), np.arange(12) % 2) for i in range(4)})
task = ct.Task(lambda: torch.nn.Linear(3, 2))
save = Run.save
def told(self):
    save(self)
    print("saved", self.done, flush=True)
Run.save = told
def row(row, state):
    print("round", row["round"], flush=True)
    sys.stdin.readline()  # the parent says when the round may end
"""


def child(tail: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD + textwrap.dedent(tail)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def said(process: subprocess.Popen[str], line: str) -> None:
    """Wait for the child's line; a child that ends without it fails the test."""
    assert process.stdout is not None
    for got in process.stdout:
        if got.strip() == line:
            return
    pytest.fail(f"the child ended without {line!r}: {process.stderr.read() if process.stderr else ''}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_a_signal_finishes_the_round_saves_and_exits_cleanly(number: signal.Signals, tmp_path: Path) -> None:
    process = child(
        f"""
        result = ct.fit(ct.FedAvg(ct.LocalSGD(steps=1)), fed, task, rounds=1000, out={str(tmp_path)!r},
                        checkpoint_every=2, alone=False, callbacks=[row])
        print(result.about["rounds"], result.about["finished"], len(result.history))
        """
    )
    try:
        assert process.stdin is not None
        said(process, "round 1")
        process.stdin.write("\n")
        process.stdin.flush()
        said(process, "round 2")
        process.stdin.write("\n")
        process.stdin.flush()
        said(process, "saved 2")
        said(process, "round 3")  # now it waits in the middle of round 3
        process.send_signal(number)
        out, err = process.communicate("\n")
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert out.split() == ["saved", "3", "3", "False", "3"]
    assert "Finishing this round" in err
    _, about = checkpoint.read(tmp_path / checkpoint.FILE)
    assert about["done"] == len(about["history"]) == 3
    assert ct.Result.load(tmp_path).about["rounds"] == 3


def test_a_run_that_saves_nothing_leaves_sigterm_alone(fed: ct.Federation, task: ct.Task, tmp_path: Path) -> None:
    before, seen = signal.getsignal(signal.SIGTERM), []
    for out in (None, tmp_path):
        note = [lambda row, state: seen.append(signal.getsignal(signal.SIGTERM) is before)]
        ct.fit(ct.Local(SGD), fed, task, rounds=1, out=out, alone=False, callbacks=note)
    assert seen == [True, False]
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_process_in_the_folder_gets_one_sentence(fed: ct.Federation, task: ct.Task, tmp_path: Path) -> None:
    process = child(
        f"""
        ct.fit(ct.FedAvg(ct.LocalSGD(steps=1)), fed, task, rounds=1, out={str(tmp_path)!r}, alone=False, callbacks=[row])
        """
    )
    options: dict[str, Any] = {"rounds": 1, "out": tmp_path, "alone": False}
    try:
        said(process, "round 1")
        for more in ({}, {"overwrite": True}):
            with pytest.raises(ct.errors.ConfigError, match=rf"in use by another run \(process {process.pid}\)"):
                ct.fit(ct.FedAvg(SGD), fed, task, **options, **more)
    finally:
        process.kill()
        process.communicate()
    assert ct.fit(ct.FedAvg(SGD), fed, task, **options).about["finished"]  # a dead process holds nothing
    assert not (tmp_path / disk.LOCK).exists()


# ---- where files cannot be written -----------------------------------------------------------------------------------


def test_a_folder_that_cannot_be_written_is_said_before_the_first_round(
    fed: ct.Federation, task: ct.Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Run) -> Any:
        raise AssertionError("a round was run")

    monkeypatch.setattr(Run, "one_round", refuse)
    (tmp_path / "file").touch()
    with pytest.raises(ct.errors.ConfigError, match="cannot be written: a part of the path is a file"):
        ct.fit(ct.Local(SGD), fed, task, rounds=1, out=tmp_path / "file" / "run")
    real = os.open

    def closed(path: Any, *args: Any, **options: Any) -> int:
        if str(path).endswith(disk.LOCK):
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return real(path, *args, **options)

    monkeypatch.setattr(os, "open", closed)
    with pytest.raises(ct.errors.ConfigError, match=r"the disk is read-only\. Choose another folder"):
        ct.fit(ct.Local(SGD), fed, task, rounds=1, out=tmp_path / "run")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_one_sentence(fed: ct.Federation, task: ct.Task, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ct.errors.ConfigError, match="writing there is not allowed"):
        ct.fit(ct.Local(SGD), fed, task, rounds=1, out=tmp_path)


def test_a_disk_that_fills_up_keeps_the_last_checkpoint(
    fed: ct.Federation, task: ct.Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file size limit stands for the full disk: the writer in Rust gets the operating system's own error."""
    ct.fit(ct.Local(SGD), fed, task, rounds=1, out=tmp_path, alone=False)
    kept = (tmp_path / checkpoint.FILE).read_bytes()
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(kept) // 2, limit[1]))
    try:
        with pytest.raises(ct.errors.ConfigError, match=rf"{checkpoint.FILE} cannot be written: .*\."):
            ct.fit(ct.Local(SGD), fed, task, rounds=2, out=tmp_path, alone=False, resume=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, before)
    assert (tmp_path / checkpoint.FILE).read_bytes() == kept
    assert not list(tmp_path.glob("*.partial"))
    assert ct.fit(ct.Local(SGD), fed, task, rounds=2, out=tmp_path, alone=False, resume=True).about["rounds"] == 2


def test_no_free_file_handle_is_one_sentence(fed: ct.Federation, task: ct.Task, tmp_path: Path) -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare = os.open(os.devnull, os.O_RDONLY)
    os.close(spare)
    resource.setrlimit(resource.RLIMIT_NOFILE, (spare, limit[1]))
    try:
        with pytest.raises(ct.errors.ConfigError, match="too many files are open"):
            ct.fit(ct.Local(SGD), fed, task, rounds=1, out=tmp_path / "run")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)


def test_all_files_of_a_run_have_equal_modes(fed: ct.Federation, task: ct.Task, tmp_path: Path) -> None:
    ct.fit(ct.Local(SGD), fed, task, rounds=1, out=tmp_path, alone=False)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert len(modes) == 5
    assert len(set(modes.values())) == 1, modes


def test_rounds_and_history_agree_when_a_callback_fails(
    fed: ct.Federation, task: ct.Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[Run] = []
    begin = Run.begin

    def noted(self: Run, **options: Any) -> None:
        runs.append(self)
        begin(self, **options)

    def fails(row: dict[str, Any], state: Any) -> None:
        if row["round"] == 2:
            raise RuntimeError("mine")

    monkeypatch.setattr(Run, "begin", noted)
    with pytest.raises(RuntimeError, match="mine"):
        ct.fit(ct.Local(SGD), fed, task, rounds=3, callbacks=[fails])
    assert runs[0].done == len(runs[0].history) == 2


# ---- explosions ------------------------------------------------------------------------------------------------------


def test_a_loss_that_explodes_and_stays_is_said() -> None:
    assert "rose from 0.7 at the start to 4e+30 in round 2" in explosion([0.6, 4e30, 5e5], 0.7)["warnings"][0]
    nan = float("nan")
    for losses in ([0.6, 0.5], [0.6, 4e30, 0.7], [0.6, 5e5, 5e5], [nan, nan], [], [0.0, 1e-3]):
        assert explosion(losses, 0.7) == {}, losses
    assert explosion([1.0], 0.0) == {}  # a perfect start is no yardstick
    assert explosion([2.0, nan], 0.0)


def test_a_run_that_exploded_says_so_in_the_result_and_on_the_terminal(
    make_fed: Any, number_task: ct.Task, tmp_path: Path
) -> None:
    from rich.console import Console

    from coterie.report.terminal import result_tables

    fed = make_fed(kind="regression")
    wild, tame = (ct.FedAvg(ct.LocalSGD(steps=1, lr=lr, batch_size=None)) for lr in (1e4, 0.1))
    result = ct.fit(wild, fed, number_task, rounds=3, out=tmp_path, alone=False)
    (told,) = result.about["warnings"]
    assert told.startswith("The training exploded: the loss rose from ")
    assert ct.Result.load(tmp_path).about["warnings"] == [told]
    console = Console(record=True, width=400, file=open(os.devnull, "w"))  # noqa: SIM115
    for part in result_tables(result):
        console.print(part)
    console.file.close()
    assert told in console.export_text()
    assert "warnings" not in ct.fit(tame, fed, number_task, rounds=3, alone=False).about
    assert torch.isfinite(result.state.model["weight"]).all()


@dataclass(frozen=True)
class FailsLater(ct.Local):
    """Its server fails in the second round, when the clients have trained already."""

    def round(self, state: Any, cohort: Cohort) -> Exchange[Any]:
        after = yield from super().round(state, cohort)
        if cohort.round == 1:
            raise OSError("the disk is gone")
        return after


def test_a_round_that_fails_leaves_server_and_clients_as_they_were(fed: ct.Federation, task: ct.Task) -> None:
    run = begin_local(FailsLater(SGD), fed, task, 0, ct.engines.LocalEngine(workers=1))
    run.one_round()
    state, before = run.state, {k: t.clone() for k, t in flatten(run.env.states.packed()[1]).items()}
    assert before
    with pytest.raises(OSError, match="the disk is gone"):
        run.one_round()
    after = flatten(run.env.states.packed()[1])
    assert all(torch.equal(after[k], t) for k, t in before.items())
    assert run.state is state
    assert (run.done, len(run.history)) == (1, 1)
