"""Energy, clocks and heat by NVML: on a module that keeps its rules, and on a GPU where there is one."""

from __future__ import annotations

import gc
import sys
import time
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from onekernel.device import get
from onekernel.device.cuda.nvml import open_meter
from onekernel.errors import DeviceError, MissingExtra

UUID, BUS = "GPU-73747562-2064-7269-7665-722067707500", "00000000:0a:1f.0"
PCI = {"PCI_DOMAIN_ID": 0, "PCI_BUS_ID": 0x0A, "PCI_DEVICE_ID": 0x1F}


class NVMLError(Exception):
    """As in pynvml: made of a status, which is its value."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __str__(self) -> str:
        return {1: "Uninitialized", 2: "Invalid Argument", 3: "Not Supported", 6: "Not Found"}[self.value]


class Library:
    """NVML with one GPU: every call needs a start before it and the GPU's own handle, and counts in its units."""

    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self) -> None:
        self.started, self.handle, self.known = 0, object(), {UUID, BUS}
        self.status = 0  # what a start answers
        self.millijoules, self.reasons, self.asked = iter(count(5_000)), 0, list[str]()

    def nvmlInit(self) -> None:  # noqa: N802
        if self.status:
            raise NVMLError(self.status)
        self.started += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self._check(self.handle)
        self.started -= 1

    def _find(self, name: str) -> object:
        self._check(self.handle)
        self.asked.append(name)
        if name not in self.known:
            raise NVMLError(6)
        return self.handle

    nvmlDeviceGetHandleByUUID = nvmlDeviceGetHandleByPciBusId = _find  # noqa: N815

    def _check(self, handle: object, good: bool = True) -> None:
        if not self.started:
            raise NVMLError(1)
        if handle is not self.handle or not good:
            raise NVMLError(2)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: object) -> int:  # noqa: N802
        self._check(handle)
        return next(self.millijoules)

    def nvmlDeviceGetPowerUsage(self, handle: object) -> int:  # noqa: N802
        self._check(handle)
        return 123_500

    def nvmlDeviceGetClockInfo(self, handle: object, kind: int) -> int:  # noqa: N802
        self._check(handle, kind in (1, 2))
        return {1: 1980, 2: 3201}[kind]

    def nvmlDeviceGetTemperature(self, handle: object, sensor: int) -> int:  # noqa: N802
        self._check(handle, sensor == 0)
        return 41

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: object) -> int:  # noqa: N802
        self._check(handle)
        return self.reasons


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library()
    monkeypatch.setitem(sys.modules, "pynvml", made)
    return made


@pytest.fixture
def device() -> Any:
    return SimpleNamespace(uuid=UUID, attribute=PCI.__getitem__)


def test_a_meter_reads_in_units_of_the_si(library: Library, device: Any) -> None:
    meter = open_meter(device)
    assert (meter.joules(), meter.watts()) == pytest.approx((5.0, 123.5))
    assert (meter.clocks(), meter.celsius(), meter.throttled()) == ((1980, 3201), 41, ())
    library.reasons = 0x4
    assert meter.state() == {
        "joules": pytest.approx(5.001), "watts": pytest.approx(123.5), "sm_mhz": 1980, "memory_mhz": 3201,
        "celsius": 41, "throttled": ["software power cap"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("reasons", "names"),
    [
        (0x1 | 0x2, ()),
        (0x1 | 0x8 | 0x40, ("hardware slowdown", "hardware thermal slowdown")),
        (0x2 | 0x80 | 0x4000, ("hardware power brake", "reason 0x4000")),
    ],
)
def test_what_keeps_the_clocks_down_is_named(
    library: Library, device: Any, reasons: int, names: tuple[str, ...]
) -> None:
    library.reasons = reasons
    assert open_meter(device).throttled() == names


def test_the_gpu_is_found_by_what_it_is_and_not_by_its_number(library: Library, device: Any) -> None:
    open_meter(device)
    assert library.asked == [UUID]
    library.known = {BUS}
    assert open_meter(device).celsius() == 41
    assert library.asked == [UUID, UUID, BUS]
    library.known = set()
    with pytest.raises(DeviceError, match=r"nvmlDeviceGetHandleByPciBusId failed: Not Found") as raised:
        open_meter(device)
    assert raised.value.code == 6


def test_nvml_is_stopped_as_often_as_it_was_started(library: Library, device: Any) -> None:
    one, other = open_meter(device), open_meter(device)
    assert library.started == 2
    del one
    gc.collect()
    assert (library.started, other.celsius()) == (1, 41)
    library.known = set()
    with pytest.raises(DeviceError):
        open_meter(device)
    gc.collect()
    assert library.started == 1


def test_who_refuses_says_what(library: Library, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> int:
        raise NVMLError(3)

    meter = open_meter(device)
    monkeypatch.setattr(library, "nvmlDeviceGetTotalEnergyConsumption", refuse)
    for read in (meter.joules, meter.state):
        with pytest.raises(DeviceError, match="nvmlDeviceGetTotalEnergyConsumption failed: Not Supported"):
            read()
    library.status = 1
    with pytest.raises(DeviceError, match="nvmlInit failed: Uninitialized"):
        open_meter(device)


def test_without_the_package_its_extra_is_named(monkeypatch: pytest.MonkeyPatch, device: Any) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(MissingExtra, match=r"onekernel\[gpu-metrics\]"):
        open_meter(device)


@pytest.mark.gpu
def test_a_gpu_is_metered() -> None:
    pytest.importorskip("pynvml")
    device: Any = get("cuda")
    meter = open_meter(device)
    before = meter.joules()
    time.sleep(0.3)  # the counter is updated every 10 to 100 ms
    assert meter.joules() > before
    state = meter.state()
    assert state["joules"] >= before
    assert state["watts"] > 0
    assert 0 < state["celsius"] < 120
    assert min(state["sm_mhz"], state["memory_mhz"]) > 0
