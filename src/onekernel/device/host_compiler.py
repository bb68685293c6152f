"""g++, for the emulated device only: one C++ text and include folders in, one shared library out."""

from __future__ import annotations

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
    "-gdwarf-4",  # in version 5 addr2line mistakes the first file that a table names
    "-fno-omit-frame-pointer",  # the machine walks the stack to say where a fault is
    "-fPIC",
    "-shared",
    "-Wl,-Bsymbolic",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
)

# Call the emulated machine before every access, and when an address is not a multiple of what its type asks for. The
# machine answers these calls itself: the libraries that g++ would add are left out.
SANITIZE = ("-fsanitize=thread,alignment", "-fno-exceptions", "-nodefaultlibs")
_LIBRARIES = ("-lm", "-lc", "-lgcc")


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


def build(text: str, *, include: Sequence[Path], name: str, sanitize: bool = False) -> bytes:
    """Compile C++ text to a shared library and return its bytes.

    Raises HostCompileError with the compiler's log.
    """
    with tempfile.TemporaryDirectory(prefix="onekernel-") as folder:
        (Path(folder) / f"{name}.cpp").write_text(text, encoding="utf-8")
        # Fixed names of folders in debug information keep the bytes equal from build to build; the last that fits wins.
        folders = {folder: ".", **{str(path): path.name for path in reversed(include)}}
        paths = [f"-ffile-prefix-map={path}={alias}" for path, alias in folders.items()]
        paths += [f"-I{path}" for path in include]
        command = [compiler(), *FLAGS, *paths, f"{name}.cpp", "-o", f"{name}.so"]
        command += [*SANITIZE, *_LIBRARIES] if sanitize else []
        result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
        if result.returncode != 0:
            raise HostCompileError(result.stderr)
        return (Path(folder) / f"{name}.so").read_bytes()
