"""KernelRequest -> Binary: the key over everything that goes in, and the cache that builds a key once."""

from __future__ import annotations

import warnings
from functools import cache, partial
from pathlib import Path

from onekernel import settings
from onekernel._version import __version__
from onekernel.device import counters, machine
from onekernel.errors import InvalidInput
from onekernel.jit.cache import Entry, KernelCache, Label, digest
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


def build_request(request: KernelRequest, *, emulate: bool = False, sanitize: bool = False) -> Binary:
    """Build a request now, whatever a cache holds. Raises CompileError or InvalidInput."""
    name, text, arch = request.name, kernel_text(request), request.arch
    if emulate:
        _provide_machine()
        binary = emulated.compile_emulated(name, text, arch, sanitize=sanitize)
    else:
        binary = nvrtc.compile_cubin(name, text, arch)
    counters.compiled(binary.seconds)
    return binary


def compile_request(request: KernelRequest, *, emulate: bool = False, sanitize: bool = False) -> Binary:
    """Build a request for its architecture, or for the emulated device, there with checks of every access or without.

    Raises CompileError or InvalidInput.
    """
    if emulate:
        _provide_machine()
    builder = partial(build_request, request, emulate=emulate, sanitize=sanitize)
    return _current().get(label_of(request, emulate=emulate, sanitize=sanitize), kernel_text(request), builder)


def find_built(request: KernelRequest, *, emulate: bool = False, sanitize: bool = False) -> Binary | None:
    """Return what is there without any building: adopted from a saved model, in memory, or on disk.

    An adopted binary counts whichever compiler made it, and needs none to be found.
    """
    if (shipped := _adopted.get(identity_of(request, emulate=emulate))) is not None:
        return shipped
    try:
        found = _current().find(label_of(request, emulate=emulate, sanitize=sanitize))
    except InvalidInput:  # no compiler on this machine, so none whose binaries the cache could hold
        return None
    if found and emulate:
        _provide_machine()
    return found


def keep(request: KernelRequest, binary: Binary, *, emulate: bool = False, sanitize: bool = False) -> None:
    """Remember what a worker process has built for a request; its time counts as this process's."""
    counters.compiled(binary.seconds)
    _current().adopt(label_of(request, emulate=emulate, sanitize=sanitize).key, binary)


def request_key(request: KernelRequest, compiler: str) -> str:
    """Hash everything that the binary depends on: texts, headers, architecture, compiler and options, version."""
    return _key(compiler, request.arch, kernel_text(request))


def _key(compiler: str, target: str, text: str) -> str:
    headers = [part for name, content in closure(text).items() for part in (name, content)]
    return digest(__version__, compiler, target, text, *headers)


def label_of(request: KernelRequest, *, emulate: bool = False, sanitize: bool = False) -> Label:
    """Return what a request's binary is kept as. Raises InvalidInput when its compiler is not here."""
    compiler = emulated.compiler_id(sanitize=sanitize) if emulate else nvrtc.compiler_id()
    return Label(request_key(request, compiler), request.name, _target(request, emulate), compiler)


def identity_of(request: KernelRequest, *, emulate: bool = False) -> str:
    """Hash the same without a compiler: what a request computes and for what, whichever builds it."""
    return _key("", _target(request, emulate), kernel_text(request))


_EMULATED = "emulated "


def _target(request: KernelRequest, emulate: bool) -> str:
    return f"{_EMULATED if emulate else ''}{request.arch}"


_adopted: dict[str, Binary] = {}  # by identity


def adopt(entry: Entry) -> None:
    """Use a binary from elsewhere (a saved model) for its request instead of compiling."""
    label = entry.label
    _current().adopt(label.key, entry.binary)
    arch = label.target.removeprefix(_EMULATED)
    if label.key == _key(label.compiler, arch, entry.text):  # it was made of the headers that are here
        _adopted[_key("", label.target, entry.text)] = entry.binary
