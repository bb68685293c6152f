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
import threading
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from onekernel.jit.binary import Binary, Resources

SCHEMA = 1


def digest(*parts: str) -> str:
    """Hash parts so that no two different lists of parts collide."""
    return hashlib.sha256(json.dumps([SCHEMA, *parts]).encode()).hexdigest()[:32]


class KernelCache:
    """Binaries by key; `folder` None keeps them in memory only."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._writable = True
        self._memory: dict[str, Binary] = {}
        self._lock = threading.RLock()

    def get(self, name: str, key: str, text: str, build: Callable[[], Binary]) -> Binary:
        """Return the binary of a key: from memory, from disk, or by building it once."""
        with self._lock:
            found = self._memory.get(key)
            if found is None:
                found = self._read(name, key) or self._build(name, key, text, build)
                self._memory[key] = found
            return found

    def adopt(self, key: str, binary: Binary) -> None:
        """Take a binary that was built elsewhere under the same key; memory only."""
        with self._lock:
            self._memory.setdefault(key, binary)

    def entry(self, name: str, key: str) -> Path | None:
        """Return the folder of a kernel, whether or not it exists yet."""
        return None if self.folder is None else self.folder / f"{name[:60]}.{key}"

    def _build(self, name: str, key: str, text: str, build: Callable[[], Binary]) -> Binary:
        binary = build()
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
