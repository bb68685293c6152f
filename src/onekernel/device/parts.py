"""What each GPU model can do: the only owner of limits and ceilings (parts.toml)."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

from onekernel.errors import InvalidInput

REFERENCE = "h200"  # assumed when no GPU is present and none is named


@dataclass(frozen=True)
class Part:
    """A GPU model. Units: bytes, bytes per second, seconds; `measured` says where the numbers come from."""

    key: str
    name: str
    arch: str
    multiprocessors: int
    l2_bytes: int
    bandwidth: float
    launch_seconds: float
    measured: str

    @property
    def arch_number(self) -> int:
        return arch_number(self.arch)


def arch_number(arch: str) -> int:
    """sm_90a -> 90."""
    return int(arch.removeprefix("sm_").rstrip("af"))


def pack_bytes(arch: str) -> int:
    """Widest single access of a thread on an architecture, in bytes."""
    return 32 if arch_number(arch) >= 100 else 16


def shared_limit(arch: str) -> int:
    """Most shared memory of a block, in bytes (CUDA programming guide, technical specifications per capability)."""
    number = arch_number(arch)
    kibibytes = {75: 64, 80: 163, 86: 99, 87: 163, 89: 99}.get(number, 227 if number < 120 else 99)
    return kibibytes * 1024


@cache
def table() -> dict[str, Part]:
    """All known parts by key."""
    rows = tomllib.loads(files("onekernel.device").joinpath("parts.toml").read_text(encoding="utf-8"))
    return {key: Part(key=key, **row) for key, row in rows.items()}


def find(name: str) -> Part:
    """Find a part by key (h200), by the driver's name, or by architecture.

    An architecture stands for its first part; one that has none in the table (sm_121) borrows the limits of the part
    below it. Raises InvalidInput that lists the known parts.
    """
    wanted = name.strip().lower()
    for part in table().values():
        if wanted in (part.key, part.arch, part.name.lower()):
            return part
    if re.fullmatch(r"sm_\d{2,3}[af]?", wanted) and (below := _below(arch_number(wanted))):
        return replace(below, key=wanted, name=wanted, arch=wanted, measured=f"limits of {below.name}")
    known = ", ".join([*table(), *dict.fromkeys(part.arch for part in table().values())])
    raise InvalidInput(expected=f"a known GPU ({known})", got=repr(name), todo="name one of them")


def part_of(name: str, arch: str) -> Part:
    """Find a device's row by its name, else the first row of its architecture."""
    try:
        return find(name)
    except InvalidInput:
        return find(arch)


def _below(number: int) -> Part | None:
    older = [part for part in table().values() if part.arch_number <= number]
    return max(older, key=lambda part: part.arch_number, default=None)
