"""What it costs to obtain a kernel: compiled, read from disk, or found in memory. Needs no GPU."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.host import time_calls, time_once
from kernel_cases import layer_norm
from onekernel.device.parts import find
from onekernel.fusion.kernel import compile_for
from onekernel.jit import Binary, KernelRequest
from onekernel.jit.build import label_of
from onekernel.jit.cache import KernelCache
from onekernel.jit.compile import nvrtc

ARCHS = ("sm_75", "sm_80", "sm_89", "sm_90", "sm_100", "sm_120")
FIRST = """
import time
start = time.perf_counter()
import benchmarks.compile as compile
request = compile.request("sm_90")
ready = time.perf_counter()
compile.build(request, 0)
print((ready - start) * 1e3, (time.perf_counter() - ready) * 1e3)
"""


def request(arch: str) -> KernelRequest:
    """Return the fused LayerNorm that is compiled: rows of 1024 float32."""
    chain = replace(layer_norm(1024, axis=1, rank=2), sample_shape=(4096, 1024))
    return compile_for(chain, find(arch)).request


def build(wanted: KernelRequest, number: int) -> Binary:
    """Compile afresh: NVRTC keeps nothing between two programs, and the text differs in a comment."""
    return nvrtc.compile_cubin(wanted.name, f"// {number}\n{wanted}", wanted.arch)


def run(report: Callable[[str], None]) -> dict[str, Any]:
    """Measure; milliseconds, except `memory hit` and `key`: microseconds."""
    record: dict[str, Any] = {}
    for arch in ARCHS:
        report(f"compiling for {arch}")
        wanted = request(arch)
        record[f"compile {arch}, ms"] = asdict(time_once(lambda n, wanted=wanted: build(wanted, n), rounds=15))
    record["first compile of a process, ms"] = _first_in_a_process()
    record |= _hits(request("sm_90"))
    return record


def _first_in_a_process() -> dict[str, float]:
    """Time imports and the first compile in new processes; NVRTC loads its library then."""
    runs = [subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, check=True) for _ in range(5)]
    times = sorted(tuple(map(float, run.stdout.split())) for run in runs)
    return {"imports": times[2][0], "compile": sorted(compiled for _, compiled in times)[2]}


def _hits(wanted: KernelRequest) -> dict[str, Any]:
    """Time requests for a kernel that is there; a disk hit includes the key and a cache that knows nothing yet."""
    text = str(wanted)
    with tempfile.TemporaryDirectory() as folder:
        warm = KernelCache(Path(folder))
        warm.get(label_of(wanted), text, lambda: build(wanted, 0))
        disk = time_once(lambda _: KernelCache(Path(folder)).get(label_of(wanted), text, _never), rounds=101)
    label = label_of(wanted)
    calls = {"memory hit, us": lambda: warm.get(label, text, _never), "key, us": lambda: label_of(wanted)}
    samples = time_calls(calls, settle=lambda: None, calls=100, rounds=31)
    return {"disk hit, ms": asdict(disk), **{name: asdict(sample) for name, sample in samples.items()}}


def _never() -> Binary:
    raise AssertionError("it was stored")
