"""A part of a config file that knows its own path: what is missing or of another kind is told by its full name."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onekernel.errors import InvalidInput


@dataclass(frozen=True)
class Section:
    """An object of a JSON file. Every method raises InvalidInput for a value that is missing or cannot be."""

    file: Path
    path: str
    values: Mapping[str, Any]
    model: str  # that the reader expects, as an error names it

    @classmethod
    def of(cls, file: Path, model: str) -> Section:
        """Read a file."""
        todo = f"give a {model} checkpoint"
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            got = "no such file" if isinstance(error, FileNotFoundError) else f"{type(error).__name__}: {error}"
            raise InvalidInput(expected=f"a config at {file}", got=got, todo=todo) from error
        if not isinstance(values, dict):
            raise InvalidInput(expected=f"an object at {file}", got="another value", todo=todo)
        return cls(file, "", values, model)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a value of any kind."""
        value = self.values.get(name)
        if value is None and default is None:
            raise self.wrong(name, "a value", "nothing")
        return default if value is None else value

    def section(self, name: str) -> Section:
        """Return an object in this one."""
        return Section(self.file, f"{self.path}{name}.", self._mapping(name), self.model)

    def size(self, name: str, default: int | None = None) -> int:
        """Return a whole number above 0."""
        value = self.get(name, default)
        if not _whole(value) or value < 1:
            raise self.wrong(name, "a whole number above 0", value)
        return int(value)

    def sizes(self, name: str, default: Sequence[int] | None = None) -> tuple[int, ...]:
        """Return a list of whole numbers above 0."""
        value = self.get(name, default)
        if not isinstance(value, Sequence) or not value or not all(_whole(item) and item > 0 for item in value):
            raise self.wrong(name, "a list of whole numbers above 0", value)
        return tuple(value)

    def number(self, name: str, default: float | None = None) -> float:
        """Return a number above 0."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
            raise self.wrong(name, "a number above 0", value)
        return float(value)

    def index(self, name: str, below: int) -> int:
        """Return the number of a row of a table with `below` rows."""
        value = self.get(name)
        if not _whole(value) or not 0 <= value < below:
            raise self.wrong(name, f"a whole number from 0 to {below - 1}", value)
        return int(value)

    def indices(self, name: str, below: int) -> dict[str, int]:
        """Return named numbers of rows; none where there is no such object."""
        mapping = self._mapping(name) if self.values.get(name) is not None else {}
        inner = Section(self.file, f"{self.path}{name}.", mapping, self.model)
        return {key: inner.index(key, below) for key in mapping}

    def wrong(self, name: str, expected: str, got: Any) -> InvalidInput:
        """Return the error for a value."""
        todo = f"use a config of {self.model}"
        return InvalidInput(expected=f"{self.path}{name} in {self.file} as {expected}", got=repr(got), todo=todo)

    def _mapping(self, name: str) -> dict[str, Any]:
        value = self.get(name)
        if not isinstance(value, dict):
            raise self.wrong(name, "an object", value)
        return value


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
