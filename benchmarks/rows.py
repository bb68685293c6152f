"""LayerNorm chains by row: ours against eager torch, torch.compile, F.layer_norm and the copy floor, in CUDA graphs.

Ours is timed three times: as built (row length folded, row count at run time), with the row length at run time
too, and with both folded. Nothing is timed that is not within the limit of the float64 reference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (the field's name for it)

from benchmarks.timing import Sample, Work, time_in_graph
from onekernel import device, kernel
from onekernel.device.parts import find
from onekernel.fusion.chain import Chain, Operand, Result, Step
from onekernel.fusion.kernel_body import chain_request
from onekernel.fusion.schedule import Rows, Schedule, choose
from onekernel.jit import Kernel, KernelRequest, Parameter
from onekernel.verify.compare import compare
from onekernel.verify.limits import LIMITS
from onekernel.verify.limits import find as find_limit

SHAPES = [(4096, 64), (4096, 256), (1024, 1024), (8192, 1024), (32768, 4096)]
DTYPES = ["float16", "float32"]
EPSILON = 1e-5

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


@dataclass(frozen=True)
class Problem:
    """One row of the table; tensors are made anew for it."""

    rows: int
    hidden: int
    dtype: str

    @property
    def bytes(self) -> int:
        """Each element read once and written once."""
        return 2 * self.rows * self.hidden * (2 if self.dtype == "float16" else 4)


def decomposed(x: Any, weight: Any, bias: Any) -> Any:
    """The nine operators that exported models spell a LayerNorm with."""
    mean = x.mean(-1, keepdim=True)
    centred = x - mean
    variance = centred.pow(2).mean(-1, keepdim=True)
    return centred / (variance + EPSILON).sqrt() * weight + bias


def run(report: Callable[[dict[str, Any]], None]) -> list[dict[str, Any]]:
    """Measure every problem; `report` is given each row when it is done."""
    table = []
    for shape in SHAPES:
        for dtype in DTYPES:
            row = measure(Problem(*shape, dtype))
            report(row)
            table.append(row)
    return table


def measure(problem: Problem) -> dict[str, Any]:
    """Measure one problem: microseconds per call for each contender, and what they mean against the floor."""
    torch._dynamo.reset()
    dtype = getattr(torch, problem.dtype)
    x = torch.randn(problem.rows, problem.hidden, device="cuda", dtype=dtype)
    weight, bias = (torch.randn(problem.hidden, device="cuda", dtype=dtype) for _ in range(2))
    out = torch.empty_like(x)
    contenders, schedule, resources = ours(problem, x, weight, bias, out)
    reference = F.layer_norm(x.double(), (problem.hidden,), weight.double(), bias.double(), EPSILON)
    errors = {name: _checked(name, work, out, reference, problem.dtype) for name, work in contenders.items()}
    compiled = torch.compile(decomposed, fullgraph=True, dynamic=False)
    contenders |= {
        "eager": lambda _: decomposed(x, weight, bias),
        "torch.compile": lambda _: compiled(x, weight, bias),
        "F.layer_norm": lambda _: F.layer_norm(x, (problem.hidden,), weight, bias, EPSILON),
        "torch copy": lambda _: out.copy_(x),
        "own copy": _own_copy(x, out),
    }
    samples = time_in_graph(contenders, calls=4 if problem.bytes > 2**26 else 40)
    return _row(problem, samples, errors, schedule, resources)


def ours(
    problem: Problem, x: Any, weight: Any, bias: Any, out: Any
) -> tuple[dict[str, Work], Schedule, dict[str, int]]:
    """Build our three variants."""
    place = device.get("cuda")
    pack = 16 // x.element_size()
    schedule = choose(Rows(problem.rows, problem.hidden, 1, pack), columns=False, part=find(place.arch))
    built = chain_request(chain(problem), schedule, place.arch)
    hidden = Parameter("hidden", "int")
    variants: dict[str, tuple[KernelRequest, tuple[int, ...]]] = {
        "ours": (built, (problem.rows, 1)),
        "ours, row length at run time": (
            replace(built, constants=(), parameters=(*built.parameters, hidden)),
            (problem.rows, 1, problem.hidden),
        ),
        "ours, row count folded": (
            replace(
                built,
                constants=(*built.constants, ("outer", problem.rows)),
                parameters=tuple(item for item in built.parameters if item.name != "outer"),
            ),
            (1,),
        ),
    }
    grid = schedule.grid(problem.rows, 1)
    works: dict[str, Work] = {}
    for name, (request, scalars) in variants.items():
        works[name] = _launcher(Kernel(request, place), (x, weight, bias, out, *scalars), grid)
    used = Kernel(built, place).binary.resources
    return works, schedule, {"registers": used.registers, "spill_bytes": used.spill_bytes}


def chain(problem: Problem) -> Chain:
    """standardize, scale, shift, as search would find it in the decomposed graph."""
    dtype = problem.dtype
    steps = (Step("mul", ("n", "in1"), "v0", ()), Step("add", ("v0", "in2"), "v1", ()))
    operands = (Operand("in0", "full", dtype), Operand("in1", "channel", dtype), Operand("in2", "channel", dtype))
    return Chain(
        "layer_norm", 1, 2, problem.hidden, EPSILON, operands, (Result("out0", "v1", dtype),),
        (), "in0", "n", (), steps, ("op",) * 9, (problem.rows, problem.hidden),
    )  # fmt: skip


def _launcher(built: Kernel, operands: tuple[Any, ...], grid: int) -> Work:
    return lambda _: built.launch(*operands, grid=grid, stream=torch.cuda.current_stream())


def _own_copy(x: Any, out: Any) -> Work:
    parameters = [("from", "const float*"), ("to", "float*"), ("packs", "long long")]
    built = kernel(COPY, entry="copy", parameters=parameters, threads=256, device=device.get("cuda"))
    packs = x.numel() * x.element_size() // 16
    operands = (x.view(torch.float32), out.view(torch.float32), packs)
    return _launcher(built, operands, -(-packs // 1024))


def _checked(name: str, work: Work, out: Any, reference: Any, dtype: str) -> float:
    out.fill_(float("nan"))
    work(0)
    limit = find_limit(LIMITS, "kernel", dtype)
    result = compare(name, out.cpu().numpy(), reference.cpu().numpy(), limit)
    if not result.passed:
        raise SystemExit(f"benchmarks: not timed, because it is wrong: {result}")
    return result.error


def _row(
    problem: Problem, samples: dict[str, Sample], errors: dict[str, float], schedule: Schedule, used: dict[str, int]
) -> dict[str, Any]:
    floor = min(samples["torch copy"].median, samples["own copy"].median)
    mine = samples["ours"].median
    return {
        "shape": [problem.rows, problem.hidden],
        "dtype": problem.dtype,
        "microseconds": {name: [round(item.median, 3), round(item.spread, 3)] for name, item in samples.items()},
        "copy_floor": round(floor, 3),
        "floor_terabytes_per_second": round(problem.bytes / floor * 1e-6, 2),
        "share_of_copy": round(floor / mine, 3),
        "against_compile": round(samples["torch.compile"].median / mine, 2),
        "folding_row_length": round(samples["ours, row length at run time"].median / mine - 1, 3),
        "folding_row_count": round(mine / samples["ours, row count folded"].median - 1, 3),
        "error": errors["ours"],
        "schedule": schedule.type,
        **used,
    }
