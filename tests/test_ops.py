"""Every operator of ops.py as elementwise.cuh computes it, against its float64 meaning: common and extreme numbers."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import numpy as np
import pytest

from kernel_cases import cuda, emulated
from onekernel.device.machine import KERNELS
from onekernel.jit import Kernel, KernelRequest, Parameter, compile_request
from onekernel.jit.compile import nvrtc
from onekernel.ops import ELEMENTWISE, Op

ORDINARY = np.linspace(-6.0, 6.0, 241)
EXTREME = np.array(
    [0.0, -0.0, 1e-40, -1e-40, 1e-20, -1e-20, 0.5, -0.5, 1.0, -1.0, 20.0, -20.0, 88.0, -88.0, 89.0, -89.0, 104.0,
     -104.0, 1e5, -1e5, 1e19, -1e19, 3e38, -3e38, np.inf, -np.inf, np.nan]
)  # fmt: skip
FEW = np.array([0.0, -0.0, 0.3, -1.5, 1e-40, 3e38, -3e38, np.inf, -np.inf, np.nan])

# Where values cancel, float32 keeps an absolute error; the others keep a relative one.
CANCELS = {"sin", "cos", "log", "sigmoid", "silu", "softplus", "gelu", "gelu_tanh"}


def request(arch: str) -> KernelRequest:
    """One kernel that writes the results of all operators, one after another."""
    lines = [
        f"  y[{index}LL * count + i] = op::{op.name}({', '.join(f'x{n}[i]' for n in range(op.arity))});"
        for index, op in enumerate(ELEMENTWISE.values())
    ]
    source = f"""
extern "C" __global__ void operators(const float* x0, const float* x1, const float* x2, float* y, int count) {{
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
{chr(10).join(lines)}
}}
"""
    types = [("x0", "const float*"), ("x1", "const float*"), ("x2", "const float*"), ("y", "float*"), ("count", "int")]
    typed = tuple(Parameter(*item) for item in types)
    return KernelRequest("operators", arch, typed, 256, headers=("elementwise.cuh",), source=source)


def arguments() -> Any:
    """Ordinary numbers, every pair of extreme ones, and every triple of a few."""
    random = np.random.default_rng(0)
    ordinary = np.stack([ORDINARY, random.permutation(ORDINARY), random.permutation(ORDINARY)])
    pairs = np.array([(a, b, 1.0) for a, b in product(EXTREME, EXTREME)]).T
    triples = np.array(list(product(EXTREME, FEW, FEW))).T
    return np.concatenate([ordinary, pairs, triples], axis=1).astype(np.float32)


def wrong(op: Op, given: Any, got: Any) -> Any:
    """Say where a result is not the rounded float64 meaning."""
    inputs = given[: op.arity].astype(np.float64)
    with np.errstate(all="ignore"):
        exact = np.asarray(op.meaning(*inputs))
        rounded = exact.astype(np.float32)
        size = np.abs(exact)
        if op.name in CANCELS:
            size = np.maximum(size, np.minimum(np.abs(inputs[0]), 1.0))
        near = np.abs(got.astype(np.float64) - exact) <= 1e-6 * size + 2e-38
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    return ~(same | (near & np.isfinite(rounded)))


@pytest.mark.parametrize("make_machine", [emulated, pytest.param(cuda, marks=pytest.mark.gpu)])
def test_every_operator_computes_its_meaning(make_machine: Any) -> None:
    device, given = make_machine().device, arguments()
    count = given.shape[1]
    results = device.upload(np.full((len(ELEMENTWISE), count), -7.25, np.float32))
    inputs = [device.upload(np.ascontiguousarray(row)) for row in given]
    Kernel(request(device.arch), device).launch(*inputs, results, count, grid=-(-count // 256))
    report = []
    for op, got in zip(ELEMENTWISE.values(), results.numpy(), strict=True):
        for column in np.flatnonzero(wrong(op, given, got))[:3]:
            report.append(f"{op.name}{tuple(given[: op.arity, column].tolist())} = {got[column]}")
    assert not report, "\n".join(report)


@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_120"])
def test_every_operator_compiles_for_a_gpu(arch: str) -> None:
    assert arch in nvrtc.supported_archs()
    assert compile_request(request(arch)).resources.spill_bytes == 0


def test_the_table_and_the_header_have_the_same_rows() -> None:
    text = (KERNELS / "elementwise.cuh").read_text()
    found = re.findall(r"^ONEKERNEL_DEVICE float (\w+)\((.*?)\)", text.split("}  // namespace op")[0], re.MULTILINE)
    assert [(name, parameters.count("float")) for name, parameters in found] == [
        (op.name, op.arity) for op in ELEMENTWISE.values()
    ]
