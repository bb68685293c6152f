"""What is built for a GPU: machine code of exactly its architecture, or text that its driver finishes.

A cubin runs on any driver of its CUDA major version. PTX must not be newer than the driver (error 222): it is used only
where NVRTC does not know the architecture yet, and the driver then compiles it at the first load and keeps the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from onekernel.device.parts import arch_number
from onekernel.errors import InvalidInput

Version = tuple[int, int]  # of CUDA: major, minor

# The last NVRTC that builds for architectures which later ones have dropped (CUDA release notes).
_DROPPED = ((37, "11.8"), (72, "12.9"))


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
    number = arch_number(arch)
    if arch.rstrip("af") in known:
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


def _older(number: int) -> str:
    last = next((version for highest, version in _DROPPED if number <= highest), None)
    named = "an older nvidia-cuda-nvrtc" if last is None else f"nvidia-cuda-nvrtc {last}, the last that builds for it"
    return f"use a newer GPU; this version of OneKernel does not run with {named}"


def _text(version: Version) -> str:
    return f"{version[0]}.{version[1]}"
