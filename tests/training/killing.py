"""A warm process that forks runs and kills them. It imports everything once, so that a kill costs no new import.

Jobs come as lines of JSON on its standard input; for each it answers one line. A run is killed with SIGKILL after some
seconds, or at its n-th line in the files that write, book or save: the moments that matter most are short.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
import warnings
from pathlib import Path
from types import FrameType
from typing import Any

import matplotlib as mpl
import numpy as np
import pyarrow.parquet  # noqa: F401
import torch
from torch import nn

import coterie as ct
import coterie.report.page
from coterie.cli import main
from coterie.cli.reproduce import experiments
from coterie.training import checkpoint

ROUNDS, EPSILON = 6, 3.0
experiments()  # imported once
_WATCHED = (
    "coterie/base/disk.py",
    "coterie/training/checkpoint.py",
    "coterie/training/result.py",
    "coterie/privacy/ledger.py",
    "coterie/privacy/store.py",
    "coterie/comparison/files.py",
    "reproductions/runner.py",
)


def _clients() -> ct.Federation:
    rng = np.random.default_rng(0)
    data = {i: (rng.normal(size=(12, 3)), np.arange(12) % 2) for i in range(6)}
    return ct.Federation.from_arrays(data).declare_public("classes", "kind")


def _fit(folder: Path, **more: Any) -> None:
    """Start the run, or go on with it if there is something to go on with."""
    ct.fit(
        ct.FedAvg(ct.LocalSGD(steps=2, lr=0.1, batch_size=4)),
        _clients(),
        ct.Task(lambda: nn.Linear(3, 2)),
        rounds=ROUNDS,
        out=folder,
        resume=(folder / checkpoint.FILE).exists(),
        checkpoint_every=2,
        alone=False,
        progress=False,
        **more,
    )


def _command(*arguments: object) -> None:
    try:
        main([str(a) for a in arguments])
    except SystemExit as end:
        if end.code:
            raise ct.errors.CoterieError(f"the command ended with {end.code}.") from None


def plain(folder: Path) -> None:
    _fit(folder)


def private(folder: Path) -> None:
    _fit(folder, privacy=ct.Privacy(EPSILON, 1e-6, clip=1.0))


def compare(folder: Path) -> None:
    options = ("--client", "shop", "--target", "y", "--algorithms", "fedavg", "--rounds", 2, "--seeds", 1)
    _command("compare", folder.parent / "shops.csv", *options, "--out", folder)


def reproduce(folder: Path) -> None:
    _command("reproduce", "bernoulli", "--scale", "quick", "--seeds", 2, "--out", folder)


JOBS = {job.__name__: job for job in (plain, private, compare, reproduce)}
_lines = 0


def _watch(die_at: int | None) -> None:
    """Count the lines of the files that write, and die at the given one."""

    def line(frame: FrameType, event: str, _: Any) -> Any:
        global _lines
        if event == "line":
            _lines += 1
            if _lines == die_at:
                os.kill(os.getpid(), signal.SIGKILL)
        return line

    def call(frame: FrameType, event: str, _: Any) -> Any:
        return line if frame.f_code.co_filename.endswith(_WATCHED) else None

    sys.settrace(call)


def _child(job: dict[str, Any], told: int) -> None:
    """Run the job; 0: it ended, 1: it said why it cannot, 2: anything else."""
    os.dup2(told, 1)
    os.dup2(told, 2)
    code = 2
    try:
        if job["seconds"] is None:
            _watch(job["line"])
        JOBS[job["kind"]](Path(job["folder"]))
        sys.settrace(None)
        print(f"\nlines {_lines}", flush=True)
        code = 0
    except ct.errors.CoterieError as error:
        print(error, flush=True)
        code = 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


def _killed(pid: int, seconds: float | None) -> int:
    """How the child ended; after so many seconds it is killed."""
    began = time.monotonic()
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if seconds is not None and time.monotonic() - began >= seconds:
            os.kill(pid, signal.SIGKILL)
            seconds = None
        time.sleep(0.0005)


def serve() -> None:
    warnings.simplefilter("ignore")
    mpl.use("Agg")
    torch.set_num_threads(1)
    for text in sys.stdin:
        job = json.loads(text)
        with tempfile.TemporaryFile() as told:
            began = time.monotonic()
            pid = os.fork()
            if not pid:
                _child(job, told.fileno())
            code = _killed(pid, job["seconds"])
            told.seek(0)
            said = told.read().decode("utf-8", "replace")
            print(json.dumps({"code": code, "said": said, "seconds": time.monotonic() - began}), flush=True)


if __name__ == "__main__":
    serve()
