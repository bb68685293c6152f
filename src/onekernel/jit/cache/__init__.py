"""Built kernels by key, in memory and on disk; one build per key over threads and processes."""

from __future__ import annotations

from onekernel.jit.cache.entry import Damaged, Entry, Label, digest
from onekernel.jit.cache.files import read, write
from onekernel.jit.cache.store import KernelCache

__all__ = ["Damaged", "Entry", "KernelCache", "Label", "digest", "read", "write"]
