"""The only reader of environment variables; every variable is one field.

ONEKERNEL_CACHE        folder of compiled kernels; empty text turns the disk cache off
ONEKERNEL_CACHE_LIMIT  its largest size, as "500MB", "2GB" or bytes (1 GB by default); 0 or empty text: no limit
ONEKERNEL_COMPILE      when kernels of a model are built: "block" (the default), "background" or "never"
ONEKERNEL_DEVICE       "cuda", "cuda:1" or "emulated"; by default the GPU when there is one
ONEKERNEL_MODEL        the speech model that is loaded where none is named: a folder or a hub id
ONEKERNEL_HUB          where checkpoints are downloaded from: "huggingface" (the default) or "modelscope"
XDG_DATA_HOME          where users keep their data (~/.local/share by default); voices are in onekernel/voices below it
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from onekernel.errors import InvalidInput

_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)\s*([kmgt]?)(i?)b?", re.IGNORECASE | re.ASCII)
_PREFIXES = ("", "k", "m", "g", "t")


@dataclass(frozen=True)
class Settings:
    """What the environment asks for."""

    cache: Path | None
    device: str
    cache_limit: int | None  # bytes; None: no limit
    compile: str
    hub: str
    model: str | None
    voices: Path | None


def _folder(text: str | None) -> Path | None:
    """Resolve a folder; None when it is switched off or when there is no home to put it in."""
    if text == "":
        return None
    try:
        return Path("~/.cache/onekernel" if text is None else text).expanduser()
    except RuntimeError:  # no HOME: kernels are kept in memory only
        return None


def _voices(text: str | None) -> Path | None:
    """Resolve the folder of voices; None when there is no home. A relative path counts as none, as XDG asks."""
    data = _folder(text if text and Path(text).is_absolute() else "~/.local/share")
    return None if data is None else data / "onekernel" / "voices"


def _size(text: str) -> int | None:
    """Read a number of bytes with or without a unit; None for no limit."""
    if text.strip() in ("", "0"):
        return None
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise InvalidInput(
            expected="a size such as 500MB or 2GB in ONEKERNEL_CACHE_LIMIT",
            got=repr(text),
            todo="correct it, unset it for 1 GB, or set it to 0 for no limit",
        )
    number, prefix, binary = found.groups()
    return int(float(number) * (1024 if binary else 1000) ** _PREFIXES.index(prefix.lower())) or None


def load() -> Settings:
    """Read the environment now; settings are values, never global state. Raises InvalidInput."""
    return Settings(
        cache=_folder(os.environ.get("ONEKERNEL_CACHE")),
        device=os.environ.get("ONEKERNEL_DEVICE", "auto"),
        cache_limit=_size(os.environ.get("ONEKERNEL_CACHE_LIMIT", "1GB")),
        compile=os.environ.get("ONEKERNEL_COMPILE", "block"),
        voices=_voices(os.environ.get("XDG_DATA_HOME")),
        hub=os.environ.get("ONEKERNEL_HUB", "huggingface"),
        model=os.environ.get("ONEKERNEL_MODEL") or None,
    )
