"""What the operating system tells: files that it keeps, and the libraries in this process."""

from __future__ import annotations

from pathlib import Path


def read(path: Path) -> str:
    """Return the text of a file; empty when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def wsl() -> bool:
    """Say whether this is Linux under Windows."""
    return "microsoft" in read(Path("/proc/version")).lower()


def loaded(name: str) -> list[str]:
    """Name the files of a library that this process has loaded, whoever asked for them."""
    places = [line.split(maxsplit=5)[-1] for line in read(Path("/proc/self/maps")).splitlines() if name in line]
    return list(dict.fromkeys(place for place in places if Path(place).name.startswith(name)))
