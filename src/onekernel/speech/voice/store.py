"""Voices on disk: one small file each, NAME.npz, so that a copy or a new name of the file is one of the voice.

A file is written beside its place and renamed: a reader sees all of it or none. A voice tells who is speaking, so a
new folder and its files are for this user only. It knows no model: whoever loads a voice says how wide it must be.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import unicodedata
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onekernel import settings
from onekernel.errors import InvalidInput

FORMAT = 1
SUFFIX = ".npz"
LONGEST_NAME = 120  # bytes in UTF-8
MARKS = " _-.'"  # in a name, beside the letters and digits of any script


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True, eq=False)
class Voice:
    """A speaker, and where it was read aloud what they said: the words and their codes, or neither.

    Raises InvalidInput for a name that cannot be one of a file, or values that cannot be a voice.
    """

    name: str
    x_vector: NDArray[np.float32]  # [width of the talker]
    size: str  # of the model that made it, as its config calls it
    ref_text: str | None = None
    ref_codes: NDArray[np.int32] | None = None  # [frames, groups]
    sample_rate: int = 24_000  # Hz, of what the model heard
    created: str = field(default_factory=_now)  # ISO 8601

    @property
    def width(self) -> int:
        """The width of the talkers that can use it."""
        return len(self.x_vector)

    def __post_init__(self) -> None:
        check_name(self.name)
        vector = self.x_vector
        if vector.dtype != np.float32 or vector.ndim != 1 or not vector.size or not np.isfinite(vector).all():
            raise _no_voice("x_vector", "finite float32 [width]", vector)
        if (self.ref_text is None) != (self.ref_codes is None):
            raise _no_voice("ref_text and ref_codes", "both or neither", None)
        codes = self.ref_codes
        if codes is not None and (codes.dtype != np.int32 or codes.ndim != 2 or not codes.size or codes.min() < 0):
            raise _no_voice("ref_codes", "int32 [frames, groups] of codes", codes)


def default_folder() -> Path:
    """Return the user's folder of voices. Raises InvalidInput where there is no home."""
    if (folder := settings.load().voices) is None:
        raise InvalidInput(expected="a folder for voices", got="no home", todo="name a folder in XDG_DATA_HOME")
    return folder


def check_name(name: str) -> None:
    """Raise InvalidInput unless a voice may be called so: a file name that reads the same on every system."""
    problem = None
    if not name or not _is_letter(name[0]):
        problem = "does not begin with a letter or digit"
    elif not all(_is_letter(c) or unicodedata.category(c)[0] == "M" or c in MARKS for c in name):
        problem = f"holds more than letters, digits and {MARKS!r}"
    elif name[-1] in " .":
        problem = "ends in a space or dot"
    elif not unicodedata.is_normalized("NFC", name):
        problem = "is not in the normal form NFC"
    elif (count := len(name.encode())) > LONGEST_NAME:
        problem = f"has {count} bytes, more than {LONGEST_NAME}"
    if problem is not None:
        todo = "choose another, such as anna or 小林"
        raise InvalidInput(expected="the name of a voice", got=f"{name!r}, which {problem}", todo=todo)


def save(voice: Voice, folder: Path) -> Path:
    """Write a voice and return its file; one of the same name is replaced. Raises InvalidInput where that cannot be."""
    facts = {key: getattr(voice, key) for key in ("size", "ref_text", "sample_rate", "created")}
    arrays: dict[str, Any] = {"facts": np.array(json.dumps({"format": FORMAT, **facts})), "x_vector": voice.x_vector}
    if voice.ref_codes is not None:
        arrays["ref_codes"] = voice.ref_codes
    path = _path(voice.name, folder)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".", delete=False) as file:
            try:
                np.savez(file, **arrays)
                file.flush()
                os.fsync(file.fileno())
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise
    except OSError as error:
        got, todo = f"{path}: {error.strerror or error}", "correct it, or give another folder"
        raise InvalidInput(expected="a place for a voice", got=got, todo=todo) from error
    return path


def load(name: str, folder: Path, width: int | None = None) -> Voice:
    """Read a voice that `save` wrote.

    `width` is that of the talker that will use it; None: none will. Raises InvalidInput where there is none of that
    name, its file is damaged, or it was made for a talker of another width.
    """
    path = _path(name, folder)
    try:
        voice = _read(name, path)
    except FileNotFoundError as error:
        there = ", ".join(names(folder)) or "none"
        got = f"no {name!r} in {folder} (there: {there})"
        raise InvalidInput(expected="the name of a voice", got=got, todo="correct it, or add this voice") from error
    except Exception as error:  # what the readers of zip, npy and JSON raise has no root in common
        got = f"a damaged one ({type(error).__name__}: {error})"
        raise InvalidInput(expected=f"a whole voice at {path}", got=got, todo="remove it and add it again") from error
    if width not in (None, voice.width):
        got = f"{name!r} of width {voice.width}, made by a {voice.size} model"
        todo = "add it again with this model, or use that one"
        raise InvalidInput(expected=f"a voice for a talker of width {width}", got=got, todo=todo)
    return voice


def names(folder: Path) -> list[str]:
    """List the voices of a folder, damaged ones too; a folder that is not there has none."""
    return sorted(path.stem for path in folder.glob(f"*{SUFFIX}") if _may_be_called(path.stem))


def remove(name: str, folder: Path) -> None:
    """Delete a voice, a damaged one too. Raises InvalidInput where there is none of that name."""
    try:
        _path(name, folder).unlink()
    except OSError as error:
        got = f"{name!r} in {folder}: {error.strerror or error}"
        raise InvalidInput(expected="a voice to remove", got=got, todo="name one of this folder") from error


def _path(name: str, folder: Path) -> Path:
    check_name(name)
    return folder / f"{name}{SUFFIX}"


def _read(name: str, path: Path) -> Voice:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        facts = json.loads(str(archive["facts"]))
        if facts.pop("format") != FORMAT:
            raise ValueError("of another version of OneKernel")
        return Voice(name, archive["x_vector"], ref_codes=archive.get("ref_codes"), **facts)


def _is_letter(character: str) -> bool:
    return unicodedata.category(character)[0] in "LN"


def _may_be_called(name: str) -> bool:
    with contextlib.suppress(InvalidInput):
        check_name(name)
        return True
    return False


def _no_voice(what: str, expected: str, got: Any) -> InvalidInput:
    told = "only one of them" if got is None else f"{got.dtype} {list(got.shape)}"
    return InvalidInput(expected=f"{what} as {expected}", got=told, todo="make the voice again from its sound")
