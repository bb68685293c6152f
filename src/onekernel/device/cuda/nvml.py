"""Energy, power, clocks and heat of a GPU, read from NVML by the optional package nvidia-ml-py."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from onekernel.errors import DeviceError, MissingExtra

if TYPE_CHECKING:
    from onekernel.device.cuda.gpu import GpuDevice

# The bits of nvmlClocksEventReasons; an idle GPU (1) and clocks that were asked for (2) slow nothing down.
_WANTED = 0x1 | 0x2
_REASONS = {
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "display clock setting",
}


def open_meter(device: GpuDevice) -> Meter:
    """Return the meter of a GPU.

    Raises MissingExtra without nvidia-ml-py, and DeviceError when NVML does not start or does not know the GPU.
    """
    try:
        import pynvml
    except ModuleNotFoundError as error:
        raise MissingExtra("nvidia-ml-py", "gpu-metrics") from error
    return Meter(pynvml, device)


class Meter:
    """Reads one GPU. Every method raises DeviceError when NVML refuses, as it does what a GPU does not have."""

    def __init__(self, nvml: Any, device: GpuDevice) -> None:
        self._nvml = nvml
        self._call("nvmlInit")
        weakref.finalize(self, nvml.nvmlShutdown)  # NVML counts how often it was started
        self._handle = self._find(device)

    def joules(self) -> float:
        """Return the energy that the GPU has used since the driver was loaded."""
        return self._ask("nvmlDeviceGetTotalEnergyConsumption") * 1e-3

    def watts(self) -> float:
        """Return the power that the whole board draws, as NVML averages it."""
        return self._ask("nvmlDeviceGetPowerUsage") * 1e-3

    def clocks(self) -> tuple[int, int]:
        """Return the clocks of the multiprocessors and of the memory, in MHz."""
        multiprocessors, memory = self._nvml.NVML_CLOCK_SM, self._nvml.NVML_CLOCK_MEM
        return self._ask("nvmlDeviceGetClockInfo", multiprocessors), self._ask("nvmlDeviceGetClockInfo", memory)

    def celsius(self) -> int:
        """Return the temperature of the chip."""
        return self._ask("nvmlDeviceGetTemperature", self._nvml.NVML_TEMPERATURE_GPU)

    def throttled(self) -> tuple[str, ...]:
        """Name what keeps the clocks down at this moment, other than having no work and having been told to."""
        reasons = self._ask("nvmlDeviceGetCurrentClocksEventReasons") & ~_WANTED
        bits = (1 << number for number in range(reasons.bit_length()))
        return tuple(_REASONS.get(bit, f"reason {bit:#x}") for bit in bits if reasons & bit)

    def state(self) -> dict[str, Any]:
        """Return everything at once, for a record."""
        multiprocessors, memory = self.clocks()
        return {
            "joules": self.joules(),
            "watts": self.watts(),
            "sm_mhz": multiprocessors,
            "memory_mhz": memory,
            "celsius": self.celsius(),
            "throttled": list(self.throttled()),
        }

    def _find(self, device: GpuDevice) -> Any:
        """Find the GPU by its UUID: NVML does not number GPUs as CUDA does. Some containers know only its bus."""
        try:
            return self._call("nvmlDeviceGetHandleByUUID", device.uuid)
        except DeviceError:
            domain, bus, slot = (device.attribute(f"PCI_{part}_ID") for part in ("DOMAIN", "BUS", "DEVICE"))
            return self._call("nvmlDeviceGetHandleByPciBusId", f"{domain:08x}:{bus:02x}:{slot:02x}.0")

    def _ask(self, name: str, *arguments: Any) -> int:
        number: int = self._call(name, self._handle, *arguments)
        return number

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            return getattr(self._nvml, name)(*arguments)
        except self._nvml.NVMLError as error:
            raise DeviceError(f"{name} failed: {error} (NVML's status {error.value})", int(error.value)) from error
