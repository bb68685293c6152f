"""The cases of `verdicts` that need a GPU: what is done before, what after, on which inputs, by which plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from benchmarks import encoder
from benchmarks.problems import Problem
from onekernel import device, kernel
from onekernel.verify import Plan, Subject

ROWS = Problem((4096, 256), "float16")
STEPS = 200_000  # of a planted kernel: about 0.5 ms
PLANTED = Plan(seconds=4.0, repeats=10, rounds=1, energy=0)
WHOLE = Plan(seconds=10.0, streams=(1, 4))

# Each step depends on the one before it, so that time is proportional to the steps; the result is not.
WORK = """
extern "C" __global__ void work(const float* from, float* to, int steps) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const float x = from[i];
  float y = x;
  for (int step = 0; step < steps; ++step) y = fmaf(y, 0.5f, 0.25f);
  to[i] = y < 1e30f ? 2.0f * x : y;
}
"""

MODELS = "benchmarks.encoder:plain", "benchmarks.encoder:spliced"
Case = tuple[Any, Any, Any, Plan]


def cases() -> dict[str, Case]:
    """Return before, after, inputs and plan of each case."""
    vector = [torch.rand(2**14, device="cuda")]
    call, inputs = chain_call()
    return {
        "planted: 3 % less": (_work(STEPS), _work(round(STEPS * 0.97)), vector, PLANTED),
        "planted: 3 % more": (_work(STEPS), _work(round(STEPS * 1.03)), vector, PLANTED),
        "planted: faster where nobody waits": (_host_bound(2000), _host_bound(200), vector, PLANTED),
        "chain": (call, _fused_chain(), inputs, replace(WHOLE, rate=2000, expect="kernels, L2 warm")),
        "model": (*MODELS, None, replace(WHOLE, rate=100, expect="0.norm1")),
    }


def chain_call() -> tuple[Subject, list[Any]]:
    """Return the chain in nine operators, its oracle in float64, and its operands."""
    oracle = lambda inputs: ROWS.library(*(item.double() for item in inputs))  # noqa: E731
    return Subject(lambda inputs: ROWS.decomposed(*inputs), "nine operators", oracle=oracle), list(ROWS.tensors())


def _fused_chain() -> Callable[..., Any]:
    norm = encoder.Norm(ROWS.hidden).to(getattr(torch, ROWS.dtype)).cuda()
    return encoder.FusedNorm(norm, ROWS.shape[0]).launch


def _work(steps: int) -> Callable[[Any], Any]:
    parameters = [("from", "const float*"), ("to", "float*"), ("steps", "int")]
    built = kernel(WORK, entry="work", parameters=parameters, threads=256, device=device.get("cuda"))

    def work(x: Any) -> Any:
        out = torch.empty_like(x)
        built.launch(x, out, steps, grid=x.numel() // 256, block=256, stream=torch.cuda.current_stream())
        return out

    return work


def _host_bound(steps: int) -> Callable[[Any], Any]:
    """Launch so many short kernels that the host is what takes the time, whatever the kernels do."""
    work = _work(steps)

    def call(x: Any) -> Any:
        for _ in range(60):
            out = work(x)
        return out

    return call
