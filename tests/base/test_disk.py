"""Files are whole or absent, whatever fails; one process at a time uses a folder."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.base import disk
from coterie.errors import ConfigError

HOLD = """
import sys
from pathlib import Path
from coterie.base.disk import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_written_file_is_whole_and_has_the_modes_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        disk.write_text(tmp_path / "new" / "a.txt", "straße")
        with disk.writing(tmp_path / "new" / "b.bin") as partial:
            partial.unlink()
            handle = os.open(partial, os.O_WRONLY | os.O_CREAT, 0o600)  # as some libraries make their files
            os.close(handle)
    finally:
        os.umask(before)
    assert (tmp_path / "new" / "a.txt").read_text("utf-8") == "straße"
    assert [(tmp_path / "new" / n).stat().st_mode & 0o777 for n in ("a.txt", "b.bin")] == [0o640, 0o640]
    assert names(tmp_path / "new") == ["a.txt", "b.bin"]


def test_file_then_name_then_folder_reach_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    flush, move = os.fsync, os.replace

    def fsync(handle: int) -> None:
        told.append("folder" if os.path.isdir(f"/proc/self/fd/{handle}") else "file")
        flush(handle)

    def replace(a: Any, b: Any) -> None:
        told.append("name")
        move(a, b)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    disk.write_text(tmp_path / "a", "x")
    assert told == ["file", "name", "folder"]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EROFS, "read-only"),
        (errno.EMFILE, "too many files"),
        (errno.EACCES, "not allowed"),
    ],
)
def test_a_failed_write_is_one_sentence_and_leaves_the_old_file(
    code: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.write_text(tmp_path / "a", "old")

    def fail(handle: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(ConfigError, match=rf"a cannot be written: .*{words}.*\."):
        disk.write_text(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text() == "old"
    assert names(tmp_path) == ["a"]


def test_errors_of_libraries_not_written_in_python_are_understood(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="disk is full"), disk.writing(tmp_path / "a"):
        raise RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")
    with pytest.raises(KeyError), disk.writing(tmp_path / "a"):  # a mistake in the code is no failed write
        raise KeyError("x")
    assert names(tmp_path) == []


def test_a_folder_is_held_by_one_process_and_freed_when_it_is_killed(tmp_path: Path) -> None:
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(ConfigError, match=rf"in use by another run \(process {other.pid}\)"), disk.locked(tmp_path):
            pass
    finally:
        other.kill()
        other.communicate()
    assert (tmp_path / disk.LOCK).exists()  # the file of the dead process is still there
    (tmp_path / "b.1-2.partial").touch()
    with disk.locked(tmp_path), disk.locked(tmp_path):
        assert (tmp_path / disk.LOCK).read_text() == f"{os.getpid()}\n"
        refused: list[Exception] = []

        def another_thread() -> None:
            try:
                with disk.locked(tmp_path):
                    pass
            except ConfigError as error:
                refused.append(error)

        thread = threading.Thread(target=another_thread)
        thread.start()
        thread.join()
        assert len(refused) == 1
    assert names(tmp_path) == []


def test_digest_tells_parts_apart() -> None:
    x = np.arange(6.0)
    assert disk.digest([x, "a"]) == disk.digest([x.copy(), b"a"])
    others = (["a", x], [x.tobytes() + b"a"], [x[:5].copy(), x[5:].copy(), "a"], [x, "a", ""], [-x, "a"])
    assert len({disk.digest(parts) for parts in ([x, "a"], *others)}) == 6


def test_digest_of_many_blocks_sees_every_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "_BLOCK", 64)
    x = np.zeros(1000, np.uint8)
    seen = {disk.digest([x])}
    for i in range(0, 1000, 7):
        x[i] = 1
        seen.add(disk.digest([x]))
        x[i] = 0
    assert len(seen) == 1 + len(range(0, 1000, 7))


def test_a_patient_process_waits_for_a_folder(tmp_path: Path) -> None:
    taken, began = threading.Event(), time.monotonic()

    def hold() -> None:
        with disk.locked(tmp_path):
            taken.set()
            time.sleep(0.2)

    other = threading.Thread(target=hold)
    other.start()
    taken.wait()
    with disk.locked(tmp_path, 30.0):
        assert time.monotonic() - began >= 0.2
    other.join()


def test_private_files_and_folders_are_for_their_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        folder = disk.private_folder(tmp_path / "deep" / "secret")
        disk.write_text(folder / "a", "x", private=True)
        disk.write_text(folder / "b", "x")
        disk.write_text(folder / "b", "y", private=True)  # what was open is closed
        (folder / "c").write_text("kept")
        disk.private_file(folder / "c")
        disk.private_file(folder / "d")
        with disk.locked(tmp_path / "run", private=True):
            assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {(folder / name).stat().st_mode & 0o777 for name in "abcd"} == {0o600}
    assert (folder / "c").read_text() == "kept"
    (tmp_path / "open").mkdir(mode=0o755)
    assert disk.private_folder(tmp_path / "open").stat().st_mode & 0o777 == 0o755  # somebody chose that


@pytest.mark.parametrize("kind", ["symbolic", "hard"])
def test_a_link_in_the_place_of_the_lock_is_refused_and_its_target_kept(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "precious"
    target.write_text("data")
    (tmp_path / "out").mkdir()
    link = os.symlink if kind == "symbolic" else os.link
    link(target, tmp_path / "out" / disk.LOCK)
    refused = pytest.raises(ConfigError, match=r"run\.lock is .*; remove it, or choose another folder\.")
    with refused, disk.locked(tmp_path / "out"):
        pytest.fail("the folder was taken")
    assert target.read_text() == "data"


def test_links_are_not_written_through(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("data")
    (tmp_path / "a").symlink_to(target)
    (tmp_path / "folder").symlink_to(tmp_path)
    for write in (
        lambda: disk.write_text(tmp_path / "a", "new"),
        lambda: disk.private_file(tmp_path / "a"),
        lambda: disk.private_folder(tmp_path / "folder"),
        lambda: disk.unlinked(tmp_path / "a"),
    ):
        with pytest.raises(ConfigError, match=r"is a symbolic link, and links are not followed here"):
            write()
    partial = tmp_path / f"b.{os.getpid()}-{threading.get_ident()}{disk.PARTIAL}"
    partial.symlink_to(target)  # the name of a half-written file can be guessed
    disk.write_text(tmp_path / "b", "new")
    assert target.read_text() == "data"
    assert (tmp_path / "b").read_text() == "new"
