"""WHERE kernels run: a GPU, or the emulated device (kernels built by g++, threads as fibres)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, Protocol

import numpy.typing as npt

from onekernel import settings
from onekernel.device.buffer import Buffer, View
from onekernel.device.launch import Launcher, LaunchShape
from onekernel.errors import InvalidInput

__all__ = ["Buffer", "Device", "LaunchShape", "View", "get"]


class Device(Protocol):
    """What a kernel needs of the place where it runs."""

    @property
    def name(self) -> str: ...
    @property
    def arch(self) -> str: ...
    @property
    def emulated(self) -> bool: ...
    @property
    def sanitize(self) -> bool: ...
    def empty(self, shape: Sequence[int], dtype: str) -> Buffer: ...
    def upload(self, array: npt.NDArray[Any]) -> Buffer: ...
    def holds(self, where: View) -> bool: ...
    def load(self, binary: bytes, entry: str, shared: int = 0) -> Any: ...
    def launcher(self, handle: Any, shape: LaunchShape) -> Launcher: ...
    def capturing(self, stream: int | None = None) -> bool: ...
    def relaxed(self) -> AbstractContextManager[None]: ...
    def synchronize(self) -> None: ...


@cache
def _gpu(ordinal: int) -> Device:
    from onekernel.device.cuda.gpu import GpuDevice

    return GpuDevice(ordinal)


def gpu_count() -> int:
    """Return how many GPUs can be used."""
    from onekernel.device.cuda.gpu import count

    return count()


def get(name: str | None = None) -> Device:
    """Return a device by name: "cuda", "cuda:1", "emulated", or "auto" (the GPU when there is one).

    None means the ONEKERNEL_DEVICE setting. Raises InvalidInput for a name or a GPU that does not exist.
    """
    name = settings.load().device if name is None else name
    if name == "auto":
        name = "cuda" if gpu_count() else "emulated"
    if name == "emulated":
        from onekernel.device.emulated import EmulatedDevice

        return EmulatedDevice()
    kind, _, ordinal = name.partition(":")
    if kind != "cuda" or not (ordinal or "0").isdecimal():
        raise InvalidInput(expected="cuda, cuda:N, emulated or auto", got=repr(name), todo="name one of them")
    if int(ordinal or 0) >= gpu_count():
        raise InvalidInput(
            expected=f"one of {gpu_count()} GPUs", got=repr(name), todo="use emulated, or see: onekernel doctor"
        )
    return _gpu(int(ordinal or 0))
