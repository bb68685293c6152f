"""Built kernels of a saved model: a folder of entries as the cache keeps them.

A kernel is used again only under the same key, which covers text, headers, options, architecture and compiler;
anything else is compiled from the chain. It knows builds and keys; the files are jit.cache's.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from onekernel import jit
from onekernel.fusion.kernel import Build
from onekernel.jit import cache
from onekernel.jit.build import label_of


def write(folder: Path, builds: Iterable[Build]) -> None:
    """Write one entry for each build. Raises OSError."""
    folder.mkdir()
    for build in builds:
        entry = cache.Entry(label_of(build.request), str(build.request), build.binary)
        cache.write(folder / entry.label.folder, entry)


def adopt(folder: Path) -> int:
    """Offer every intact entry of a folder to the compiler's cache; returns how many."""
    adopted = 0
    for path in sorted(folder.glob("*/")):
        try:
            entry = cache.read(path)
        except cache.Damaged:
            continue  # it is compiled again
        jit.adopt(entry)
        adopted += 1
    return adopted
