"""What is in a cache folder, for people and for `doctor`. It looks, and changes nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from onekernel.errors import InvalidInput
from onekernel.jit.cache.files import Slot, slots
from onekernel.jit.cache.folder import LOCKS
from onekernel.jit.cache.lock import is_held
from onekernel.jit.cache.trust import trusted


@dataclass(frozen=True)
class Usage:
    """The state of a cache folder; sizes in bytes, `held` the keys that some process is building now."""

    folder: Path | None  # None: kernels are kept in memory only
    exists: bool
    trusted: bool
    writable: bool  # it can be written, or made
    entries: int
    bytes: int
    limit: int | None
    held: tuple[str, ...]


def usage(folder: Path | None, limit: int | None = None) -> Usage:
    """Describe a cache folder, whatever state it is in."""
    if folder is None:
        return Usage(None, False, False, False, 0, 0, limit, ())
    try:
        info = os.stat(folder)
    except OSError:
        return Usage(folder, False, True, _can_be_made(folder), 0, 0, limit, ())
    there = slots(folder)
    total = sum(slot.bytes for slot in there)
    writable = folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
    return Usage(folder, True, trusted(info), writable, len(there), total, limit, _held(folder / LOCKS))


def select(folder: Path, keys: Sequence[str] = ()) -> list[Slot]:
    """Find entries by the beginnings of their keys; all without any, the least recently used first.

    Raises InvalidInput for a beginning of no key, or of several.
    """
    there = slots(folder)
    return [_one(there, key, folder) for key in dict.fromkeys(keys)] if keys else there


def _one(there: Sequence[Slot], key: str, folder: Path) -> Slot:
    found = [slot for slot in there if re.fullmatch("[0-9a-f]+", key) and slot.key.startswith(key)]
    if len(found) == 1:
        return found[0]
    several = ", ".join(slot.key[:16] for slot in found[:4]) + (", ..." if len(found) > 4 else "")
    raise InvalidInput(
        expected=f"the beginning of one key in {folder}",
        got=f"{key!r}, which begins {len(found)} ({several})" if found else f"{key!r}, which begins none",
        todo="give more of the key" if found else "see the keys with: onekernel cache list",
    )


def _can_be_made(folder: Path) -> bool:
    parent = next((parent for parent in folder.absolute().parents if parent.exists()), folder)
    return not folder.is_symlink() and parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)


def _held(locks: Path) -> tuple[str, ...]:
    try:
        return tuple(sorted(name for name in os.listdir(locks) if is_held(locks / name)))
    except OSError:
        return ()
