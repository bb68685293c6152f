"""A stand-in for the NVIDIA driver, so that the real path of a launch runs without a GPU (libcuda.cpp says how).

`environment` gives a process the stub instead of a driver. Such a process imports `stub_driver.emulate`, which makes
the compiler build for the emulated machine, where computing and not only launching is wanted.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from onekernel.device import host_compiler
from onekernel.device.machine import INCLUDE

HERE = Path(__file__).parent


@cache
def folder() -> Path:
    """Build the stub once for this process and return the folder that holds its libcuda.so.1."""
    keep = tempfile.TemporaryDirectory(prefix="onekernel-stub-")
    _kept.append(keep)
    library = Path(keep.name) / "libcuda.so.1"
    includes = [f"-I{path}" for path in (HERE, *INCLUDE)]
    options = ["-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread"]
    command = [host_compiler.compiler(), *options, *includes, str(HERE / "libcuda.cpp"), "-o", str(library), "-ldl"]
    subprocess.run(command, check=True)
    return library.parent


_kept: list[tempfile.TemporaryDirectory[str]] = []


def environment(**options: object) -> dict[str, str]:
    """Return the environment of a process on the stub; options such as arch=90, gpus=2, driver_version=13000."""
    paths = [str(HERE.parents[1] / "src"), str(HERE.parent), str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "LD_LIBRARY_PATH": os.pathsep.join([str(folder()), os.environ.get("LD_LIBRARY_PATH", "")]),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        **{f"STUB_{name.upper()}": str(value) for name, value in options.items()},
    }


def python(*arguments: str, timeout: float = 300, **options: object) -> subprocess.CompletedProcess[str]:
    """Run Python on the stub, text in and out."""
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, env=environment(**options), capture_output=True, text=True, timeout=timeout, check=False
    )
