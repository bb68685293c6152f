"""The CUDA headers under kernels/, as strings: NVRTC gets them in memory, so no include path is ever needed."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from pathlib import Path

_INCLUDE = re.compile(r'^\s*#include\s+"([^"]+)"', re.MULTILINE)


@cache
def all_headers() -> dict[str, str]:
    """Return include name -> text. `cuda/` is the include root that the emulated device replaces by `emulated/`."""
    root = Path(str(files("onekernel"))) / "kernels"
    found = {}
    for path in sorted(root.rglob("*.cuh")):
        name = path.relative_to(root).as_posix()
        if not name.startswith("emulated/"):
            found[name.removeprefix("cuda/")] = path.read_text(encoding="utf-8")
    return found


def closure(text: str) -> dict[str, str]:
    """Return the headers that a text includes, directly or not, in the order of their names.

    Unknown names are left out: the compiler reports them with their line.
    """
    known, found, open_texts = all_headers(), dict[str, str](), [text]
    while open_texts:
        for name in _INCLUDE.findall(open_texts.pop()):
            if name in known and name not in found:
                found[name] = known[name]
                open_texts.append(known[name])
    return dict(sorted(found.items()))
