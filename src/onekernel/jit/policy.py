"""When a kernel that a model needs is built: at once, behind its back, or never.

    block        the caller waits for the compiler the first time
    background   one thread builds and loads; until then, and if it fails, the caller takes its other way
    never        only what is loaded, adopted or in the cache is used: no compiler is needed on the machine

A kernel that is not there raises NotReady: whoever has another way to compute the result asks `concede` and takes it.
While a stream is captured nothing is built or loaded, whatever the policy: it would hold the capture open, and some
drivers refuse it.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from onekernel import settings
from onekernel.device import Device
from onekernel.errors import DeviceError, InvalidInput, NotReady
from onekernel.jit import background
from onekernel.jit.build import find_built, identity_of
from onekernel.jit.cache.flight import SingleFlight
from onekernel.jit.compile.binary import Binary
from onekernel.jit.kernel import Kernel
from onekernel.jit.request import KernelRequest
from onekernel.jit.warmup import Progress, warm_up

POLICIES = ("block", "background", "never")


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
        self._refusals: dict[KernelRequest, NotReady] = {}  # the lasting ones
        self._pending: dict[tuple[int, KernelRequest], Future[Kernel]] = {}  # by process: a child has no such thread
        self._loads = SingleFlight[Kernel]()
        self._told = set[str]()
        self._local = threading.local()

    def get(self, request: KernelRequest, stream: Any = None) -> Kernel:
        """Return a loaded kernel.

        `stream` is the caller's, a handle or a torch stream. Raises NotReady, and under `block` what building and
        loading raise.
        """
        wanted = self._wanted
        if wanted is not None:
            wanted.append(request)
            raise self._refusal(request, "it is only being asked for", "run warm_up to its end")
        kernel = self._kernels.get(request)
        if kernel is not None:
            return kernel
        if self.device.capturing(_handle(stream)):
            raise self._refusal(request, "a stream is being captured", "call warm_up, or run once, before the capture")
        if request in self._refusals:
            raise self._refusals[request].with_traceback(None)
        if self.policy == "block":
            return self._load(request)
        return self._from_background(request) if self.policy == "background" else self._from_cache(request)

    def concede(self, refusal: NotReady) -> None:
        """Let a caller take its other way, with a warning for each kernel that will not come.

        Raises the refusal again under `block`: a capture would keep the other way for ever.
        """
        if self.policy == "block" and self._wanted is None:
            raise refusal
        if refusal.lasting and refusal.key not in self._told:
            self._told.add(refusal.key)
            message = f"{refusal}; until then it runs unfused"
            warnings.warn(message, RuntimeWarning, stacklevel=5)  # whoever called the model

    def warm_up(
        self, requests: Iterable[KernelRequest], *, workers: int | None = None, progress: Progress | None = None
    ) -> None:
        """Build kernels in worker processes, as jit.warm_up does, and load them; under `never` load what is there.

        Raises what that raises, when all that can be loaded is.
        """
        wanted, device = tuple(dict.fromkeys(requests)), self.device
        how = {"emulate": device.emulated, "sanitize": device.sanitize}
        try:
            if self.policy != "never":
                warm_up(wanted, workers=workers, progress=progress, **how)
        finally:
            for request in wanted:
                if binary := find_built(request, **how):
                    self._load(request, binary)

    def wait(self) -> None:
        """Wait until nothing is being built in the background."""
        for (process, _), future in list(self._pending.items()):
            if process == os.getpid():
                future.exception()

    @contextmanager
    def asking(self) -> Iterator[list[KernelRequest]]:
        """Collect what this thread asks for instead of giving it."""
        self._local.wanted = wanted = list[KernelRequest]()
        try:
            yield wanted
        finally:
            self._local.wanted = None

    @property
    def _wanted(self) -> list[KernelRequest] | None:
        return getattr(self._local, "wanted", None)

    def _load(self, request: KernelRequest, binary: Binary | None = None) -> Kernel:
        """Build, unless that was done, and load a kernel, once however many threads ask. Raises what that raises."""

        def load() -> Kernel:
            if request not in self._kernels:
                with self.device.relaxed():  # another thread may be capturing
                    self._kernels[request] = Kernel(request, self.device, binary)
            return self._kernels[request]

        return self._loads.run(identity_of(request), load)

    def _from_background(self, request: KernelRequest) -> Kernel:
        own = Future[Kernel]()
        future = self._pending.setdefault((os.getpid(), request), own)
        if future is own:
            background.submit(own, lambda: self._load(request))
        if not future.done():
            raise self._refusal(request, "it is being built", "call again later, or warm_up first")
        error = future.exception()
        if error is None:
            return future.result()
        raise self._lasting(request, f"its build failed ({_line(error)})", "mend that and start again") from error

    def _from_cache(self, request: KernelRequest) -> Kernel:
        binary = find_built(request, emulate=self.device.emulated, sanitize=self.device.sanitize)
        if binary is None:
            reason, todo = "the policy is never to build", "build it elsewhere and bring its bundle"
            raise self._lasting(request, reason, todo)
        try:
            return self._load(request, binary)
        except DeviceError as error:
            raise self._lasting(request, f"it does not load ({_line(error)})", "mend that and start again") from error

    def _lasting(self, request: KernelRequest, reason: str, todo: str) -> NotReady:
        """Remember that it is useless to try again."""
        return self._refusals.setdefault(request, self._refusal(request, reason, todo, lasting=True))

    def _refusal(self, request: KernelRequest, reason: str, todo: str, *, lasting: bool = False) -> NotReady:
        key = identity_of(request, emulate=self.device.emulated)
        return NotReady(request.name, key, reason=reason, todo=todo, lasting=lasting)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _handle(stream: Any) -> int | None:
    return None if stream is None else int(getattr(stream, "cuda_stream", stream))
