"""The linker's build identifier of a shared library: unique to a build, and found without reading the whole file.

The layout is that of the System V ABI, "Program Header" and "Note Section", for 64-bit little-endian files.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from os import SEEK_END
from pathlib import Path
from typing import BinaryIO

_PROGRAM_HEADER = struct.Struct("<2I6Q")
_NOTE_HEADER = struct.Struct("<3I")
_PT_NOTE, _NT_GNU_BUILD_ID = 4, 3
_MOST = 1 << 16  # bytes of headers or of notes: more than any linker writes


def build_id(path: Path) -> str | None:
    """Return the identifier in hexadecimal; None for a file that has none, is damaged, or cannot be read."""
    try:
        with path.open("rb") as file:
            for notes in _notes(file):
                if (found := _identifier(notes)) is not None:
                    return found.hex()
    except (OSError, struct.error):  # the latter: it ends too early
        pass
    return None


def _notes(file: BinaryIO) -> Iterator[bytes]:
    end = file.seek(0, SEEK_END)
    head = _part(file, 0, 64)
    if head[:6] != b"\x7fELF\x02\x01":
        return
    (start,) = struct.unpack_from("<Q", head, 32)
    size, count = struct.unpack_from("<2H", head, 54)
    table = _part(file, min(start, end), size * count)
    for number in range(count):
        kind, _, offset, _, _, length, _, _ = _PROGRAM_HEADER.unpack_from(table, number * size)
        if kind == _PT_NOTE:
            yield _part(file, min(offset, end), length)


def _part(file: BinaryIO, offset: int, length: int) -> bytes:
    file.seek(offset)
    return file.read(min(length, _MOST))


def _identifier(notes: bytes) -> bytes | None:
    at = 0
    while at + _NOTE_HEADER.size <= len(notes):
        name_bytes, bytes_, kind = _NOTE_HEADER.unpack_from(notes, at)
        name = at + _NOTE_HEADER.size
        content = name + _padded(name_bytes)
        if kind == _NT_GNU_BUILD_ID and notes[name : name + name_bytes] == b"GNU\0":
            return notes[content : content + bytes_] or None
        at = content + _padded(bytes_)
    return None


def _padded(size: int) -> int:
    return -(-size // 4) * 4
