"""When a kernel that a model needs is built: at once, behind its back, or never.

    block        the caller waits for the compiler the first time
    background   one thread builds and loads; until then, and if it fails, the caller takes its other way
    never        only what is loaded, adopted or in the cache is used: no compiler is needed on the machine

A kernel that is not there raises NotReady: whoever has another way to compute the result takes it. While a stream is
captured nothing is built or loaded, whatever the policy, because that would spoil the capture.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any

from onekernel import settings
from onekernel.device import Device
from onekernel.errors import InvalidInput, NotReady
from onekernel.jit.build import find_built, identity_of
from onekernel.jit.kernel import Kernel
from onekernel.jit.request import KernelRequest

POLICIES = ("block", "background", "never")


@cache
def _builder() -> ThreadPoolExecutor:
    """One thread for the whole process: NVRTC does little more with two."""
    return ThreadPoolExecutor(1, thread_name_prefix="onekernel-builder")


os.register_at_fork(after_in_child=_builder.cache_clear)


class Supply:
    """The kernels of one device by request. Any thread may ask."""

    def __init__(self, device: Device, policy: str | None = None) -> None:
        """`policy` None is the ONEKERNEL_COMPILE setting. Raises InvalidInput for a policy that does not exist."""
        self.policy = settings.load().compile if policy is None else policy
        if self.policy not in POLICIES:
            todo = "name one of them (the argument `compile`, or ONEKERNEL_COMPILE)"
            raise InvalidInput(expected=f"one of {', '.join(POLICIES)}", got=repr(self.policy), todo=todo)
        self.device = device
        self._kernels: dict[KernelRequest, Kernel] = {}
        self._pending: dict[KernelRequest, Future[Kernel]] = {}
        self._told: set[KernelRequest] = set()
        self._lock = threading.RLock()
        self._local = threading.local()

    def get(self, request: KernelRequest, stream: Any = None) -> Kernel:
        """Return a loaded kernel.

        `stream` is the caller's, a handle or a torch stream. Raises NotReady, and under `block` what building and
        loading raise.
        """
        wanted: list[KernelRequest] | None = getattr(self._local, "wanted", None)
        if wanted is not None:
            wanted.append(request)
            raise self._not_ready(request, "it is only being asked for", "run warm_up to its end")
        kernel = self._kernels.get(request)
        if kernel is not None:
            return kernel
        if self.device.capturing(_handle(stream)):
            todo = "call warm_up, or run once, before the capture"
            raise self._not_ready(request, "a stream is being captured", todo)
        if self.policy == "block":
            return self.load(request)
        return self._from_background(request) if self.policy == "background" else self._from_cache(request)

    def load(self, request: KernelRequest) -> Kernel:
        """Build and load a kernel now, whatever the policy. Raises what that raises."""
        with self._lock:  # two threads must not load one kernel twice
            kernel = self._kernels.get(request)
            if kernel is None:
                kernel = self._kernels[request] = Kernel(request, self.device)
            return kernel

    def wait(self) -> None:
        """Wait until nothing is being built in the background."""
        for future in list(self._pending.values()):
            future.exception()

    @property
    def loaded(self) -> tuple[Kernel, ...]:
        return tuple(self._kernels.values())

    @contextmanager
    def asking(self) -> Iterator[list[KernelRequest]]:
        """Collect what this thread asks for instead of giving it."""
        self._local.wanted = wanted = list[KernelRequest]()
        try:
            yield wanted
        finally:
            self._local.wanted = None

    def _from_background(self, request: KernelRequest) -> Kernel:
        with self._lock:
            future = self._pending.get(request)
            if future is None:
                future = self._pending[request] = _builder().submit(self._load_quietly, request)
        if not future.done():
            raise self._not_ready(request, "it is being built", "call again later, or warm_up first")
        error = future.exception()
        if error is None:
            return future.result()
        self._tell_once(request, f"kernel {request.name!r} stays unfused: {error}")
        raise self._not_ready(request, f"its build failed ({error})", "mend the cause and start again") from error

    def _load_quietly(self, request: KernelRequest) -> Kernel:
        with self.device.relaxed():  # another thread may be capturing
            kernel = Kernel(request, self.device)
            with self._lock:
                return self._kernels.setdefault(request, kernel)

    def _from_cache(self, request: KernelRequest) -> Kernel:
        binary = find_built(request, emulate=self.device.emulated, sanitize=self.device.sanitize)
        if binary is not None:
            with self._lock:
                if request not in self._kernels:
                    self._kernels[request] = Kernel(request, self.device, binary)
                return self._kernels[request]
        refusal = self._not_ready(request, "the policy is never to build", "build it elsewhere and load its bundle")
        self._tell_once(request, str(refusal))
        raise refusal

    def _tell_once(self, request: KernelRequest, message: str) -> None:
        with self._lock:
            told = request in self._told
            self._told.add(request)
        if not told:
            warnings.warn(message, RuntimeWarning, stacklevel=2)

    def _not_ready(self, request: KernelRequest, reason: str, todo: str) -> NotReady:
        return NotReady(request.name, identity_of(request), reason, todo)


def _handle(stream: Any) -> int | None:
    return None if stream is None else int(getattr(stream, "cuda_stream", stream))
