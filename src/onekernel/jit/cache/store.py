"""Built kernels by key, in memory and in a folder; one build per key over threads and processes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from onekernel.errors import CompileError
from onekernel.jit.cache.entry import Entry, Label
from onekernel.jit.cache.flight import SingleFlight
from onekernel.jit.cache.folder import KernelFolder
from onekernel.jit.compile.binary import Binary


class KernelCache:
    """Binaries by key; `folder` None keeps them in memory only. `limit` is the folder's in bytes, None for none."""

    def __init__(self, folder: Path | None, limit: int | None = None) -> None:
        self._folder = None if folder is None else KernelFolder(folder, limit)
        self._memory: dict[str, Binary] = {}
        self._failed: dict[str, CompileError] = {}
        self._flights = SingleFlight[Binary]()

    def get(self, label: Label, text: str, build: Callable[[], Binary]) -> Binary:
        """Return the binary of a key: from memory, from disk, or by building it.

        A key is built once, however many threads and processes ask for it at a time: they share the binary or the
        CompileError, which is raised again for everyone who asks later.
        """
        found = self._memory.get(label.key)
        return found or self._flights.run(label.key, lambda: self._obtain(label, text, build))

    def find(self, label: Label) -> Binary | None:
        """Return the binary of a key if it is in memory or on disk."""
        return self._memory.get(label.key) or self._read(label)

    def adopt(self, key: str, binary: Binary) -> None:
        """Take a binary that was built elsewhere under the same key; memory only."""
        self._memory.setdefault(key, binary)

    def _obtain(self, label: Label, text: str, build: Callable[[], Binary]) -> Binary:
        if (failure := self._failed.get(label.key)) is not None:
            raise failure.with_traceback(None)
        found = self._memory.get(label.key) or self._read(label)
        if found is None:
            with contextlib.nullcontext() if self._folder is None else self._folder.locked(label.key):
                # Another process may have built it while this one waited.
                found = self._read(label) or self._build(label, text, build)
        self._memory[label.key] = found
        return found

    def _read(self, label: Label) -> Binary | None:
        entry = None if self._folder is None else self._folder.read(label)
        return None if entry is None else entry.binary

    def _build(self, label: Label, text: str, build: Callable[[], Binary]) -> Binary:
        try:
            binary = build()
        except CompileError as failure:
            self._failed[label.key] = failure
            raise
        if self._folder is not None:
            self._folder.write(Entry(label, text, binary))
        return binary
