"""Entries for the tests of the cache."""

from __future__ import annotations

from pathlib import Path

from onekernel.jit.cache import Entry, KernelCache, Label, digest
from onekernel.jit.compile.binary import Binary, Resources

BINARY = Binary(b"\x7fELF and some bytes\n\0", Resources(registers=7, spill_bytes=8), 0.5, "log: 'é'\n")
TEXT = '// text\nextern "C" __global__ void k() {}\n'


def label(word: str = "key", name: str = "k") -> Label:
    """Make a label whose key is that of a word."""
    return Label(digest(word), name, "sm_90", "nvrtc 13.5 --std=c++17")


def entry(word: str = "key", data: bytes = BINARY.data) -> Entry:
    """Make an entry, with its word in the text."""
    return Entry(label(word), f"// {word}\n{TEXT}", Binary(data, BINARY.resources, BINARY.seconds, BINARY.log))


def keep(folder: Path, word: str = "key", binary: Binary = BINARY) -> Path:
    """Build a kernel in a cache of its own; return the folder of the entry."""
    assert KernelCache(folder).get(label(word), TEXT, lambda: binary) == binary
    return folder / label(word).folder


def must_not_build() -> Binary:
    raise AssertionError("built again")
