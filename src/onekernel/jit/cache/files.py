"""The files of an entry: read with suspicion, written so that a reader sees the old or the new, removed safely."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from onekernel.jit.cache.entry import LARGEST, RECORD, Damaged, Entry, decode, encode, is_folder_name
from onekernel.jit.cache.trust import anybody

ATTEMPTS = 4
Trust = Callable[[os.stat_result], bool]


@dataclass(frozen=True, order=True)
class Slot:
    """The folder of an entry, whole or not: when it was last used (seconds since the epoch), and its bytes."""

    used: float
    path: Path
    bytes: int

    @property
    def key(self) -> str:
        """The key, as the folder's name has it."""
        return self.path.suffix[1:]


def read(path: Path, trust: Trust = anybody) -> Entry:
    """Read the entry in a folder. Raises Damaged whatever is there, and whatever is not."""
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if not trust(os.fstat(folder)):
                raise Damaged("others may write in its folder")
            return decode(path.name, {name: _content(folder, name, trust) for name in LARGEST})
        finally:
            os.close(folder)
    except OSError as error:
        raise Damaged(error.strerror or str(error)) from error


def _content(folder: int, name: str, trust: Trust) -> bytes:
    # A pipe would stop an ordinary open for ever.
    with open(os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder), "rb") as file:
        info = os.fstat(file.fileno())
        if not stat.S_ISREG(info.st_mode) or info.st_size > LARGEST[name]:
            raise Damaged(f"{name} is no ordinary file, or too large")
        if not trust(info):
            raise Damaged(f"others may write {name}")
        return file.read(info.st_size)


def write(path: Path, entry: Entry, modes: tuple[int, int] = (0o755, 0o644)) -> int:
    """Write an entry into its folder and return its bytes; what is in the way is removed. Raises OSError.

    `modes` are those of the folder and of the files.
    """
    contents = encode(entry)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            _write(path, contents, modes)
            break
        except OSError as error:
            if not isinstance(error, FileNotFoundError):  # that is another process removing it: it needs no help
                discard(path)
            if attempt == ATTEMPTS:
                raise
    return sum(map(len, contents.values()))


def _write(path: Path, contents: dict[str, bytes], modes: tuple[int, int]) -> None:
    path.mkdir(mode=0o700, exist_ok=True)
    path.chmod(modes[0])
    for name, content in contents.items():
        _write_atomically(path / name, content, modes[1])


def _write_atomically(path: Path, content: bytes, mode: int) -> None:
    handle, temporary = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            os.fchmod(handle, mode)
            file.flush()
            os.fsync(handle)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def discard(path: Path) -> None:
    """Remove what is at a path as far as possible; a link is removed and never followed."""
    with contextlib.suppress(OSError):
        if path.is_symlink() or not path.is_dir():
            path.unlink()
        else:
            with contextlib.suppress(OSError):
                (path / RECORD).unlink()  # first: from here on nobody takes it for an entry
            shutil.rmtree(path, ignore_errors=True)


def slots(folder: Path) -> list[Slot]:
    """List the entries of a folder by name alone, least recently used first. What cannot be seen is left out."""
    try:
        with os.scandir(folder) as found:
            names = [item.path for item in found if is_folder_name(item.name) and item.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return sorted(slot for name in names if (slot := _slot(name)) is not None)


def _slot(path: str) -> Slot | None:
    try:
        with os.scandir(path) as found:
            files = {item.name: item.stat(follow_symlinks=False) for item in found}
        used = files[RECORD] if RECORD in files else os.stat(path)
    except OSError:  # it is being removed
        return None
    return Slot(used.st_mtime, Path(path), sum(info.st_size for info in files.values()))


def touch(path: Path) -> None:
    """Note that an entry is in use, for the one that looks for the least recently used."""
    with contextlib.suppress(OSError):
        os.utime(path / RECORD)
