"""Many kernels in worker processes."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onekernel.errors import CompileError
from onekernel.jit import KernelRequest, Parameter, build, compile_request, warm_up, warmup
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
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
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
