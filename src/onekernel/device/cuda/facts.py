"""What the driver tells of a GPU without making a context, so that a GPU which is taken or closed answers too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onekernel.device.cuda.driver import call, driver

PROHIBITED, EXCLUSIVE = 2, 3  # compute modes (CUcomputemode)


@dataclass(frozen=True)
class Facts:
    """A GPU; memory in bytes."""

    name: str
    arch: str
    memory: int
    compute_mode: int
    mps: bool  # contexts are shared through the multi-process service

    @property
    def mig(self) -> bool:
        """True for a slice of a GPU: its name says so."""
        return " MIG " in self.name


def facts(ordinal: int) -> Facts:
    """Ask for the facts of a GPU. Raises DeviceError."""
    cuda: Any = driver()
    device = call(cuda.cuDeviceGet, ordinal)
    kinds = cuda.CUdevice_attribute

    def attribute(name: str) -> int:
        return int(call(cuda.cuDeviceGetAttribute, getattr(kinds, f"CU_DEVICE_ATTRIBUTE_{name}"), device))

    return Facts(
        name=call(cuda.cuDeviceGetName, 256, device).split(b"\0")[0].decode(),
        arch=f"sm_{attribute('COMPUTE_CAPABILITY_MAJOR')}{attribute('COMPUTE_CAPABILITY_MINOR')}",
        memory=int(call(cuda.cuDeviceTotalMem, device)),
        compute_mode=attribute("COMPUTE_MODE"),
        mps=_shared(cuda, device),
    )


def _shared(cuda: Any, device: Any) -> bool:
    """Say whether MPS serves the GPU; drivers before CUDA 12.3 refuse the question."""
    kind = getattr(cuda.CUdevice_attribute, "CU_DEVICE_ATTRIBUTE_MPS_ENABLED", None)
    status, value = cuda.cuDeviceGetAttribute(kind, device) if kind else (1, 0)
    return int(status) == 0 and bool(value)
