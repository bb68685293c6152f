"""A cache folder: entries by key, for as long as it can be trusted, read and written. It never stops the work.

A folder that must not be trusted, or that cannot be written, costs one warning; the latter is still read.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

from onekernel.jit.cache import files
from onekernel.jit.cache.entry import Damaged, Entry, Label
from onekernel.jit.cache.eviction import Eviction
from onekernel.jit.cache.lock import best_effort_lock
from onekernel.jit.cache.trust import rights, trusted

LOCKS = ".locks"
LOCK_SECONDS = 60.0  # then build anyway: a slow network folder must not stop a server


def remove_dead_locks(folder: Path) -> None:
    """Remove the files of locks that nobody holds: of processes that died."""
    with contextlib.suppress(OSError):
        for path in (folder / LOCKS).iterdir():
            with best_effort_lock(path, seconds=0):
                pass


class KernelFolder:
    """Entries in a folder, which need not exist yet; `limit` is the size in bytes, None for none."""

    def __init__(self, path: Path, limit: int | None = None) -> None:
        self.path = path
        self._eviction = Eviction(path, limit)
        self._readable = self._writable = True

    def read(self, label: Label) -> Entry | None:
        """Return an intact entry, or None; the entry counts as used now."""
        if not self._may_read():
            return None
        path = self.path / label.folder
        try:
            entry = files.read(path, trusted)
        except Damaged:
            return None
        files.touch(path)
        return entry

    def write(self, entry: Entry) -> bool:
        """Keep an entry, in the place of what is there; False where that cannot be."""
        if not self._writable or not self._may_read():
            return False
        path = self.path / entry.label.folder
        try:
            modes = self._prepare()
            if path.is_symlink() or (path.exists() and not trusted(path.stat())):
                files.discard(path)
            size = files.write(path, entry, modes)
        except OSError as problem:
            self._writable = False
            self._warn(f"cannot be written ({problem}); new kernels stay in memory")
            return False
        self._eviction.wrote(path, size)
        return True

    @contextlib.contextmanager
    def locked(self, key: str) -> Iterator[None]:
        """Keep other processes from building a key; best effort, so that no lock can ever stop the work."""
        with contextlib.ExitStack() as stack:
            if self._writable and self._may_read():
                with contextlib.suppress(OSError):
                    folder_mode, file_mode = self._prepare()
                    locks = self.path / LOCKS
                    if not locks.is_dir():
                        locks.mkdir(mode=0o700, exist_ok=True)
                        locks.chmod(folder_mode)
                    stack.enter_context(best_effort_lock(locks / key, seconds=LOCK_SECONDS, mode=file_mode))
            yield

    def _prepare(self) -> tuple[int, int]:
        """Make the folder, for this user only, unless it is there; return the modes for what goes into it."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return rights(self.path.stat())

    def _may_read(self) -> bool:
        with contextlib.suppress(OSError):
            if self._readable and not trusted(os.stat(self.path)):
                self._readable = False
                self._warn(
                    "belongs to another user or can be written by all: it is not used, and kernels stay in memory;"
                    " correct its owner or mode, or name another in ONEKERNEL_CACHE"
                )
        return self._readable

    def _warn(self, what: str) -> None:
        warnings.warn(f"kernel cache {self.path} {what}", stacklevel=4)
