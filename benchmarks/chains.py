"""Fused chains against eager torch, torch.compile, F.layer_norm and the copy floor, in CUDA graphs.

Ours is timed four times: as built (row length folded, row count at run time), with the row length at run time too,
with both folded, and with launches that do not overlap their predecessor, as the peers' do not. Nothing of ours is
timed that is not within the limit of the float64 reference; the errors of the peers are recorded beside their times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from benchmarks.problems import Problem
from benchmarks.timing import Sample, Work, time_in_graph
from onekernel import device, kernel
from onekernel.device.parts import part_of
from onekernel.fusion.kernel import compile_for
from onekernel.fusion.schedule import Schedule
from onekernel.jit import Kernel, KernelRequest, Parameter
from onekernel.verify.compare import compare, relative_error
from onekernel.verify.limits import LIMITS
from onekernel.verify.limits import find as find_limit

COPY = """
extern "C" __global__ void copy(const float* __restrict__ from, float* __restrict__ to, long long packs) {
  const long long first = (long long)blockIdx.x * 1024 + threadIdx.x;
  float4 held[4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (first + i * 256 < packs) held[i] = reinterpret_cast<const float4*>(from)[first + i * 256];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (first + i * 256 < packs) reinterpret_cast<float4*>(to)[first + i * 256] = held[i];
}
"""

LENGTH_AT_RUN_TIME, COUNT_FOLDED = "ours, row length at run time", "ours, row count folded"
NO_OVERLAP = "ours, launches apart"


def run(
    shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str], report: Callable[[dict[str, Any]], None]
) -> list[dict[str, Any]]:
    """Measure every shape in every dtype; `report` is given each row when it is done."""
    table = []
    for shape in shapes:
        for dtype in dtypes:
            table.append(measure(Problem(shape, dtype)))
            report(table[-1])
    return table


def measure(problem: Problem) -> dict[str, Any]:
    """Measure one problem: microseconds per call for each contender, and what they mean against the floor."""
    torch._dynamo.reset()
    x, weight, bias = problem.tensors()
    out = torch.empty_like(x)
    contenders, schedule, built = ours(problem, x, weight, bias, out)
    reference = problem.library(x.double(), weight.double(), bias.double())
    errors = {name: _checked(name, work, out, reference, problem.dtype) for name, work in contenders.items()}
    compiled = torch.compile(problem.decomposed, fullgraph=True, dynamic=False)
    peers: dict[str, Work] = {
        "eager": lambda: problem.decomposed(x, weight, bias),
        "torch.compile": lambda: compiled(x, weight, bias),
        "F.layer_norm": lambda: problem.library(x, weight, bias),
    }
    exact = _sample(reference)
    errors |= {name: relative_error(_sample(work()), exact) for name, work in peers.items()}
    contenders |= peers | {"torch copy": lambda: out.copy_(x), "own copy": _own_copy(x, out)}
    samples = time_in_graph(contenders, calls=4 if problem.bytes > 2**26 else 40)
    used = built.binary.resources
    resources = {"registers": used.registers, "spill_bytes": used.spill_bytes}
    return _row(problem, samples) | {"errors": errors, "schedule": schedule.type, **resources}


def ours(problem: Problem, x: Any, weight: Any, bias: Any, out: Any) -> tuple[dict[str, Work], Schedule, Kernel]:
    """Build our four variants."""
    place = device.get("cuda")
    outer, inner = problem.shape[0], problem.inner
    build = compile_for(problem.chain(), part_of(place.name, place.arch))
    schedule, grid = build.schedule, build.schedule.grid(outer, inner)
    kernels = {name: (Kernel(request, place), extents) for name, request, extents in _variants(build.request, problem)}
    works = {
        name: _launcher(kernel_, (x, weight, bias, out, *extents), grid) for name, (kernel_, extents) in kernels.items()
    }
    return works, schedule, kernels["ours"][0]


def _variants(built: KernelRequest, problem: Problem) -> list[tuple[str, KernelRequest, tuple[int, ...]]]:
    """Move numbers between constants and parameters: the text of the kernel stays the same."""
    outer, inner = problem.shape[0], problem.inner
    free = replace(built, constants=(), parameters=(*built.parameters, Parameter("hidden", "int")))
    fixed = replace(
        built,
        constants=(*built.constants, ("outer", outer), ("inner", inner)),
        parameters=tuple(item for item in built.parameters if item.name not in ("outer", "inner")),
    )
    return [
        ("ours", built, (outer, inner)),
        (LENGTH_AT_RUN_TIME, free, (outer, inner, problem.hidden)),
        (COUNT_FOLDED, fixed, ()),
        (NO_OVERLAP, replace(built, overlap=False), (outer, inner)),
    ]


def _launcher(built: Kernel, operands: tuple[Any, ...], grid: int) -> Work:
    return lambda: built.launch(*operands, grid=grid, stream=torch.cuda.current_stream())


def _own_copy(x: Any, out: Any) -> Work:
    parameters = [("from", "const float*"), ("to", "float*"), ("packs", "long long")]
    built = kernel(COPY, entry="copy", parameters=parameters, threads=256, device=device.get("cuda"))
    packs = x.numel() * x.element_size() // 16
    flat = (x.view(-1).view(torch.float32), out.view(-1).view(torch.float32), packs)
    return _launcher(built, flat, -(-packs // 1024))


def _checked(name: str, work: Work, out: Any, reference: Any, dtype: str) -> float:
    out.fill_(float("nan"))
    work()
    limit = find_limit(LIMITS, "kernel", dtype)
    result = compare(name, _sample(out), _sample(reference), limit)
    if not result.passed or out.isnan().any():
        raise SystemExit(f"benchmarks: not timed, because it is wrong: {result}")
    return result.error


def _sample(tensor: Any) -> Any:
    """Copy at most 2048 rows, spread over the tensor, to the host."""
    return tensor[:: -(-tensor.shape[0] // 2048)].cpu().numpy()


def _row(problem: Problem, samples: dict[str, Sample]) -> dict[str, Any]:
    floor = min(samples["torch copy"].median, samples["own copy"].median)
    mine = samples["ours"].median
    return {
        "shape": list(problem.shape),
        "dtype": problem.dtype,
        "microseconds": {name: [round(item.median, 3), round(item.spread, 3)] for name, item in samples.items()},
        "copy_floor": round(floor, 3),
        "floor_terabytes_per_second": round(problem.bytes / floor * 1e-6, 2),
        "share_of_copy": round(floor / mine, 3),
        "against_compile": round(samples["torch.compile"].median / mine, 2),
        "against_compile_apart": round(samples["torch.compile"].median / samples[NO_OVERLAP].median, 2),
        "folding_row_length": round(samples[LENGTH_AT_RUN_TIME].median / mine - 1, 3),
        "folding_row_count": round(mine / samples[COUNT_FOLDED].median - 1, 3),
    }
