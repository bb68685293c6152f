"""NVRTC, what lies beside it and what it must fit; torch's CUDA; g++."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from onekernel.device.cuda import driver
from onekernel.doctor import host
from onekernel.doctor.health import Check, dotted, one_line, problem
from onekernel.errors import OneKernelError

_TWO_LINES = '#include "primitives.cuh"\nextern "C" __global__ void doctor(int* x) { *x = 1; }\n'
_WHEEL = re.compile(r"nvidia-cuda-nvrtc(-cu\d+)?")
_TORCH_CUDA = re.compile(r"^cuda\b[^=]*=\s*['\"]([\d.]+)['\"]", re.MULTILINE)


def examine_nvrtc() -> Iterator[Check]:
    """Look which NVRTC is loaded, whether it compiles, and whether it fits what is around it."""
    from onekernel.jit.compile import nvrtc

    try:
        version, library = nvrtc.version(), nvrtc.library()
    except OneKernelError as error:
        yield problem("NVRTC", error)
        return
    archs = nvrtc.supported_archs()
    named = f"{dotted(version)} build {nvrtc.build()[:12]}, {archs[0]} to {archs[-1]}, {library}"
    beside = list(_companions(version, library))
    try:
        nvrtc.compile_cubin("doctor", _TWO_LINES, archs[-1])
        yield Check("NVRTC", "ok", named)
    except OneKernelError as error:
        todo = "reinstall it: pip install --force-reinstall 'nvidia-cuda-nvrtc>=13,<14'"
        yield Check("NVRTC", "problem", f"{named}: it does not compile two lines: {one_line(error)}", todo)
    yield from beside
    yield from _against_driver(version)


def _companions(version: tuple[int, int], library: Path | None) -> Iterator[Check]:
    """Look for what NVRTC needs beside it, and for others: in this process, and among the wheels."""
    if library is not None and not list(library.parent.glob(f"libnvrtc-builtins.so.{dotted(version)}*")):
        todo = "reinstall nvidia-cuda-nvrtc; do not mix files of two versions in one folder"
        yield Check("NVRTC", "problem", f"no libnvrtc-builtins.so.{dotted(version)} beside {library}", todo)
    others = [path for path in host.loaded("libnvrtc.so") if library and Path(path).resolve() != library.resolve()]
    if others:
        todo = "kernels are built by the first; to be sure which, import onekernel before what brought the other"
        yield Check("NVRTC", "note", f"{library} and {', '.join(others)} in one process", todo)
    wheels = sorted({f"{wheel.name} {wheel.version}" for wheel in metadata.distributions() if _is_nvrtc(wheel)})
    if len(wheels) > 1:
        todo = "this is well: each library loads its own, and OneKernel the one named above"
        yield Check("NVRTC", "note", f"{len(wheels)} are installed: {', '.join(wheels)}", todo)


def _is_nvrtc(wheel: metadata.Distribution) -> bool:
    return _WHEEL.fullmatch(str(wheel.metadata["Name"]).lower()) is not None


def _against_driver(version: tuple[int, int]) -> Iterator[Check]:
    newest = driver.version()
    if newest is None or newest >= version:
        return
    found = f"NVRTC {dotted(version)} is newer than the driver (CUDA {dotted(newest)})"
    if newest[0] < version[0]:
        needed = ", branch 580 or newer" if version[0] == 13 else ""
        yield Check("NVRTC", "problem", found, f"update the driver to one for CUDA {version[0]}{needed}")
        return
    todo = (
        "kernels run: they are built as cubins; PTX would be refused (error 222), so for a GPU that NVRTC does not "
        f"know, update the driver or pip install 'nvidia-cuda-nvrtc=={dotted(newest)}.*'"
    )
    yield Check("NVRTC", "note", found, todo)


def examine_torch() -> Iterator[Check]:
    """Read torch's CUDA version from its files: to import it would take seconds."""
    try:
        torch = metadata.distribution("torch")
    except metadata.PackageNotFoundError:
        return
    found = _TORCH_CUDA.search(host.read(Path(str(torch.locate_file("torch/version.py")))))
    newest = driver.version()
    if found is None:
        todo = "its tensors stay on the CPU; for the GPU, install a torch with CUDA (pytorch.org)" if newest else ""
        yield Check("torch", "note" if newest else "ok", f"{torch.version}, without CUDA", todo)
    elif newest and int(found[1].split(".")[0]) > newest[0]:
        todo = "torch cannot use the GPU: update the driver, or install a torch for the driver's CUDA (pytorch.org)"
        yield Check("torch", "note", f"{torch.version}, CUDA {found[1]}: newer than the driver", todo)
    else:
        yield Check("torch", "ok", f"{torch.version}, CUDA {found[1]}")


def examine_compiler() -> Iterator[Check]:
    """Look for g++, which builds kernels for the emulated device."""
    from onekernel.device import host_compiler

    if shutil.which("g++") is None:
        todo = "for the emulated device, install it (Debian: apt-get install g++); GPUs do not need it"
        yield Check("g++", "note", "none on PATH", todo)
    else:
        yield Check("g++", "ok", f"{host_compiler.version()}, {host_compiler.compiler()}")
