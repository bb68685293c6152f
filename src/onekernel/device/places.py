"""Addresses in a message of the emulated machine -> lines of the kernel's text and operands of the launch.

The machine writes {code:LIBRARY:OFFSET,OFFSET} for a place and those that called it, and {data:ADDRESS} for memory.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from onekernel.device.buffer import View, view

_CODE = re.compile(r"\{code:(.+?):([0-9a-fx,]+)\}")
_DATA = re.compile(r"\{data:(0x[0-9a-f]+)\}")
_FRAME = re.compile(r"^(?:\./)*(?P<file>.*):(?P<line>\d+)(?: \(discriminator \d+\))?$")
_DIRECTIVE = re.compile(r'^#line (\d+) "(.*)"$')
_NEAR = 4096  # bytes from an operand within which an address is told by its distance


class Frame(NamedTuple):
    """A line of a text: the kernel's own, by its `#line` names, or a header, as "kernels/..."."""

    file: str
    line: int

    def __str__(self) -> str:
        name = self.file.removeprefix("kernels/")
        return name if name.startswith("chain:") else f"{name}:{self.line}"


def explain(message: str, operands: Sequence[Any]) -> str:
    """Put lines and operands in the place of addresses, and the text of each line below."""
    quoted: dict[str, str] = {}

    def place(match: re.Match[str]) -> str:
        words = []
        for frame in _choose(_frames(match[1], match[2])):
            words.append(str(frame))
            if text := _text_of(match[1], frame):
                quoted[str(frame)] = text
        return ", called from ".join(words) or "an unknown place"

    memory = memory_of(operands)
    message = _DATA.sub(lambda match: _name_address(int(match[1], 16), memory), _CODE.sub(place, message))
    return "\n".join([message, *(f"    {name}: {text}" for name, text in quoted.items())])


def memory_of(operands: Sequence[Any]) -> list[tuple[int, View]]:
    """Return (position, memory) of every operand that is an array."""
    arrays = [item for item in enumerate(operands) if not isinstance(item[1], int | float)]
    return [(index, view(item)) for index, item in arrays if not hasattr(item, "__index__") or hasattr(item, "shape")]


def line_of(text: str, file: str, number: int) -> str:
    """Find a line by the file and number that the `#line` directives of a kernel's text gave it."""
    here, count = "kernel.cu", 0
    for line in text.split("\n"):
        directive = _DIRECTIVE.match(line)
        if directive:
            here, count = directive[2].replace('\\"', '"').replace("\\\\", "\\"), int(directive[1]) - 1
            continue
        count += 1
        if (here, count) == (file, number):
            return line.strip()
    return ""


def _choose(frames: list[Frame]) -> list[Frame]:
    """Return the first line outside the primitives and, when a header has it, the line of the kernel that led there."""
    outside = [frame for frame in frames if not frame.file.startswith("emulated/")]
    own = [frame for frame in outside if not frame.file.startswith("kernels/")]
    return list(dict.fromkeys([*outside[:1], *own[:1]]))


@cache
def _frames(library: str, offsets: str) -> list[Frame]:
    """Ask addr2line, which comes with g++, for the innermost line first; without it there are no lines."""
    tool = shutil.which("addr2line")
    if tool is None:
        return []
    command = [tool, "-i", "-e", library, *offsets.split(",")]
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
    matches = [match for line in found if (match := _FRAME.match(line))]
    return [Frame(match["file"], int(match["line"])) for match in matches]


def _text_of(library: str, frame: Frame) -> str:
    if frame.file.startswith("kernels/"):
        path = files("onekernel").joinpath(frame.file)
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        return lines[frame.line - 1].strip() if frame.line <= len(lines) else ""
    try:
        text = ctypes.c_char.in_dll(ctypes.CDLL(library), "emulated_text")
    except (OSError, ValueError):
        return ""
    return line_of(ctypes.string_at(ctypes.addressof(text)).decode(), frame.file, frame.line)


def _name_address(address: int, memory: list[tuple[int, View]]) -> str:
    """Say where an address lies in, or near, an operand."""
    for index, where in memory:
        if where.address - _NEAR <= address < where.address + where.bytes + _NEAR:
            return f"operand {index} at {address - where.address:+d} of {where.bytes} bytes"
    return f"address {address:#x}, no operand"
