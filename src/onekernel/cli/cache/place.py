"""The cache folder that the environment names, as the command line needs it."""

from __future__ import annotations

from pathlib import Path

from onekernel import settings
from onekernel.errors import InvalidInput


def place() -> tuple[Path, int | None]:
    """Return the folder and its limit in bytes. Raises InvalidInput when kernels are kept in memory only."""
    asked = settings.load()
    if asked.cache is None:
        raise InvalidInput(
            expected="a folder for compiled kernels",
            got="none (ONEKERNEL_CACHE is empty, or there is no home)",
            todo="name one in ONEKERNEL_CACHE",
        )
    return asked.cache, asked.cache_limit
