"""When kernels are built: at once, in the background, or never; and what a capture, a fork and an exit do to that."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from onekernel.device.emulated import EmulatedDevice
from onekernel.errors import CompileError, NotReady
from onekernel.jit import Kernel, KernelRequest, Parameter, Supply, build, policy

SCALE = """
#include "primitives.cuh"
extern "C" __global__ void scale(float* y) { y[threadIdx.x] *= FACTOR; }
"""


def request(factor: float) -> KernelRequest:
    return KernelRequest(
        "scale", "sm_90", (Parameter("y", "float*"),), 32, source=SCALE.replace("FACTOR", f"{factor}f")
    )


class Capturing(EmulatedDevice):
    """Says that a stream is being captured: the stream 7, or none in particular."""

    def capturing(self, stream: int | None = None) -> bool:
        """Of no other stream."""
        return stream in (7, None)


def test_threads_share_one_load(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = []
    monkeypatch.setattr(policy, "Kernel", lambda *given: loads.append(1) or Kernel(*given))
    supply, got = Supply(EmulatedDevice(), "block"), []
    threads = [threading.Thread(target=lambda: got.append(supply.get(request(2.0)))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(loads), len(set(map(id, got)))) == (1, 1)


class Relaxed(EmulatedDevice):
    """Knows whether it is in relaxed capture mode."""

    now = False

    @contextmanager
    def relaxed(self) -> Iterator[None]:  # type: ignore[override]
        """Remember it."""
        self.now = True
        yield
        self.now = False

    def load(self, binary: bytes, entry: str, shared: int = 0) -> int:
        """Refuse to load in another mode."""
        assert self.now
        return super().load(binary, entry, shared)


@pytest.mark.parametrize("asked", ["block", "background", "never"])
def test_a_load_does_not_spoil_another_threads_capture(asked: str) -> None:
    supply, wanted = Supply(Relaxed(), asked), request(20.0)
    build.compile_request(wanted, emulate=True)
    if asked == "background":
        with suppress(NotReady):  # what is on disk may be there at once
            supply.get(wanted)
        supply.wait()
    assert supply.get(wanted).request == wanted


@pytest.mark.parametrize("asked", ["block", "background", "never"])
def test_nothing_is_built_in_a_capture(asked: str) -> None:
    supply, wanted = Supply(Capturing(), asked), request(3.0 + len(asked))
    with pytest.raises(NotReady, match="a stream is being captured; call warm_up") as raised:
        supply.get(wanted, 7)
    assert raised.value.key == build.identity_of(wanted, emulate=True)
    assert raised.value.key[:16] in str(raised.value)
    Supply(EmulatedDevice(), "block").get(wanted)  # puts it into the cache
    supply.warm_up([wanted])
    assert supply.get(wanted, 7).request == wanted


def test_under_never_a_warm_up_loads_and_builds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    supply, there, missing = Supply(EmulatedDevice(), "never"), request(30.0), request(31.0)
    build.compile_request(there, emulate=True)
    supply.warm_up([missing, there])
    monkeypatch.delattr(policy, "Kernel")  # nothing is loaded from here on
    assert supply.get(there).request == there
    with pytest.raises(NotReady, match="the policy is never to build"):
        supply.get(missing)
    assert not build.find_built(missing, emulate=True)


def test_a_failure_is_raised_to_whoever_waits() -> None:
    supply = Supply(EmulatedDevice(), "block")
    broken = replace(request(1.0), source="no such text")
    for _ in range(2):
        with pytest.raises(CompileError):
            supply.get(broken)


EXIT = """
import time
from onekernel.device.emulated import EmulatedDevice
from onekernel.errors import NotReady
from onekernel.jit import Supply, background, policy
from test_policy import request
def slow(*_):
    while not background._background._ends:  # until the process is about to end
        time.sleep(0.01)
    print("built", flush=True)
policy.Kernel = slow
supply = Supply(EmulatedDevice(), "background")
for factor in (1.0, 2.0, 3.0):
    try:
        supply.get(request(factor))
    except NotReady as refusal:
        print(refusal.reason, flush=True)
"""


def test_a_process_ends_when_the_build_that_runs_has_ended() -> None:
    assert python(EXIT) == "it is being built\n" * 3 + "built\n", "of three, one has begun"


FORK = """
import os, threading
from onekernel.device.emulated import EmulatedDevice
from onekernel.errors import NotReady
from onekernel.jit import Kernel, Supply, policy
from test_policy import request
supply, gate = Supply(EmulatedDevice(), "background"), threading.Event()
def ask(factor):
    try:
        return supply.get(request(factor)).request.name
    except NotReady as refusal:
        return refusal.reason
def late(*arguments):
    gate.wait()
    return Kernel(*arguments)
assert ask(11.0) == "it is being built"
supply.wait()
assert ask(11.0) == "scale"
policy.Kernel = late
assert ask(12.0) == "it is being built"  # and it is, while the process is forked
child = os.fork()
if child == 0:
    policy.Kernel = Kernel
    asked = [ask(11.0), ask(12.0)]
    supply.wait()
    print(*asked, ask(12.0), sep=", ", flush=True)
    os._exit(0)
os.waitpid(child, 0)
gate.set()
"""


def test_a_forked_child_builds_what_its_parent_was_building() -> None:
    assert python(FORK) == "scale, it is being built, scale\n"


def python(text: str) -> str:
    """Run a program that may import these tests; return what it printed."""
    command = [sys.executable, "-W", "ignore", "-c", text]
    path = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    result = subprocess.run(command, env={**os.environ, **path}, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout
