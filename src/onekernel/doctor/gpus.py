"""The driver and the GPUs that it offers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from onekernel.device.cuda import driver
from onekernel.device.cuda.advice import ADVICE
from onekernel.device.cuda.facts import EXCLUSIVE, PROHIBITED, Facts
from onekernel.doctor import host
from onekernel.doctor.health import Check, dotted, one_line
from onekernel.errors import OneKernelError

_NO_DRIVER = "for a GPU, install NVIDIA's driver; without one, kernels run on the emulated device"
_UNDER_WSL = "under WSL the driver is Windows': install it there; it then shows up in /usr/lib/wsl/lib"


def examine_driver() -> Iterator[Check]:
    """Look for libcuda.so.1 and whether it starts."""
    status, version = driver.init_status(), driver.version()
    if status is None:
        yield Check("driver", "note", "no libcuda.so.1", _UNDER_WSL if host.wsl() else _NO_DRIVER)
        return
    path = next(iter(host.loaded("libcuda.so")), "libcuda.so.1")
    named = f"CUDA {dotted(version)}, {path}" if version else path
    if status:
        todo = ADVICE.get(status, "see nvidia-smi and the system's log")
        yield Check("driver", "problem", f"{named}: cuInit answers {status}", todo)
    else:
        release = release_of(host.read(Path("/proc/driver/nvidia/version")))
        yield Check("driver", "ok", named + (f", release {release}" if release else ""))
    if host.wsl() and not path.startswith("/usr/lib/wsl"):
        yield Check("WSL", "problem", f"the driver comes from {path}", "use the one in /usr/lib/wsl/lib")


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
            yield Check(f"GPU {ordinal}", "problem", one_line(error), "see nvidia-smi")


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
        return Check(name, "problem", f"{', '.join(words)}: {one_line(error)}", "see NVRTC")
    built = "cubins" if target.kind == "cubin" else f"PTX of {target.option}, finished by the driver"
    if gpu.compute_mode == EXCLUSIVE and not gpu.mps:
        todo = "one process at a time can use it: for several, start MPS, or open it with: nvidia-smi -c DEFAULT"
        return Check(name, "note", f"{', '.join([*words, 'compute mode EXCLUSIVE_PROCESS'])}: {built}", todo)
    return Check(name, "ok", f"{', '.join(words)}: {built}")
