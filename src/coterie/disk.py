"""Files that are whole or absent: written beside, flushed to the disk, moved into place, and the folder flushed too.

Every writer goes through `writing`, so that a full disk, a read-only folder or a killed process never leaves half a file,
and every file gets the permissions the user's umask gives. `locked` lets one process at a time use a folder. The operating
system frees the lock when its process ends, however it ends, so there are no stale locks.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from coterie.cores import usable_cores
from coterie.errors import ConfigError

try:
    import fcntl
except ImportError:  # Windows: a folder is not guarded there
    fcntl = None  # type: ignore[assignment]

LOCK = "run.lock"
PARTIAL = ".partial"
_POLL = 0.02  # seconds between two looks at a lock
_BLOCK = 1 << 26  # bytes hashed at a time
_held: dict[tuple[str, int], int] = {}  # folders locked by a thread of this process, and how many times
_REASONS = {
    errno.ENOSPC: ("the disk is full", "Free some space or choose another folder"),
    errno.EDQUOT: ("the disk quota is used up", "Free some space or choose another folder"),
    errno.EROFS: ("the disk is read-only", "Choose another folder"),
    errno.EACCES: ("writing there is not allowed", "Change the folder's permissions or choose another"),
    errno.EPERM: ("writing there is not allowed", "Change the folder's permissions or choose another"),
    errno.EMFILE: ("too many files are open", "Close some, or raise the limit with ulimit -n"),
    errno.ENFILE: ("too many files are open", "Close some, or raise the limit"),
    errno.ENOTDIR: ("a part of the path is a file", "Choose another folder"),
    errno.EEXIST: ("a part of the path is a file", "Choose another folder"),
}


def said(error: BaseException, most: int = 200) -> str:
    """The first line of an error of another library, as a part of a sentence."""
    line = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
    return line if len(line) <= most else line[: most - 1] + "…"


def cannot_write(path: Path, error: BaseException) -> ConfigError:
    """One sentence for a failed write, whichever library wrote."""
    code = getattr(error, "errno", None)
    told = re.search(r"os error (\d+)", str(error))  # libraries not written in Python give the number in their text
    if code is None and told:
        code = int(told[1])
    reason, advice = _REASONS.get(code or 0, (getattr(error, "strerror", None) or said(error), "Check the path"))
    return ConfigError(f"{path} cannot be written: {reason}. {advice}.")


@contextmanager
def writing(path: str | Path) -> Iterator[Path]:
    """A file to write instead of `path`; it takes the place of `path` when the block ends well, and is removed otherwise.

    A reader, or a process killed at any moment, sees the old file or the new one."""
    path = Path(path)
    partial = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}{PARTIAL}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(partial, "wb") as file:
            mode = os.fstat(file.fileno()).st_mode & 0o777  # what the umask gives
        yield partial
        with open(partial, "rb+") as file:
            os.chmod(partial, mode)
            os.fsync(file.fileno())
        os.replace(partial, path)
        flush_folder(path.parent)
    except BaseException as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        if isinstance(error, OSError) or "os error" in str(error):
            raise cannot_write(path, error) from error
        raise


def flush_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network disks cannot flush a folder
            raise
    finally:
        os.close(handle)


def write_text(path: str | Path, text: str) -> None:
    """A text file in UTF-8, whole or absent."""
    with writing(path) as partial:
        partial.write_bytes(text.encode("utf-8"))


# ---- one process at a time -------------------------------------------------------------------------------------------


@contextmanager
def locked(folder: Path | None, patience: float = 0.0) -> Iterator[None]:
    """Hold a folder for this process, making it if need be; this also shows that files can be written there.

    Another process waits for `patience` seconds and is then refused with one sentence. The same thread may hold it several
    times. None: nothing to hold."""
    if folder is None:
        yield
        return
    key = (str(folder.resolve()), threading.get_ident())
    if key in _held:
        _held[key] += 1
        try:
            yield
        finally:
            _held[key] -= 1
        return
    handle = _lock(folder, time.monotonic() + patience)
    _held[key] = 1
    try:
        yield
    finally:
        del _held[key]
        with suppress(OSError):
            (folder / LOCK).unlink(missing_ok=True)
        os.close(handle)


def _lock(folder: Path, until: float) -> int:
    """The open lock file, with this process's number in it."""
    path = folder / LOCK
    while True:
        handle = -1
        try:
            folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            if fcntl is not None:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not _same(handle, path):  # its owner has just finished and removed it
                    os.close(handle)
                    continue
            os.ftruncate(handle, 0)
            os.write(handle, f"{os.getpid()}\n".encode())
            os.fsync(handle)
        except BlockingIOError:
            if time.monotonic() < until:
                os.close(handle)
                time.sleep(_POLL)
                continue
            owner = os.read(handle, 20).decode("ascii", "replace").strip()
            os.close(handle)
            raise ConfigError(
                f"{folder} is in use by another run (process {owner or 'unknown'}). Wait for it, stop it, or choose "
                "another folder."
            ) from None
        except OSError as error:
            if handle >= 0:
                os.close(handle)
            raise cannot_write(folder, error) from error
        for left in folder.glob(f"*.[0-9]*-[0-9]*{PARTIAL}"):  # of a run that was killed while it wrote
            left.unlink(missing_ok=True)
        return handle


def _same(handle: int, path: Path) -> bool:
    """Whether the open file is still the one at the path."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


# ---- checksums -------------------------------------------------------------------------------------------------------


def digest(parts: Iterable[Any]) -> str:
    """A checksum over bytes, texts and C-contiguous arrays, in their order. Blocks are hashed side by side: SHA-256 takes
    0.4 to 0.7 seconds a gigabyte and core on processors that have instructions for it."""
    outer = hashlib.sha256()
    with ThreadPoolExecutor(usable_cores()) as pool:
        for part in parts:
            view = memoryview(part.encode() if isinstance(part, str) else part)
            view = view.cast("B") if view.nbytes else memoryview(b"")
            outer.update(f"{view.nbytes};".encode())
            blocks = [view[i : i + _BLOCK] for i in range(0, view.nbytes, _BLOCK)]
            for inner in pool.map(_hash, blocks) if len(blocks) > 1 else map(_hash, blocks):
                outer.update(inner)
    return outer.hexdigest()


def _hash(block: memoryview) -> bytes:
    return hashlib.sha256(block).digest()


def file_digest(path: Path) -> str:
    """The checksum of a file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
