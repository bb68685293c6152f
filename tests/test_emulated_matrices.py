"""Tensor-core twins: products against numpy, and layouts against the tables of the PTX ISA."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from emulation import ORDERS, small_kernel
from onekernel.device.emulated import Order
from onekernel.errors import EmulationFault

LANES = np.arange(32)
GROUP, PAIR = LANES // 4, 2 * (LANES % 4)

# PTX ISA 8.5, "Matrix Fragments for mma.m16n8k16 with floating point type": ai, bi and ci in the words of the manual.
A_ROW = [GROUP + (0 if i < 2 or 4 <= i < 6 else 8) for i in range(8)]
A_COLUMN = [PAIR + (i & 1) + (8 if i >= 4 else 0) for i in range(8)]
B_ROW = [PAIR + (i & 1) + (8 if i >= 2 else 0) for i in range(4)]
B_COLUMN = [GROUP] * 4
C_ROW = [GROUP + (0 if i < 2 else 8) for i in range(4)]
C_COLUMN = [PAIR + (i & 1) for i in range(4)]

PRODUCT = """
MatrixA<T> fa; MatrixB<T> fb; MatrixD fd;
const int lane = threadIdx.x % 32;
for (int i = 0; i < 4; ++i) fa.at[i] = static_cast<unsigned>(a[lane * 4 + i]);
for (int i = 0; i < 2; ++i) fb.at[i] = static_cast<unsigned>(b[lane * 2 + i]);
for (int i = 0; i < 4; ++i) fd.at[i] = d[lane * 4 + i];
multiply_add(fd, fa, fb);
for (int i = 0; i < 4; ++i) d[threadIdx.x * 4 + i] = fd.at[i];
"""


def words(matrix: np.ndarray[Any, Any], rows: list[Any], columns: list[Any]) -> np.ndarray[Any, Any]:
    """Spread a matrix of 16-bit elements over the lanes: [32, registers] words, two elements in each."""
    elements = np.stack([matrix[row, column] for row, column in zip(rows, columns, strict=True)], axis=1)
    return np.ascontiguousarray(elements).view(np.int32)


def multiply(a: Any, b: Any, d: Any, kind: str, **asked: Any) -> np.ndarray[Any, Any]:
    """Multiply matrices [16, 16] and [16, 8] and add [16, 8] on the emulated device."""
    spread = np.stack([d[row, column] for row, column in zip(C_ROW, C_COLUMN, strict=True)], axis=1)
    spread = np.ascontiguousarray(spread, np.float32)
    kernel = small_kernel(
        PRODUCT.replace("T>", f"{kind}>"), "float* d, const int* a, const int* b", headers=("primitives/tensor_core",),
        sanitize=True, **asked,
    )  # fmt: skip
    kernel.launch(spread, words(a, A_ROW, A_COLUMN), words(b, B_ROW, B_COLUMN), grid=1, block=32)
    result = np.zeros((16, 8), np.float32)
    for value, (row, column) in enumerate(zip(C_ROW, C_COLUMN, strict=True)):
        result[row, column] = spread[:, value]
    return result


def test_the_tables_cover_every_element_once() -> None:
    for rows, columns, count in ((A_ROW, A_COLUMN, 256), (B_ROW, B_COLUMN, 128), (C_ROW, C_COLUMN, 128)):
        assert len(set(zip(np.concatenate(rows), np.concatenate(columns), strict=True))) == count


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("kind", "dtype"), [("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)])
def test_products_are_those_of_numpy(kind: str, dtype: Any, order: Order) -> None:
    random = np.random.default_rng(7)
    a, b = (random.standard_normal(shape).astype(dtype) for shape in ((16, 16), (16, 8)))
    d = random.standard_normal((16, 8)).astype(np.float32)
    exact = a.astype(np.float64) @ b.astype(np.float64) + d
    np.testing.assert_array_equal(multiply(a, b, d, kind, order=order), exact.astype(np.float32))


def test_every_element_has_its_place() -> None:
    """Products of unit matrices: one at (i, k) times one at (k, j) is one at (i, j)."""
    numbers = np.arange(256).reshape(16, 16).astype(np.float16)
    unit = np.eye(16, 8, dtype=np.float16)
    np.testing.assert_array_equal(multiply(numbers, unit, np.zeros((16, 8)), "float16"), numbers[:, :8])
    unit = np.eye(16, dtype=np.float16)
    np.testing.assert_array_equal(multiply(unit, numbers[:, 8:], np.zeros((16, 8)), "float16"), numbers[:, 8:])


def test_float16_works_on_sm_75() -> None:
    ones = np.ones((16, 16), np.float16)
    assert (multiply(ones, ones[:, :8], np.zeros((16, 8)), "float16", arch="sm_75") == 16).all()


LOAD = """
struct Rows { alignas(16) unsigned short at[32][8]; };
auto& s = shared_storage<Rows>().at;
const int i = threadIdx.x;
for (int k = 0; k < 8; ++k) s[i][k] = static_cast<unsigned short>(100 * i + k);
warp_barrier();
unsigned r[COUNT];
load_matrices<COUNT, TRANS>(r, s[i]);
for (int k = 0; k < COUNT; ++k) y[i * COUNT + k] = static_cast<int>(r[k]);
"""


def load(count: int, transposed: bool, body: str = LOAD) -> np.ndarray[Any, Any]:
    y = np.zeros((32, count), np.int32)
    text = body.replace("COUNT", str(count)).replace("TRANS", str(transposed).lower())
    small_kernel(text, headers=("primitives/tensor_core",), sanitize=True).launch(y, grid=1, block=32)
    return y.view(np.uint16).reshape(32, count, 2)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_loads_of_matrices(count: int, transposed: bool) -> None:
    rows = 100 * LANES[:, None] + np.arange(8)
    matrices = rows.reshape(4, 8, 8)
    loaded = load(count, transposed)
    for matrix in range(count):
        tile = matrices[matrix].T if transposed else matrices[matrix]
        for half in range(2):
            np.testing.assert_array_equal(loaded[:, matrix, half], tile[GROUP, PAIR + half])


def test_faults_of_loads() -> None:
    with pytest.raises(EmulationFault, match=r"(race on shared memory|what nobody wrote).* at source:9"):
        load(4, False, LOAD.replace("warp_barrier();", "").replace("s[i]);", "s[31 - i]);"))
    with pytest.raises(
        EmulationFault, match=r"a row that is not aligned to 16 bytes \(shared memory \+ \d+ of block 0\)"
    ):
        load(4, False, LOAD.replace("r, s[i]", "r, s[i] + 1"))
    with pytest.raises(EmulationFault, match=r"not lie in the block's shared memory \(operand 0"):
        load(4, False, LOAD.replace("r, s[i]", "r, y"))
    with pytest.raises(EmulationFault, match=r"(?s)deadlock.*load of matrices"):
        load(4, False, LOAD.replace("load_matrices", "if (i != 3) load_matrices").replace("r[COUNT]", "r[COUNT]{}"))
