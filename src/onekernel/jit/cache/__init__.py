"""Built kernels by key, in memory and on disk; one build per key over threads and processes."""

from __future__ import annotations

from onekernel.jit.cache.store import KernelCache, digest

__all__ = ["KernelCache", "digest"]
