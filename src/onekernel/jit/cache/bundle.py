"""Entries in one file, to go into a container image or to another machine: a tar archive, with gzip if so named.

Of what comes in, only ordinary files with the names of an entry are looked at, in memory, and only what the one reader
of entries accepts is written. No path of an archive is ever used. The same entries make the same bytes.
"""

from __future__ import annotations

import gzip
import os
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import IO

from onekernel.errors import InvalidInput
from onekernel.jit.cache.entry import LARGEST, Damaged, Entry, Label, decode, encode, is_folder_name
from onekernel.jit.cache.files import read
from onekernel.jit.cache.folder import KernelFolder
from onekernel.jit.cache.listing import usage
from onekernel.jit.cache.trust import trusted

MOST_REFUSED = 1000
_Archive = IO[bytes] | gzip.GzipFile
_BLOCK = tarfile.BLOCKSIZE
_NOT_A_BUNDLE = (OSError, EOFError, zlib.error, tarfile.HeaderError, UnicodeError)


@dataclass
class Report:
    """What became of the entries; `refused` pairs a name with the reason."""

    done: list[Label] = field(default_factory=list)
    present: list[Label] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)

    def refuse(self, name: str, reason: str) -> None:
        """Note a refusal. Raises InvalidInput when there are too many to be an accident."""
        self.refused.append((name, reason))
        if len(self.refused) > MOST_REFUSED:
            raise _no_bundle(f"more than {MOST_REFUSED} things in it that are no kernels, such as {name!r}")


def pack(file: Path, entries: Iterable[Path]) -> Report:
    """Write the entries in some folders into a file, which is replaced. Raises OSError."""
    report = Report()
    handle, temporary = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.absolute().parent)
    try:
        with os.fdopen(handle, "wb") as raw, _compressed(file, raw) as out, tarfile.open(None, "w", out) as archive:
            for path in sorted(entries):
                try:
                    _add(archive, entry := read(path, trusted))
                    report.done.append(entry.label)
                except Damaged as damage:
                    report.refuse(path.name, str(damage))
        os.chmod(temporary, 0o644)
        os.replace(temporary, file)
    except BaseException:
        os.unlink(temporary)
        raise
    return report


def load(file: Path, folder: Path, limit: int | None = None) -> Report:
    """Put the entries of a bundle into a cache folder, except those that are there.

    Raises InvalidInput when the file is no bundle, or when the folder cannot be written.
    """
    state = usage(folder)
    if not (state.trusted and state.writable):
        raise _no_folder(folder)
    report, into = Report(), KernelFolder(folder, limit)
    try:
        with open(file, "rb") as raw, gzip.open(raw) if _is_gzip(raw) else raw as archive:
            for name, files in _folders(archive, report):
                try:
                    _keep(decode(name, files), into, report)
                except Damaged as damage:
                    report.refuse(name, str(damage))
    except _NOT_A_BUNDLE as error:
        raise _no_bundle(f"{file}: {error}") from error
    return report


def _keep(entry: Entry, into: KernelFolder, report: Report) -> None:
    if into.read(entry.label) is not None:
        report.present.append(entry.label)
    elif into.write(entry):
        report.done.append(entry.label)
    else:
        raise _no_folder(into.path)


def _compressed(file: Path, raw: IO[bytes]) -> _Archive:
    return gzip.GzipFile("", "wb", fileobj=raw, mtime=0) if file.suffix in (".gz", ".tgz") else raw


def _is_gzip(raw: IO[bytes]) -> bool:
    magic = raw.read(2)
    raw.seek(0)
    return magic == b"\x1f\x8b"


def _add(archive: tarfile.TarFile, entry: Entry) -> None:
    for name, content in encode(entry).items():
        member = tarfile.TarInfo(f"{entry.label.folder}/{name}")
        member.size = len(content)
        archive.addfile(member, BytesIO(content))


def _folders(archive: _Archive, report: Report) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yield the files of each folder that could be an entry's; its files follow one another."""
    current, files = "", dict[str, bytes]()
    for member, content in _members(archive, report):
        folder, _, name = member.removeprefix("./").partition("/")
        if folder != current:
            if files:
                yield current, files
            current, files = folder, {}
        files[name] = content
    if files:
        yield current, files


def _members(archive: _Archive, report: Report) -> Iterator[tuple[str, bytes]]:
    """Yield path and content of ordinary files with the names of an entry's; refuse others without reading them.

    tarfile's own reader takes the sizes of extended headers on trust, so members are walked here.
    """
    while (header := _exactly(archive, _BLOCK)).strip(b"\0"):
        member = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
        if member.size < 0:
            raise tarfile.HeaderError("a negative size")
        padding = -member.size % _BLOCK
        folder, _, name = member.name.removeprefix("./").partition("/")
        if member.isreg() and is_folder_name(folder) and member.size <= LARGEST.get(name, -1):
            yield member.name, _exactly(archive, member.size)
        else:
            if not member.isdir():
                report.refuse(member.name, "no ordinary file of a kernel, or too large")
            padding += member.size
        _skip(archive, padding)


def _exactly(archive: _Archive, size: int) -> bytes:
    content = archive.read(size)
    if len(content) != size:
        raise EOFError("it ends in the middle")
    return content


def _skip(archive: _Archive, size: int) -> None:
    while size > 0:
        size -= len(_exactly(archive, min(size, 1 << 20)))


def _no_folder(folder: Path) -> InvalidInput:
    return InvalidInput(
        expected=f"a cache folder to write in at {folder}",
        got="one that cannot be written, or that others can write",
        todo="name another in ONEKERNEL_CACHE",
    )


def _no_bundle(got: str) -> InvalidInput:
    return InvalidInput(expected="a bundle that `onekernel cache pack` wrote", got=got, todo="pack it again")
