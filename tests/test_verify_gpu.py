"""Sides that run on a GPU: their kernels are timed alone, their parts by events. CI runs this on the stub driver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stub_driver
from onekernel import device, kernel
from onekernel.verify import Plan, Subject, verify

SOURCE = """
extern "C" __global__ void scale(const float* x, float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = 2.0f * x[i];
}
"""
SIZE = 4096
PLAN = Plan(seconds=0.5, repeats=4, energy=0)


def test_this_file_passes_on_the_stub() -> None:
    if device.gpu_count():
        pytest.skip("there is a GPU: the tests below run on it")
    done = stub_driver.python(
        "-m", "pytest", "-q", "-m", "gpu", "-p", "stub_driver.emulate", "-p", "no:cacheprovider", str(Path(__file__))
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "..." in done.stdout


def side(*, waits: bool = False, forgets: int = 0) -> Subject:
    """Make a side that launches on the default stream; `waits` for the GPU itself, `forgets` the last elements."""
    place: Any = device.get("cuda")
    parameters = [("x", "const float*"), ("y", "float*"), ("n", "int")]
    built = kernel(SOURCE, entry="scale", parameters=parameters, threads=256, device=place)
    x, y = place.upload(np.arange(SIZE, dtype=np.float32)), place.upload(np.zeros(SIZE, np.float32))

    def watch(_: Any, see: Any) -> Any:
        built.launch(x, y, SIZE - forgets, grid=SIZE // 256, block=256)
        see("scale", None)
        if waits:
            place.synchronize()
        return y

    return Subject(lambda inputs: watch(inputs, lambda *_: None), "scale", watch=watch, gpu=0)


@pytest.mark.gpu
def test_kernels_and_parts_are_timed_without_the_host() -> None:
    verdict = verify(side(), side(), [], plan=PLAN)
    assert verdict.speed is not None
    assert [item.what for item in verdict.speed.kernels] == ["kernels, L2 warm", "kernels, L2 cold"]
    assert all(item.samples for item in verdict.speed.kernels)
    assert {item.what for item in verdict.speed.parts} == {"scale", "(rest)"}
    assert verdict.speed.before.clock == "host clock, until the GPU is done"
    assert verdict.footprint is not None
    assert verdict.footprint.find("device memory") is not None
    assert verdict.footprint.find("onekernel's device memory") is not None


@pytest.mark.gpu
def test_a_side_that_waits_for_the_gpu_has_no_kernel_time() -> None:
    verdict = verify(side(), side(waits=True), [], plan=PLAN)
    assert verdict.speed is not None
    assert verdict.speed.kernels == ()
    assert verdict.speed.parts == ()
    assert len(verdict.speed.whole) == 3


@pytest.mark.gpu
def test_what_a_kernel_forgets_is_found() -> None:
    verdict = verify(side(), side(forgets=1), [], plan=PLAN)
    assert (verdict.decision, verdict.rule) == ("reject", "wrong numbers")
    assert verdict.worst is not None
    assert verdict.worst.first is not None
    assert verdict.worst.first.index == (SIZE - 1,)
