"""The jit room: text, keys, errors, checked launches. Everything here runs without a GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import onekernel
from kernel_cases import layer_norm
from onekernel.device.emulated import EmulatedDevice
from onekernel.device.launch import LaunchShape
from onekernel.errors import CompileError, EmulationFault, InvalidInput, InvalidOperand
from onekernel.fusion.kernel_body import chain_request
from onekernel.fusion.schedule import Schedule
from onekernel.jit import KernelRequest, Line, Parameter, compile_request, headers, kernel
from onekernel.jit.build import request_key
from onekernel.jit.compile import nvrtc
from onekernel.jit.compile.binary import Resources, parse_resources
from onekernel.jit.generate import float_literal

SCALE = """
#include "primitives.cuh"
extern "C" __global__ void scale(const float* x, float* y, float factor, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) y[i] = factor * x[i];
}
"""
PARAMETERS = [("x", "const float*"), ("y", "float*"), ("factor", "float"), ("count", "int")]


def request() -> KernelRequest:
    chain = layer_norm(64, axis=1, rank=2)
    return chain_request(chain, Schedule("LaneRow", 4, 1, 16, 128), "sm_90")


def scale_kernel() -> Any:
    return kernel(SCALE, entry="scale", parameters=PARAMETERS, device=EmulatedDevice())


# ---- text


def test_generated_text_is_the_golden_one() -> None:
    """A change of the generator shows up in review as a change of text."""
    golden = Path(__file__).parent / "golden" / "layer_norm.cu"
    assert str(request()) == golden.read_text()


def test_a_request_is_hashable_and_prints_itself() -> None:
    assert {request(): 1}[request()] == 1
    assert "__launch_bounds__(128)" in str(request())


def test_line_directives_keep_the_physical_numbering() -> None:
    text = str(request()).split("\n")
    for index, line in enumerate(text):
        if line.startswith("#line") and line.endswith('"kernel.cu"'):
            assert int(line.split()[1]) == index + 2


@given(st.floats(width=32))
def test_float_literals_are_exact(value: float) -> None:
    text = float_literal(value)
    if np.isfinite(value):
        assert np.float32(text.removesuffix("f")) == np.float32(value)
        assert "." in text or "e" in text
    else:
        assert "/ 0.0f" in text


@pytest.mark.parametrize("wrong", [("x", "float&"), ("x", "const half*"), ("1x", "int"), ("x", "double")])
def test_parameters_of_unknown_types_are_refused(wrong: tuple[str, str]) -> None:
    with pytest.raises(InvalidInput, match="parameter"):
        Parameter(*wrong)


# ---- keys


def test_the_key_depends_on_everything_the_binary_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    base = request()
    variants = [
        base,
        replace(base, arch="sm_89"),
        replace(base, threads=256),
        replace(base, min_blocks=1),
        replace(base, constants=(("hidden", 65),)),
        replace(base, parameters=(*base.parameters, Parameter("extra", "int"))),
        replace(base, body=(*base.body[:-1], Line("    }); // changed"))),
    ]
    keys = {request_key(item, "compiler 1") for item in variants} | {request_key(base, "compiler 2")}
    changed = {
        **headers.all_headers(),
        "elementwise.cuh": "// edited\n" + headers.all_headers()["elementwise.cuh"],
    }
    monkeypatch.setattr(headers, "all_headers", lambda: changed)
    keys.add(request_key(base, "compiler 1"))
    assert len(keys) == len(variants) + 2


# ---- compile errors


@pytest.mark.parametrize("emulate", [False, True], ids=["nvrtc", "g++"])
def test_a_compile_error_names_the_chain_node_and_the_line(emulate: bool) -> None:
    good = request()
    index = next(i for i, line in enumerate(good.body) if "op::add" in line.text)
    wrong = replace(good.body[index], text="      const auto v1 = each<op::no_such>(v0, x2);")
    with pytest.raises(CompileError, match="no_such") as caught:
        compile_request(replace(good, body=(*good.body[:index], wrong, *good.body[index + 1 :])), emulate=emulate)
    assert caught.value.origin == "chain:shift"
    assert caught.value.line == wrong.text.strip()


def test_a_compile_error_in_hand_written_text_names_its_line() -> None:
    with pytest.raises(CompileError, match="source:5"):
        kernel(
            SCALE.replace("factor *", "factr *"),
            entry="scale",
            parameters=PARAMETERS,
            device=EmulatedDevice(),
        )


def test_the_assembler_report_is_read() -> None:
    log = "ptxas . 16 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads\nUsed 32 registers, 128 bytes smem"
    assert parse_resources(log) == Resources(32, 12, 16, 128)
    assert compile_request(request()).resources.registers > 8


def test_a_text_without_includes_compiles_for_every_known_architecture() -> None:
    for arch in nvrtc.supported_archs():
        source = SCALE.replace('#include "primitives.cuh"', "")
        typed = tuple(Parameter(*item) for item in PARAMETERS)
        assert compile_request(KernelRequest("scale", arch, typed, 256, source=source)).data[:4] == b"\x7fELF"


# ---- launches


def test_a_hand_written_kernel_runs() -> None:
    x, y = np.arange(300, dtype=np.float32), np.full(300, np.nan, np.float32)
    scale_kernel().launch(x, y, 2.0, 300, grid=2, block=256)
    assert np.array_equal(y, 2 * x)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({0: np.zeros(4, np.float64)}, "dtype float32 for parameter 'x'"),
        ({0: np.zeros((4, 4), np.float32)[:, ::2]}, "contiguous tensor for parameter 'x'"),
        ({0: "text"}, "got str"),
        ({2: "text"}, "type float for parameter 'factor'"),
        ({3: 2.5}, "type int for parameter 'count'"),
        ({3: True}, "type int for parameter 'count'"),
        ({3: 2**31}, "fits int for parameter 'count'"),
    ],
)
def test_wrong_operands_are_named(change: dict[int, Any], says: str) -> None:
    operands: list[Any] = [np.zeros(4, np.float32), np.zeros(4, np.float32), 1.0, 4]
    for index, value in change.items():
        operands[index] = value
    with pytest.raises(InvalidInput, match=says):
        scale_kernel().launch(*operands, grid=1, block=32)


def test_missing_operands_are_counted() -> None:
    with pytest.raises(InvalidOperand, match=r"4 operands \(x, y, factor, count\), got 1"):
        scale_kernel().launch(1.0, grid=1)


@pytest.mark.parametrize(("grid", "block"), [(0, 32), (2**31, 32), (1, 0), (1, 2048), ((1, 70000), 32)])
def test_impossible_launch_shapes_are_refused(grid: Any, block: int) -> None:
    with pytest.raises(InvalidInput):
        scale_kernel().launch(np.zeros(4, np.float32), np.zeros(4, np.float32), 1.0, 4, grid=grid, block=block)


def test_a_cluster_must_divide_the_grid() -> None:
    with pytest.raises(InvalidInput, match="multiple of the cluster size 8"):
        LaunchShape((12, 1, 1), (32, 1, 1), cluster=8)


# ---- the emulated device finds what a GPU would hide


def faulty(body: str) -> Any:
    source = f'#include "primitives.cuh"\nextern "C" __global__ void faulty(float* y) {{ {body} }}'
    return kernel(source, entry="faulty", parameters=[("y", "float*")], threads=64, device=EmulatedDevice())


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("if (threadIdx.x < 7) block_barrier();", "deadlock"),
        ("if (threadIdx.x % 2) y[0] = shuffle_xor(1.0f, 1);", "deadlock"),
        ("if (threadIdx.x >= 32) return; block_barrier();", "deadlock: 32 threads wait"),
        ("y[threadIdx.x] = load_vector<4>(y + threadIdx.x).at[0];", "misaligned"),
        ("struct Big { char bytes[50000]; }; y[0] = shared_storage<Big>().bytes[0];", "shared memory"),
        ("y[0] = load_remote(y, 0);", "not a shared memory address"),
    ],
)
def test_broken_rules_stop_the_kernel(body: str, says: str) -> None:
    with pytest.raises(EmulationFault, match=says):
        faulty(body).launch(np.zeros(128, np.float32), grid=1)


@pytest.mark.parametrize("block", [48, 1])
def test_a_shuffle_with_a_missing_lane_stops_the_kernel(block: int) -> None:
    """Half a warp: lane 0 asks for the value of lane 16, which nobody wrote."""
    with pytest.raises(EmulationFault, match="lane that the block does not have"):
        faulty("y[threadIdx.x] = shuffle_xor(1.0f, 16);").launch(np.zeros(64, np.float32), grid=1, block=block)


def test_unwritten_shared_memory_reads_as_nan() -> None:
    y = np.zeros(64, np.float32)
    faulty("struct S { float at[64]; }; y[threadIdx.x] = shared_storage<S>().at[threadIdx.x];").launch(y, grid=1)
    assert np.isnan(y).all()


def test_the_package_offers_kernel() -> None:
    assert onekernel.kernel is kernel
