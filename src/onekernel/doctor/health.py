"""The record of an examination."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from onekernel.errors import InvalidInput

State = Literal["ok", "note", "problem"]


@dataclass(frozen=True)
class Check:
    """One thing that was looked at; `advice` is what to do, empty when there is nothing to do."""

    name: str
    state: State
    found: str
    advice: str = ""


@dataclass(frozen=True)
class Health:
    """All checks. `usable`: kernels can be built and run here, on a GPU or emulated."""

    checks: tuple[Check, ...]
    usable: bool

    def record(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [
            f"{check.state:8}{check.name}: {check.found}" + f"\n        {check.advice}" * bool(check.advice)
            for check in self.checks
        ]
        return "\n".join([*lines, "usable" if self.usable else "not usable"])


def problem(name: str, error: BaseException, advice: str = "") -> Check:
    """Make the check of an error; one that itself says what to do gives the advice."""
    if isinstance(error, InvalidInput):
        return Check(name, "problem", f"expected {error.expected}, got {error.got}", error.todo)
    return Check(name, "problem", one_line(error), advice)


def one_line(error: BaseException) -> str:
    """Return what an error says, in one line."""
    return " ".join(str(error).split()) or type(error).__name__


def dotted(version: tuple[int, int]) -> str:
    """Write a version: 13.5."""
    return f"{version[0]}.{version[1]}"
