"""KernelRequest -> Binary: the key over everything that goes in, and the cache that builds a key once."""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path

from onekernel import settings
from onekernel._version import __version__
from onekernel.device import machine
from onekernel.jit.cache import KernelCache, Label, digest
from onekernel.jit.compile import emulated, nvrtc
from onekernel.jit.compile.binary import Binary
from onekernel.jit.generate import kernel_text
from onekernel.jit.headers import closure
from onekernel.jit.request import KernelRequest

_MACHINE_BYTES = 8_000_000  # about ten builds of the emulated machine, for as many versions


@cache
def _cache(folder: Path | None, limit: int | None) -> KernelCache:
    return KernelCache(folder, limit)


def _current() -> KernelCache:
    """Return the cache that the environment asks for."""
    asked = settings.load()
    return _cache(asked.cache, asked.cache_limit)


def _provide_machine() -> None:
    """Give this process the emulated device's machine, which is built once a host and lies beside the kernels."""
    if machine.is_open():
        return
    folder = settings.load().cache
    beside = _cache(None if folder is None else folder / ".machine", _MACHINE_BYTES)
    compiler = emulated.compiler_id()
    label = Label(digest(__version__, compiler), "machine", "emulated", compiler)
    with warnings.catch_warnings(action="ignore"):  # the kernels' own folder says what is wrong with it
        machine.use(beside.get(label, machine.text(), emulated.compile_machine).data)


def compile_request(request: KernelRequest, *, emulate: bool = False, sanitize: bool = False) -> Binary:
    """Build a request for its architecture, or for the emulated device, there with checks of every access or without.

    Raises CompileError or InvalidInput.
    """
    if emulate:
        _provide_machine()
    text = kernel_text(request)
    name, arch = request.name, request.arch
    compiler, builder = (
        (
            emulated.compiler_id(sanitize=sanitize),
            lambda: emulated.compile_emulated(name, text, arch, sanitize=sanitize),
        )
        if emulate
        else (nvrtc.compiler_id(), lambda: nvrtc.compile_cubin(name, text, arch))
    )
    label = Label(request_key(request, compiler), name, f"emulated {arch}" if emulate else arch, compiler)
    return _current().get(label, text, builder)


def request_key(request: KernelRequest, compiler: str) -> str:
    """Hash everything that the binary depends on: texts, headers, architecture, compiler and options, version."""
    text = kernel_text(request)
    headers = [part for name, content in closure(text).items() for part in (name, content)]
    return digest(__version__, compiler, request.arch, text, *headers)


def label_of(request: KernelRequest) -> Label:
    """Return what a request's cubin is kept as."""
    compiler = nvrtc.compiler_id()
    return Label(request_key(request, compiler), request.name, request.arch, compiler)


def key_of(request: KernelRequest) -> str:
    """Return the key under which a request's cubin is kept."""
    return label_of(request).key


def adopt(key: str, binary: Binary) -> None:
    """Use a cubin from elsewhere (a saved model) for the request of this key instead of compiling."""
    _current().adopt(key, binary)
