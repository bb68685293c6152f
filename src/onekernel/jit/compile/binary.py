"""What a compiler returns: the binary, the resources it uses, and how long it took."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Resources:
    """The assembler's report for one kernel; all zero on the emulated device. Units: bytes."""

    registers: int = 0
    spill_bytes: int = 0
    stack_bytes: int = 0
    shared_bytes: int = 0


@dataclass(frozen=True)
class Binary:
    """A cubin (or an emulated kernel's shared library) and where it came from."""

    data: bytes
    resources: Resources
    seconds: float
    log: str = ""


def parse_resources(log: str) -> Resources:
    """Read `ptxas -v` output of a module with one kernel."""

    def number(pattern: str) -> int:
        return sum(int(found) for found in re.findall(pattern, log))

    return Resources(
        registers=number(r"Used (\d+) registers"),
        spill_bytes=number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads"),
        stack_bytes=number(r"(\d+) bytes stack frame"),
        shared_bytes=number(r"(\d+) bytes smem"),
    )
