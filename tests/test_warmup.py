"""Many kernels in worker processes."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernel_cases import residual_gelu
from onekernel import errors
from onekernel.device.emulated import EmulatedDevice
from onekernel.errors import CompileError, InvalidInput, InvalidOperand
from onekernel.fusion.kernel import ChainKernel
from onekernel.jit import KernelRequest, Parameter, build, compile_request, policy, warm_up, warmup
from onekernel.jit.compile import nvrtc

SOURCE = 'extern "C" __global__ void add(float* y) { y[threadIdx.x] += value; }'


def request(value: float) -> KernelRequest:
    typed = (Parameter("y", "float*"),)
    return KernelRequest("add", "sm_90", typed, 32, constants=(("value", value),), source=SOURCE)


@pytest.fixture(params=["on disk", "in memory"])
def _cache(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEKERNEL_CACHE", str(tmp_path / "cache") if request.param == "on disk" else "")


def refuse(*_: Any, **__: Any) -> Any:
    raise AssertionError("compiled in this process")


@pytest.mark.usefixtures("_cache")
def test_workers_build_for_this_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    base = float(hash(tmp_path) % 10**6)  # the cache in memory outlives a test
    wanted, told = [request(base + number) for number in range(6)], []
    with monkeypatch.context() as patch:
        patch.setattr(nvrtc, "compile_cubin", refuse)
        warm_up([*wanted, *wanted], workers=2, progress=lambda *step: told.append(step))
        assert all(compile_request(item).data for item in wanted)
    assert told == [(done, 6) for done in range(7)]
    warm_up(wanted, workers=2, progress=lambda *step: told.append(step))
    assert told[-1] == (0, 0), "nothing was left to do"
    assert compile_request(wanted[0]).data == nvrtc.compile_cubin("add", str(wanted[0]), "sm_90").data


def test_an_error_does_not_stop_the_others() -> None:
    good = [request(100.0 + number) for number in range(3)]
    bad = [replace(request(200.0 + number), source="no such text") for number in range(2)]
    with pytest.raises(ExceptionGroup, match="2 of 5 kernels were not built") as raised:
        warm_up([bad[0], *good, bad[1]], workers=2)
    assert {type(error) for error in raised.value.exceptions} == {CompileError}
    assert all(build.find_built(item) for item in good)
    with pytest.raises(CompileError, match="'add' did not compile"):
        warm_up([bad[0]])


def test_a_worker_that_dies_is_replaced_by_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, real = [request(300.0 + number) for number in range(4)], warmup._Worker.build

    def dying(self: Any, *given: Any) -> Any:
        self._process.kill()
        self._process.wait()
        return real(self, *given)

    monkeypatch.setattr(warmup._Worker, "build", dying)
    warm_up(wanted, workers=2)
    assert all(build.find_built(item) for item in wanted)


def test_no_worker_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python is embedded in another program, or the system is out of processes."""
    wanted = [request(700.0 + number) for number in range(3)]
    monkeypatch.setattr(sys, "executable", None)
    warm_up(wanted, workers=2)
    assert all(build.find_built(item) for item in wanted)


def test_an_interrupt_leaves_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    started, real = [], warmup._Worker.__init__

    def remember(self: Any) -> None:
        real(self)
        started.append(self._process)

    def interrupt(done: int, _: int) -> None:
        if done:
            raise KeyboardInterrupt

    monkeypatch.setattr(warmup._Worker, "__init__", remember)
    wanted = [request(800.0 + number) for number in range(30)]
    with pytest.raises(KeyboardInterrupt):
        warm_up(wanted, workers=2, progress=interrupt)
    assert [process.returncode for process in started] == [0, 0]
    assert sum(build.find_built(item) is not None for item in wanted) < len(wanted)


def test_what_a_worker_cannot_use_is_said_as_here() -> None:
    """Errors have arguments that pickle does not keep by itself."""
    unknown = [replace(request(900.0 + number), arch="sm_10") for number in range(3)]
    with pytest.raises(ExceptionGroup) as raised:
        warm_up(unknown, workers=2)
    with pytest.raises(InvalidInput) as here:
        compile_request(unknown[0])
    assert {(type(error), str(error)) for error in raised.value.exceptions} == {(InvalidInput, str(here.value))}


ERRORS = [
    errors.InvalidInput(expected="a", got="b", todo="c"),
    errors.MissingExtra("onnx", "onnx"),
    errors.CompileError("k", error="e", origin="o", line="l", log="all"),
    errors.NotReady("k", "0123", reason="r", todo="t", lasting=True),
    errors.DeviceError("m", 222),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_travel_between_processes(error: errors.OneKernelError) -> None:
    for copy in (pickle.loads(pickle.dumps(error)), deepcopy(error)):
        assert type(copy) is type(error)
        assert (str(copy), vars(copy)) == (str(error), vars(error))


SHAPES = [(3, 64), (1, 64)]


def test_a_warm_chain_builds_and_loads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = ChainKernel(residual_gelu(64, axis=1, rank=2), EmulatedDevice())
    kernel.warm_up([*SHAPES, (0, 64)])
    monkeypatch.setattr(policy, "Kernel", refuse)
    for shape in SHAPES:
        full, one = np.ones(shape, np.float32), np.ones((), np.float32)
        kernel([full, full, full[:, :1].copy(), full[0], full[0], one])
    with pytest.raises(InvalidOperand, match="axis 1 of length 64"):
        kernel.warm_up([(3, 65)])


SCRIPT = """
from onekernel.jit import warm_up
from test_warmup import request
print("started")
warm_up([request(START + number) for number in range(4)], workers=2)
print("ended")
"""


@pytest.mark.parametrize(("way", "start"), [("file", 400), ("command", 500), ("stdin", 600)])
def test_a_script_without_a_guard_runs_once(tmp_path: Path, way: str, start: int) -> None:
    """Workers of multiprocessing would run the script again."""
    text = SCRIPT.replace("START", f"{start}.0")
    (tmp_path / "script.py").write_text(text)
    arguments = {"file": [str(tmp_path / "script.py")], "command": ["-c", text], "stdin": ["-"]}[way]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    result = subprocess.run(
        [sys.executable, *arguments],
        input=text if way == "stdin" else "",
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.stdout == "started\nended\n", result.stderr
