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


def _folder(text: str | None) -> Path | None:
    """Resolve a folder; None when it is switched off or when there is no home to put it in."""
    if text == "":
        return None
    try:
        return Path("~/.cache/onekernel" if text is None else text).expanduser()
    except RuntimeError:  # no HOME: kernels are kept in memory only
        return None


def load() -> Settings:
    """Read the environment now; settings are values, never global state."""
    return Settings(cache=_folder(os.environ.get("ONEKERNEL_CACHE")), device=os.environ.get("ONEKERNEL_DEVICE", "auto"))
