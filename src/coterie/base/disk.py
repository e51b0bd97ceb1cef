"""Files that are whole or absent: written under another name, flushed to the disk, and moved into place.

Every writer goes through `writing`, so that a full disk, a read-only folder or a killed process never leaves half a file,
and every file gets the permissions the user's umask gives; a private one is for its owner alone (0600, folders 0700). No
symbolic link is followed in place of a file: its target is neither read nor written. `locked` lets one process at a time use
a folder. The operating system frees the lock when its process ends, however it ends, so there are no stale locks.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.base.cores import usable_cores
from coterie.base.text import listed
from coterie.errors import ConfigError, CoterieError

try:
    import fcntl
except ImportError:  # Windows: a folder is not guarded there
    fcntl = None  # type: ignore[assignment]

LOCK = "run.lock"
PARTIAL = ".partial"
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)  # absent on Windows
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


def add_lines(path: Path, lines: Iterable[str], *, private: bool = False) -> None:
    """Lines at the end of a file, which are on the disk when this returns."""
    try:
        with (private_file(path) if private else unlinked(path)).open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise cannot_write(path, error) from None


def unlinked(path: str | Path) -> Path:
    """The path, unless it is a symbolic link, which may point to a file that coterie did not write."""
    path = Path(path)
    if path.is_symlink():
        raise ConfigError(
            f"{path} is a symbolic link, and links are not followed here; remove it, or choose another folder."
        )
    return path


def private_folder(path: str | Path) -> Path:
    """A folder that its owner alone may open (0700), made if needed; an existing folder keeps its permissions."""
    path = unlinked(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from error
    return path


def private_file(path: str | Path) -> Path:
    """A file that its owner alone may open (0600), made empty if it does not exist; an existing file is kept and closed to
    others. This is for files that another library writes into."""
    path = unlinked(path)
    if not path.parent.exists():
        private_folder(path.parent)
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | _NOFOLLOW, 0o600)
        try:
            os.chmod(handle if os.chmod in os.supports_fd else path, 0o600)
        finally:
            os.close(handle)
    except OSError as error:
        raise cannot_write(path, error) from error
    return path


@contextmanager
def writing(path: str | Path, private: bool = False) -> Iterator[Path]:
    """A file to write instead of `path`; it takes the place of `path` when the block ends well, and is removed otherwise.

    A reader sees either the old file or the new one, even if the process is killed. private: the file is for its owner
    alone, as is every file in a folder that its owner alone may open."""
    path = unlinked(path)
    partial = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}{PARTIAL}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.unlink(missing_ok=True)
        closed = os.name == "posix" and not path.parent.stat().st_mode & 0o077  # as its folder is
        mode = 0o600 if private or closed else 0o666
        handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW, mode)
        mode = os.fstat(handle).st_mode & 0o777  # what the umask gives
        os.close(handle)
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


def write_text(path: str | Path, text: str, private: bool = False) -> None:
    """A text file in UTF-8, whole or absent; private: for its owner alone."""
    with writing(path, private) as partial:
        partial.write_bytes(text.encode("utf-8"))


# ---- one process at a time -------------------------------------------------------------------------------------------


@contextmanager
def locked(folder: Path | None, patience: float = 0.0, private: bool = False) -> Iterator[None]:
    """Hold a folder for this process, making it if needed; this also shows that files can be written there. private: a
    folder that is made here is for its owner alone.

    Another process waits for `patience` seconds and is then refused with one sentence. The same thread may hold the folder
    several times. If the folder is None, nothing is held."""
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
    handle = _lock(folder, time.monotonic() + patience, 0o700 if private else 0o777)
    _held[key] = 1
    try:
        yield
    finally:
        del _held[key]
        with suppress(OSError):
            (folder / LOCK).unlink(missing_ok=True)
        os.close(handle)


def _lock(folder: Path, until: float, mode: int) -> int:
    """The open lock file, with this process's number in it."""
    path = folder / LOCK
    while True:
        handle = -1
        try:
            folder.mkdir(mode, parents=True, exist_ok=True)
            handle = os.open(unlinked(path), os.O_RDWR | os.O_CREAT | _NOFOLLOW, 0o666)
            _require_own(handle, path)
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
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    except FileNotFoundError:
        return False


def _require_own(handle: int, path: Path) -> None:
    """Refuse a lock that is another file under a second name, because the lock file will be emptied."""
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(handle)
        raise ConfigError(f"{path} is not a lock file; remove it, or choose another folder.")


# ---- checksums -------------------------------------------------------------------------------------------------------


def digest(parts: Iterable[Any]) -> str:
    """A checksum over bytes, texts and C-contiguous arrays, in their order. Blocks are hashed in parallel: SHA-256 takes
    0.4 to 0.7 seconds per gigabyte and core on processors that have instructions for it."""
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


def refuse_foreign(folder: Path, mark: str, names: Iterable[str]) -> None:
    """Refuse to replace files of other programs: a folder without the file `mark` must not hold any of these names."""
    found = [] if (folder / mark).exists() else [name for name in names if (folder / name).exists()]
    if found:
        raise ConfigError(
            f"The folder of a comparison must not hold other files under its names; {folder} has {listed(found)}.",
            python="Name another folder, or move them.",
            cli="Name another folder with --out, or move them.",
        )


@dataclass(frozen=True)
class SealedFolder:
    """A folder of files and a JSON description, which is written last and holds the checksums of all. The folder is whole,
    or it is refused with an `error` whose advice is `python`, and `cli` at the command line."""

    folder: Path
    description: str
    error: type[CoterieError]
    python: str
    cli: str = ""

    def unseal(self) -> None:
        """Before the first file is written."""
        (self.folder / self.description).unlink(missing_ok=True)

    def seal(self, about: Mapping[str, Any], files: Iterable[str], plain: Callable[[Any], Any] = str) -> None:
        """After the last file is written. `plain` turns values that JSON does not know into values that it knows."""
        sums = {"files": {name: file_digest(self.folder / name) for name in files}}
        kept: dict[str, Any] = json.loads(json.dumps({**about, **sums}, default=plain))  # as it will be read
        write_text(self.folder / self.description, json.dumps(kept | {"checksum": json_digest(kept)}, indent=1))

    def about(self) -> dict[str, Any]:
        """The description; its entry "files" holds the other files' checksums, for `check`."""
        about: Any = self.read(self.description, lambda path: json.loads(path.read_text("utf-8")))
        if not isinstance(about, dict) or about.pop("checksum", None) != json_digest(about):
            raise self.damaged(self.description, "its checksum is wrong")
        return about

    def check(self, name: str, checksum: str) -> None:
        if self.read(name, file_digest) != checksum:
            raise self.damaged(name, "its checksum is wrong")

    def read(self, name: str, reader: Callable[[Path], Any]) -> Any:
        """The value that `reader` makes of a file; an error of the reader means that the file is damaged. A description may
        name anything: only files of this folder are opened, and no pipe or device, which would be read for ever."""
        if Path(name).name != name or not (self.folder / name).is_file():
            raise self.damaged(name, "it is no file of this folder")
        try:
            return reader(self.folder / name)
        except Exception as error:
            raise self.damaged(name, said(error)) from None

    def damaged(self, name: str, reason: str) -> CoterieError:
        told = f"The file {self.folder / name} is damaged: {reason}. Take it from a copy, or"
        return self.error(told, python=self.python, cli=self.cli)


def json_digest(about: Mapping[str, Any]) -> str:
    return digest([json.dumps(about, sort_keys=True)])
