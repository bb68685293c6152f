"""The texts of the emulated tests on a GPU: what a primitive means there is what its twin says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import test_emulated_copies as copies
import test_emulated_matrices as matrices
import test_emulated_primitives as primitives
from emulation import small_kernel
from kernel_cases import cuda

pytestmark = pytest.mark.gpu


def run(body: str, parameters: str, *arrays: Any, grid: int = 1, block: int = 32, **asked: Any) -> list[Any]:
    """Run a kernel on the first GPU; return what the arrays then hold."""
    device = cuda().device
    placed = [device.upload(array) for array in arrays]
    small_kernel(body, parameters, device=device, arch=device.arch, **asked).launch(*placed, grid=grid, block=block)
    device.synchronize()
    return [buffer.numpy() for buffer in placed]


def emulate(body: str, parameters: str, *arrays: Any, grid: int = 1, block: int = 32, **asked: Any) -> list[Any]:
    """The same on the emulated device."""
    arrays = tuple(array.copy() for array in arrays)
    small_kernel(body, parameters, **asked).launch(*arrays, grid=grid, block=block)
    return list(arrays)


COPIES = "auto* s = dynamic_storage<int>();\nconst int i = threadIdx.x;\n"
ZEROS = np.zeros(1024, np.int32)
CASES: dict[str, tuple[str, str, tuple[Any, ...], dict[str, Any]]] = {
    "shuffles": (primitives.SHUFFLES, "int* y", (np.zeros(320, np.int32),), {}),
    "atomics": (
        primitives.ATOMICS,
        "int* y, float* f",
        (np.zeros(7, np.int32), np.zeros(1, np.float32)),
        {"block": 96},
    ),
    "turns": (primitives.TURNS, "int* y", (np.zeros(2, np.int32),), {"grid": 5, "cooperative": True}),
    "grid barrier": (
        primitives.PHASES,
        "int* y, int* x, int* word",
        (np.zeros(1, np.int32), np.zeros(160, np.int32), np.zeros(1, np.int32)),
        {"grid": 4, "block": 40, "cooperative": True},
    ),
    "named barriers": (primitives.PAIRS, "int* y", (np.zeros(128, np.int32),), {"block": 128, "shared": 512}),
    "pipeline": (
        COPIES + copies.PIPELINE,
        "int* y, const int* x",
        (ZEROS, copies.X),
        {"block": 64, "shared": 4096},
    ),
    "bulk": (COPIES + copies.BULK, "int* y, const int* x", (ZEROS, copies.X), {"block": 64, "shared": 4096}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_gpu_does_what_the_twin_does(case: str) -> None:
    body, parameters, arrays, asked = CASES[case]
    expected = emulate(body, parameters, *arrays, **asked)
    for _ in range(20):
        for got, wanted in zip(run(body, parameters, *arrays, **asked), expected, strict=True):
            np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("transposed", ["false", "true"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_loads_of_matrices(count: int, transposed: str) -> None:
    body = matrices.LOAD.replace("COUNT", str(count)).replace("TRANS", transposed)
    arguments = (body, "int* y", np.zeros(32 * count, np.int32))
    (got,), (wanted,) = (way(*arguments, headers=("primitives/tensor_core",)) for way in (run, emulate))
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_products_of_matrices(kind: str) -> None:
    """Products are exact and sums of 16 are float: what the GPU rounds in between is a few last bits."""
    random, dtype = np.random.default_rng(3), {"float16": np.float16, "bfloat16": matrices.ml_dtypes.bfloat16}[kind]
    a, b = (random.standard_normal(32 * count).astype(dtype).view(np.int32) for count in (8, 4))
    d = random.standard_normal(128).astype(np.float32)
    arguments = (matrices.PRODUCT.replace("T>", f"{kind}>"), "float* d, const int* a, const int* b", d, a, b)
    (got, *_), (wanted, *_) = (way(*arguments, headers=("primitives/tensor_core",)) for way in (run, emulate))
    np.testing.assert_allclose(got, wanted, rtol=0, atol=2e-5)
