"""Many kernels at once, in worker processes: a second thread makes NVRTC hardly faster, a second process twice.

A worker runs worker.py. It is not a child of multiprocessing, which would import the user's main program again and
needs it to be guarded against that.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from queue import SimpleQueue

from onekernel.errors import OneKernelError
from onekernel.jit.build import compile_request, find_built, keep
from onekernel.jit.compile.binary import Binary
from onekernel.jit.request import KernelRequest

Progress = Callable[[int, int], None]  # how many are done, of how many

_FEW = 2  # as many are compiled before a worker has started
_PACKAGES = str(Path(__file__).parents[2])


def warm_up(
    requests: Iterable[KernelRequest],
    *,
    emulate: bool = False,
    sanitize: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
) -> None:
    """Build every request that is not in the cache; equal ones once.

    `workers`: processes, by default one for each processor. One that fails does not stop the others: afterwards the
    error is raised, or an ExceptionGroup of all of them.
    """
    missing = [item for item in dict.fromkeys(requests) if not find_built(item, emulate=emulate, sanitize=sanitize)]
    tell = progress or (lambda _done, _total: None)
    tell(0, len(missing))
    count = min(os.cpu_count() or 1 if workers is None else workers, len(missing))
    here = count <= 1 or len(missing) <= _FEW
    errors = _one_by_one(missing, emulate, sanitize, tell) if here else _shared(missing, emulate, sanitize, count, tell)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ExceptionGroup(f"{len(errors)} of {len(missing)} kernels were not built", errors)


def _one_by_one(
    requests: Sequence[KernelRequest], emulate: bool, sanitize: bool, tell: Progress
) -> list[OneKernelError]:
    errors = []
    for done, request in enumerate(requests, start=1):
        try:
            compile_request(request, emulate=emulate, sanitize=sanitize)
        except OneKernelError as error:
            errors.append(error)
        tell(done, len(requests))
    return errors


def _shared(
    requests: Sequence[KernelRequest], emulate: bool, sanitize: bool, count: int, tell: Progress
) -> list[OneKernelError]:
    """Have `count` workers build; each is driven by a thread that hands it one request after the other."""
    free, errors = SimpleQueue[_Worker](), list[OneKernelError]()

    def work(request: KernelRequest) -> None:
        worker = free.get()
        try:
            keep(request, worker.build(request, emulate, sanitize), emulate=emulate, sanitize=sanitize)
        except (OSError, EOFError, pickle.UnpicklingError):  # the worker died: its work is done here
            compile_request(request, emulate=emulate, sanitize=sanitize)
        finally:
            free.put(worker)

    with ExitStack() as stack:
        with suppress(OSError):  # as many as the system starts
            for _ in range(count):
                free.put(stack.enter_context(closing(_Worker())))
        if free.empty():
            return _one_by_one(requests, emulate, sanitize, tell)
        threads = ThreadPoolExecutor(free.qsize())
        stack.callback(threads.shutdown, cancel_futures=True)  # when interrupted: what runs is let to its end
        futures = [threads.submit(work, request) for request in requests]
        for done, future in enumerate(as_completed(futures), start=1):
            try:
                future.result()
            except OneKernelError as error:
                errors.append(error)
            tell(done, len(requests))
    return errors


class _Worker:
    """A process that builds what it is sent."""

    def __init__(self) -> None:
        path = [_PACKAGES, *filter(None, sys.path)]  # as here, wherever it was set
        code = f"import sys; sys.path[:0] = {path!r}\nfrom {__package__}.worker import main; main()"
        command = [sys.executable or "", "-W", "ignore", "-c", code]  # this process warns of the same
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def build(self, request: KernelRequest, emulate: bool, sanitize: bool) -> Binary:
        """Send a request and wait for the answer. Raises what the build raises, or OSError and EOFError."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pickle.dump((request, emulate, sanitize), self._process.stdin)
        self._process.stdin.flush()
        answer = pickle.load(self._process.stdout)
        if isinstance(answer, OneKernelError):
            raise answer
        binary: Binary = answer
        return binary

    def close(self) -> None:
        """End the process; it has nothing left to do."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(OSError):
            self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()
