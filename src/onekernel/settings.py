"""The only reader of environment variables; every variable is one field.

ONEKERNEL_CACHE     folder of compiled kernels; empty text turns the disk cache off
ONEKERNEL_DEVICE    "cuda", "cuda:1" or "emulated"; by default the GPU when there is one
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    """What the environment asks for."""

    cache: Path | None
    device: str


def _default_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "onekernel"


def load() -> Settings:
    """Read the environment now; settings are values, never global state."""
    cache = os.environ.get("ONEKERNEL_CACHE")
    return Settings(
        cache=_default_cache() if cache is None else Path(cache).expanduser() if cache else None,
        device=os.environ.get("ONEKERNEL_DEVICE", "auto"),
    )
