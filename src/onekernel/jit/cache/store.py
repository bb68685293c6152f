"""Where built kernels live: in memory, and one folder per kernel on disk that anyone can open.

    <cache>/<name>.<key>/kernel.cu   the text           kernel.bin   the cubin or shared library
                         build.json  resources, compiler, log, and the hash of kernel.bin

Every file is written beside its place, synced and renamed; build.json comes last and makes the entry valid. A reader
that finds a wrong hash builds again. A cache folder that cannot be written costs one warning, never an error, and is
still read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from filelock import FileLock, Timeout

from onekernel.errors import CompileError
from onekernel.jit.cache.flight import SingleFlight
from onekernel.jit.compile.binary import Binary, Resources

SCHEMA = 1
LOCK_SECONDS = 60.0  # then build anyway: a slow network folder must not stop a server


def digest(*parts: str) -> str:
    """Hash parts so that no two different lists of parts collide."""
    return hashlib.sha256(json.dumps([SCHEMA, *parts]).encode()).hexdigest()[:32]


class KernelCache:
    """Binaries by key; `folder` None keeps them in memory only."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._writable = True
        self._memory: dict[str, Binary] = {}
        self._failed: dict[str, CompileError] = {}
        self._flights = SingleFlight[Binary]()

    def get(self, name: str, key: str, text: str, build: Callable[[], Binary]) -> Binary:
        """Return the binary of a key: from memory, from disk, or by building it.

        A key is built once, however many threads and processes ask for it at a time: they share the binary or the
        CompileError, which is raised again for everyone who asks later.
        """
        found = self._memory.get(key)
        return found or self._flights.run(key, lambda: self._obtain(name, key, text, build))

    def _obtain(self, name: str, key: str, text: str, build: Callable[[], Binary]) -> Binary:
        if (failure := self._failed.get(key)) is not None:
            raise failure.with_traceback(None)
        found = self._memory.get(key) or self._read(name, key)
        if found is None:
            with self._other_processes_out(key):
                # Another process may have built it while this one waited.
                found = self._read(name, key) or self._build(name, key, text, build)
        self._memory[key] = found
        return found

    @contextlib.contextmanager
    def _other_processes_out(self, key: str) -> Iterator[None]:
        """Keep other processes from building a key; best effort, so that no lock can ever stop the work.

        The operating system frees the lock of a process that dies.
        """
        with contextlib.ExitStack() as stack:
            if self.folder is not None and self._writable:
                with contextlib.suppress(OSError, Timeout, NotImplementedError):
                    locks = self.folder / ".locks"
                    locks.mkdir(parents=True, exist_ok=True, mode=0o700)
                    stack.enter_context(FileLock(locks / key, timeout=LOCK_SECONDS, poll_interval=0.01))
            yield

    def adopt(self, key: str, binary: Binary) -> None:
        """Take a binary that was built elsewhere under the same key; memory only."""
        self._memory.setdefault(key, binary)

    def entry(self, name: str, key: str) -> Path | None:
        """Return the folder of a kernel, whether or not it exists yet."""
        return None if self.folder is None else self.folder / f"{name[:60]}.{key}"

    def _build(self, name: str, key: str, text: str, build: Callable[[], Binary]) -> Binary:
        try:
            binary = build()
        except CompileError as failure:
            self._failed[key] = failure
            raise
        entry = self.entry(name, key)
        if entry is not None and self._writable:
            try:
                _publish(entry, text, binary)
            except OSError as problem:
                self._writable = False
                warnings.warn(
                    f"kernel cache {self.folder} cannot be written ({problem}); new kernels stay in memory",
                    stacklevel=2,
                )
        return binary

    def _read(self, name: str, key: str) -> Binary | None:
        entry = self.entry(name, key)
        if entry is None:
            return None
        try:
            record = json.loads((entry / "build.json").read_bytes())
            data = (entry / "kernel.bin").read_bytes()
            if hashlib.sha256(data).hexdigest() != record["sha256"]:
                return None
            return Binary(data, Resources(**record["resources"]), record["seconds"], record["log"])
        except (OSError, ValueError, KeyError, TypeError):
            return None  # absent or damaged: build again


def _publish(entry: Path, text: str, binary: Binary) -> None:
    entry.mkdir(parents=True, exist_ok=True, mode=0o700)
    record = {
        "sha256": hashlib.sha256(binary.data).hexdigest(),
        "resources": asdict(binary.resources),
        "seconds": binary.seconds,
        "log": binary.log,
    }
    write_atomically(entry / "kernel.cu", text.encode())
    write_atomically(entry / "kernel.bin", binary.data)
    write_atomically(entry / "build.json", json.dumps(record, indent=1).encode())


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that readers see the old one or the new one, never a part."""
    handle, temporary = tempfile.mkstemp(prefix=path.name, dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
