"""The driver and the GPUs that it offers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from onekernel.device.cuda import driver
from onekernel.device.cuda.advice import ADVICE
from onekernel.device.cuda.facts import EXCLUSIVE, PROHIBITED, Facts
from onekernel.doctor import host
from onekernel.doctor.health import Check, dotted, problem
from onekernel.errors import OneKernelError

_MODULE = Path("/proc/driver/nvidia/version")
_NO_DRIVER = "for a GPU, install NVIDIA's driver; without one, kernels run on the emulated device"
_HALF_A_DRIVER = (
    "the driver's kernel module is there, its library is not: start the container with --gpus all (NVIDIA Container "
    "Toolkit), or install the driver again"
)
_NO_USE = "install NVIDIA's driver, branch 580 or newer, and see which libcuda.so.1 LD_LIBRARY_PATH finds first"
_UNDER_WSL = "under WSL the driver is Windows': install it there; it then shows up in /usr/lib/wsl/lib"


def examine_driver() -> Iterator[Check]:
    """Look for libcuda.so.1 and whether it starts."""
    status, version = driver.init_status(), driver.version()
    release = release_of(host.read(_MODULE))
    if status is None:
        yield _absent(driver.refusal() or "", release)
        return
    path = next(iter(host.loaded("libcuda.so")), "libcuda.so.1")
    named = f"CUDA {dotted(version)}, {path}" if version else path
    if status:
        todo = ADVICE.get(status, "see nvidia-smi and the system's log")
        yield Check("driver", "problem", f"{named}: cuInit answers {status}", todo)
    else:
        yield Check("driver", "ok", named + (f", release {release}" if release else ""))
    if host.wsl() and not path.startswith("/usr/lib/wsl"):
        yield Check("WSL", "problem", f"the driver comes from {path}", "use the one in /usr/lib/wsl/lib")


def _absent(refusal: str, release: str) -> Check:
    if refusal and not refusal.startswith("libcuda.so.1: cannot open shared object file"):
        return Check("driver", "problem", f"libcuda.so.1 is no use: {refusal}", _NO_USE)
    if release:
        return Check("driver", "problem", f"no libcuda.so.1, kernel module {release}", _HALF_A_DRIVER)
    return Check("driver", "note", "no libcuda.so.1", _UNDER_WSL if host.wsl() else _NO_DRIVER)


def release_of(text: str) -> str:
    """Find the driver's release, such as 580.95.05, in what its kernel module says of itself."""
    found = re.search(r"Kernel Module\D.*?\s(\d{3,}(?:\.\d+)+)", text)
    return found[1] if found else ""


def examine_gpus() -> Iterator[Check]:
    """Look at each GPU, without using it."""
    from onekernel.device import gpu_count
    from onekernel.device.cuda.facts import facts

    for ordinal in range(gpu_count()):
        try:
            yield _gpu(f"GPU {ordinal}", facts(ordinal))
        except OneKernelError as error:
            yield problem(f"GPU {ordinal}", error, "see nvidia-smi")


def _gpu(name: str, gpu: Facts) -> Check:
    from onekernel.jit.compile import nvrtc

    words = [gpu.name, gpu.arch, f"{gpu.memory >> 30} GiB"]
    words += ["a MIG slice"] * gpu.mig + ["shared through MPS"] * gpu.mps
    if gpu.compute_mode == PROHIBITED:
        todo = "open it with: nvidia-smi -c DEFAULT"
        return Check(name, "problem", ", ".join([*words, "compute mode PROHIBITED"]), todo)
    try:
        target = nvrtc.check_arch(gpu.arch)
    except OneKernelError as error:
        told = problem(name, error, "see NVRTC")
        return replace(told, found=f"{', '.join(words)}: {told.found}")
    built = "cubins" if target.kind == "cubin" else f"PTX of {target.option}, finished by the driver"
    if gpu.compute_mode == EXCLUSIVE and not gpu.mps:
        todo = "one process at a time can use it: for several, start MPS, or open it with: nvidia-smi -c DEFAULT"
        return Check(name, "note", f"{', '.join([*words, 'compute mode EXCLUSIVE_PROCESS'])}: {built}", todo)
    return Check(name, "ok", f"{', '.join(words)}: {built}")
