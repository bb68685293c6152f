"""g++, for the emulated device only: one C++ text and include folders in, one shared library out."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from onekernel.errors import InvalidInput

FLAGS = (
    "-std=c++17",
    "-O1",
    "-g1",
    "-fPIC",
    "-shared",
    "-Wl,-Bsymbolic",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
)


class HostCompileError(Exception):
    """g++ refused the text; the message is its log."""


@cache
def compiler() -> str:
    """Return the path of g++.

    Raises InvalidInput when there is none.
    """
    path = shutil.which("g++")
    if path is None:
        raise InvalidInput(
            expected="the compiler g++ (the emulated device builds kernels with it)",
            got="none on PATH",
            todo="install it (Debian: apt-get install g++) or use a machine with a GPU",
        )
    return path


@cache
def version() -> str:
    """Return what g++ calls itself, for cache keys."""
    return subprocess.run([compiler(), "--version"], capture_output=True, text=True, check=True).stdout.split("\n")[0]


def build(text: str, *, include: Sequence[Path], name: str) -> bytes:
    """Compile C++ text to a shared library and return its bytes.

    Raises HostCompileError with the compiler's log.
    """
    with tempfile.TemporaryDirectory(prefix="onekernel-") as folder:
        source, library = Path(folder) / f"{name}.cpp", Path(folder) / f"{name}.so"
        source.write_text(text, encoding="utf-8")
        paths = [f"-I{path}" for path in include]
        # A fixed folder name in debug information keeps the bytes equal from build to build.
        command = [
            compiler(),
            *FLAGS,
            f"-ffile-prefix-map={folder}{os.sep}=",
            *paths,
            str(source),
            "-o",
            str(library),
        ]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise HostCompileError(result.stderr)
        return library.read_bytes()
