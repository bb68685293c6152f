"""What this machine has and lacks for building and running kernels, and what to do about it.

Every check looks for itself and none can fail: what is broken is what it reports. Whether the machine is usable is not
inferred but tried: a small kernel is built, loaded, run and compared, on the GPU and on the emulated device.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from onekernel import settings
from onekernel._version import __version__
from onekernel.device.cuda import driver
from onekernel.device.cuda.advice import ADVICE
from onekernel.errors import OneKernelError

State = Literal["ok", "note", "problem"]

_KERNEL = """
#include "primitives.cuh"
extern "C" __global__ void doctor(const int* x, int* y) { y[threadIdx.x] = x[threadIdx.x] + 1; }
"""
_INSTALL_NVRTC = "install it with: pip install 'nvidia-cuda-nvrtc>=13,<14'"


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


def doctor() -> Health:
    """Examine this machine. It never raises."""
    found = [check for look in _LOOKS for check in _safely(look)]
    runs = [_try_gpu(), _try_emulated()]
    return Health((*found, *runs), usable=any(check.state == "ok" for check in runs))


def _safely(look: Callable[[], Iterator[Check]]) -> Iterator[Check]:
    name = look.__name__.strip("_").replace("_", " ")
    try:
        yield from look()
    except Exception as error:
        yield Check(name, "problem", _one_line(error), "report it: this check should not fail")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _python() -> Iterator[Check]:
    yield Check("onekernel", "ok", f"{__version__} on Python {platform.python_version()}, {platform.platform()}")


def _driver() -> Iterator[Check]:
    status, version = driver.init_status(), driver.version()
    path = _loaded("libcuda.so")
    if status is None:
        wsl = "; under WSL it lies in /usr/lib/wsl/lib and comes with Windows' driver" if _wsl() else ""
        todo = f"for a GPU, install NVIDIA's driver; without one, kernels run on the emulated device{wsl}"
        yield Check("driver", "note", "no libcuda.so.1", todo)
        return
    named = f"CUDA {_text(version)}, {path}" if version else path
    if status != 0:
        todo = ADVICE.get(status, "see nvidia-smi and the system's log")
        yield Check("driver", "problem", f"{named}: cuInit answers {status}", todo)
        return
    module = Path("/proc/driver/nvidia/version")
    release = next((word for word in _read(module).split() if word.count(".") == 2), "")
    yield Check("driver", "ok", f"{named}{release and f', kernel module {release}'}")
    if _wsl() and not path.startswith("/usr/lib/wsl"):
        yield Check("WSL", "problem", f"the driver comes from {path}", "use the one in /usr/lib/wsl/lib")


def _nvrtc() -> Iterator[Check]:
    from onekernel.jit.compile import nvrtc

    try:
        version, library = nvrtc.version(), nvrtc.library()
    except OneKernelError as error:
        yield Check("NVRTC", "problem", _one_line(error), _INSTALL_NVRTC)
        return
    archs = nvrtc.supported_archs()
    yield Check("NVRTC", "ok", f"{_text(version)} build {nvrtc.build()}, {archs[0]} to {archs[-1]}, {library}")
    yield from _companions(version, library)
    yield from _against_driver(version)


def _companions(version: tuple[int, int], library: Path | None) -> Iterator[Check]:
    """Look for what NVRTC needs beside it, and for another NVRTC in this process."""
    if library is not None and not list(library.parent.glob(f"libnvrtc-builtins.so.{_text(version)}*")):
        todo = "reinstall nvidia-cuda-nvrtc; do not mix files of two versions in one folder"
        yield Check("NVRTC", "problem", f"no libnvrtc-builtins.so.{_text(version)} beside {library}", todo)
    others = sorted(set(_all_loaded("libnvrtc.so")) - {str(library)})
    if library is not None and others:
        todo = "kernels are built by the first one; import onekernel before the library that brought the other"
        yield Check("NVRTC", "note", f"{library} and {', '.join(others)} in one process", todo)


def _against_driver(version: tuple[int, int]) -> Iterator[Check]:
    newest = driver.version()
    if newest is None or newest >= version:
        return
    found = f"NVRTC {_text(version)} is newer than the driver (CUDA {_text(newest)})"
    if newest[0] < version[0]:
        todo = f"update the driver, or install 'nvidia-cuda-nvrtc<{newest[0] + 1}'"
        yield Check("NVRTC", "problem", found, todo)
    else:
        todo = (
            "cubins run, and OneKernel builds cubins; PTX would be refused (error 222): keep that in mind for plugins"
        )
        yield Check("NVRTC", "note", found, todo)


def _torch() -> Iterator[Check]:
    """Read torch's version from its metadata: to import it would take seconds."""
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return
    yield Check("torch", "ok", version)


def _gpus() -> Iterator[Check]:
    from onekernel.device import get, gpu_count
    from onekernel.jit.compile import nvrtc

    for ordinal in range(gpu_count()):
        place: Any = get(f"cuda:{ordinal}")
        name = f"GPU {ordinal}"
        shared = ", a MIG slice" * ("MIG" in place.name) + ", shared through MPS" * Path("/tmp/nvidia-mps").exists()
        if place.compute_mode == 2:
            todo = "set it with: nvidia-smi -c DEFAULT"
            yield Check(name, "problem", f"{place.name} is in compute mode PROHIBITED", todo)
            continue
        try:
            target = nvrtc.check_arch(place.arch)
            how = "cubins" if target.kind == "cubin" else f"PTX of {target.option}, finished by the driver"
            yield Check(name, "ok", f"{place.name}, {place.arch}, {place.memory >> 30} GiB{shared}: {how}")
        except OneKernelError as error:
            yield Check(name, "problem", f"{place.name}, {place.arch}: {_one_line(error)}", "see NVRTC above")


def _cache() -> Iterator[Check]:
    from onekernel.jit.cache.listing import usage

    asked = settings.load()
    state = usage(asked.cache, asked.cache_limit)
    todo = "kernels are built again in every process: set ONEKERNEL_CACHE to a folder that can be written"
    if state.folder is None:
        yield Check("cache", "note", "in memory only", todo)
    elif not state.trusted:
        yield Check(
            "cache", "problem", f"{state.folder} can be written by others", "chmod go-w, or set ONEKERNEL_CACHE"
        )
    elif not state.writable:
        yield Check("cache", "note", f"{state.folder} cannot be written", todo)
    else:
        limit = f"of {state.limit / 1e6:.0f}" if state.limit else "without limit, of any"
        yield Check("cache", "ok", f"{state.folder}: {state.entries} kernels, {state.bytes / 1e6:.1f} {limit} MB")


def _emulation() -> Iterator[Check]:
    from onekernel.device import host_compiler

    if shutil.which("g++") is None:
        todo = "for the emulated device, install it (Debian: apt-get install g++); GPUs do not need it"
        yield Check("g++", "note", "none on PATH", todo)
    else:
        yield Check("g++", "ok", f"{host_compiler.version()}, {host_compiler.compiler()}")


_LOOKS = (_python, _driver, _nvrtc, _torch, _gpus, _cache, _emulation)


def _try_gpu() -> Check:
    from onekernel.device import get, gpu_count

    if not driver.driver() or not gpu_count():
        return Check("run on a GPU", "note", "there is no usable GPU", "see the driver above")
    return _try("run on a GPU", lambda: get("cuda"))


def _try_emulated() -> Check:
    from onekernel.device.emulated import EmulatedDevice

    if shutil.which("g++") is None:
        return Check("run emulated", "note", "there is no g++", "see g++ above")
    return _try("run emulated", lambda: EmulatedDevice(sanitize=True))


def _try(name: str, place: Callable[[], Any]) -> Check:
    import numpy as np

    from onekernel.jit import kernel

    try:
        device = place()
        parameters = [("x", "const int*"), ("y", "int*")]
        built = kernel(_KERNEL, entry="doctor", parameters=parameters, device=device, threads=32)
        x, y = (device.upload(np.full(32, value, np.int32)) for value in (41, 0))
        built.launch(x, y, grid=1)
        right = bool((y.numpy() == 42).all())
    except Exception as error:
        return Check(name, "problem", _one_line(error), "see the checks above")
    if not right:
        return Check(name, "problem", "a small kernel gave a wrong result", "report it, with this page")
    return Check(name, "ok", "a small kernel was built and gave the right result")


def _text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def _wsl() -> bool:
    return "microsoft" in _read(Path("/proc/version")).lower()


def _loaded(name: str) -> str:
    return next(iter(_all_loaded(name)), "")


def _all_loaded(name: str) -> list[str]:
    """Name the files of a library that this process has loaded, whoever asked for them."""
    paths = [line.split()[-1] for line in _read(Path("/proc/self/maps")).splitlines() if name in line]
    return list(dict.fromkeys(path for path in paths if Path(path).name.startswith(name)))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
