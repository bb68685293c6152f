"""What is built for a GPU: machine code of exactly its architecture, or text that its driver finishes.

A cubin runs on any driver of its CUDA major version. PTX must not be newer than the driver (error 222): it is used only
where NVRTC does not know the architecture yet, and the driver then compiles it at the first load and keeps the result
(in ~/.nv/ComputeCache): to warm up a kernel is to load it once. The architecture, NVRTC's build and version decide; the
driver only refuses. So a cache key that holds those needs no more.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from onekernel.device.parts import arch_number
from onekernel.errors import InvalidInput

Version = tuple[int, int]  # of CUDA: major, minor

# The last NVRTC that builds for architectures which later ones have dropped (CUDA release notes).
_DROPPED = ((32, "10.2"), (37, "11.8"), (72, "12.9"))
_ARCH = re.compile(r"sm_([1-9]\d{1,2})([af]?)", re.ASCII)
_FIRST = {"": 0, "a": 90, "f": 100}  # architectures with features of their own (a), or of their family (f)


@dataclass(frozen=True)
class Target:
    """How to build for `arch`; `option` is what --gpu-architecture is given."""

    arch: str
    kind: Literal["cubin", "ptx"]
    option: str


def target_for(arch: str, *, known: Sequence[str], nvrtc: Version, driver: Version | None) -> Target:
    """Choose what to build for an architecture with an NVRTC of a version that knows some, for a driver (None: any).

    Raises InvalidInput that says which NVRTC or driver would do.
    """
    numbers = sorted(map(arch_number, known))
    number = _number(arch)
    if number in numbers:
        return Target(arch, "cubin", arch)
    if number < numbers[-1]:
        raise InvalidInput(
            expected=f"an architecture that NVRTC {_text(nvrtc)} builds for ({', '.join(known)})",
            got=repr(arch),
            todo=_older(number) if number < numbers[0] else "name one of them, or install a newer nvidia-cuda-nvrtc",
        )
    if driver is not None and driver < nvrtc:
        raise InvalidInput(
            expected=f"an NVRTC that builds for {arch}, or a driver that reads the PTX of NVRTC {_text(nvrtc)}",
            got=f"a driver for CUDA {_text(driver)}",
            todo=f"update the driver, or install an nvidia-cuda-nvrtc that knows {arch}",
        )
    return Target(arch, "ptx", f"compute_{numbers[-1]}")


def _number(arch: str) -> int:
    found = _ARCH.fullmatch(arch)
    if found is None or int(found[1]) < _FIRST[found[2]]:
        raise InvalidInput(
            expected="an architecture such as sm_90 (with a from sm_90 on, with f from sm_100 on)",
            got=repr(arch),
            todo="correct it",
        )
    return int(found[1])


def _older(number: int) -> str:
    last = next((version for highest, version in _DROPPED if number <= highest), None)
    named = "an older nvidia-cuda-nvrtc" if last is None else f"nvidia-cuda-nvrtc {last}, the last that builds for it"
    return f"use a newer GPU; this version of OneKernel does not run with {named}"


def _text(version: Version) -> str:
    return f"{version[0]}.{version[1]}"
