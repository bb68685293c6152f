"""The examination: every part looks for itself, and none can fail, since what is broken is what it reports."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from dataclasses import replace

from onekernel import settings
from onekernel._version import __version__
from onekernel.doctor import compilers, gpus, trial
from onekernel.doctor.health import Check, Health, problem
from onekernel.errors import InvalidInput, OneKernelError

Look = Callable[[], Iterator[Check]]


def doctor() -> Health:
    """Examine this machine: driver, NVRTC, GPUs, torch, cache, g++. It never raises."""
    found = [check for name, look in _LOOKS.items() for check in _safely(name, look)]
    runs = [check for name, look in _TRIALS.items() for check in _safely(name, look)]
    return Health((*found, *runs), usable=any(check.state == "ok" for check in runs))


def _safely(name: str, look: Look) -> Iterator[Check]:
    try:
        yield from look()
    except OneKernelError as error:  # it says what to do
        yield problem(name, error)
    except ImportError as error:
        yield problem(name, error, "the installation is not whole: reinstall onekernel with pip")
    except Exception as error:
        yield problem(name, error, "report it: this check should not fail")


def _python() -> Iterator[Check]:
    yield Check("onekernel", "ok", f"{__version__} on Python {platform.python_version()}, {platform.platform()}")


def _device() -> Iterator[Check]:
    """Look where kernels run when nobody says where."""
    from onekernel.device import get

    asked = settings.load().device
    try:
        place = get()
    except InvalidInput as error:
        told = problem("device", error)
        yield replace(told, advice=f"in ONEKERNEL_DEVICE, {told.advice}")
        return
    yield Check("device", "ok", place.name + (f", as ONEKERNEL_DEVICE={asked} asks" if asked != "auto" else ""))


def _cache() -> Iterator[Check]:
    from onekernel.jit.cache.listing import usage

    asked = settings.load()
    state = usage(asked.cache, asked.cache_limit)
    todo = "kernels are built again in every process: set ONEKERNEL_CACHE to a folder that can be written"
    if state.folder is None:
        yield Check("cache", "note", "in memory only", todo)
    elif not state.trusted:
        found = f"{state.folder} is another user's, or others can write to it"
        yield Check("cache", "problem", found, "correct its owner or mode, or set ONEKERNEL_CACHE to another folder")
    elif not state.writable:
        yield Check("cache", "note", f"{state.folder} cannot be written", todo)
    else:
        limit = f"of {state.limit / 1e6:.0f} MB" if state.limit else "without a limit"
        yield Check("cache", "ok", f"{state.folder}: {state.entries} kernels, {state.bytes / 1e6:.1f} MB {limit}")


_LOOKS: dict[str, Look] = {
    "onekernel": _python,
    "driver": gpus.examine_driver,
    "NVRTC": compilers.examine_nvrtc,
    "torch": compilers.examine_torch,
    "GPU": gpus.examine_gpus,
    "device": _device,
    "cache": _cache,
    "g++": compilers.examine_compiler,
}
_TRIALS: dict[str, Look] = {"run on a GPU": trial.on_a_gpu, "run emulated": trial.emulated}
