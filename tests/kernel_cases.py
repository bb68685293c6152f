"""Chains and shapes that kernel tests and benchmarks share, and the two machines that run them.

A machine puts float arrays on its device (optionally shifted by one element, so that wide accesses are illegal), makes
results that are poisoned with NaN and fenced by margins, and reads them back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from onekernel import device
from onekernel.device.emulated import EmulatedDevice, Order
from onekernel.fusion.chain import Chain, Kind, Operand, Result, Step
from onekernel.fusion.kernel import ChainKernel
from onekernel.fusion.oracle import run_chain
from onekernel.verify.compare import Comparison, compare
from onekernel.verify.limits import LIMITS, find

MARGIN = 64  # elements on either side of a result that must stay untouched


def layer_norm(hidden: int, *, axis: int, rank: int, dtype: str = "float32") -> Chain:
    """standardize, scale, shift: what F.layer_norm computes."""
    return Chain(
        "layer_norm",
        axis,
        rank,
        hidden,
        1e-5,
        (Operand("in0", "full", dtype), Operand("in1", "channel", dtype), Operand("in2", "channel", dtype)),
        (Result("out0", "v1", dtype),),
        (),
        "in0",
        "n",
        ("norm",),
        (Step("mul", ("n", "in1"), "v0", ("scale",)), Step("add", ("v0", "in2"), "v1", ("shift",))),
        tuple("abcdefghi"),
        (4,) * rank,
    )


def residual_gelu(hidden: int, *, axis: int, rank: int, dtype: str = "float32") -> Chain:
    """Every kind of operand, two results, a prologue and an activation; scale and shift are float32."""
    prologue = (
        Step("mul", ("in1", "in2"), "v0", ("mask",)),
        Step("add", ("in0", "v0"), "v1", ("residual",)),
    )
    epilogue = (
        Step("mul", ("n", "in3"), "v2", ("scale",)),
        Step("add", ("v2", "in4"), "v3", ("shift",)),
        Step("gelu", ("v3",), "v4", ("gelu",)),
        Step("mul", ("v4", "in5"), "v5", ("gain",)),
        Step("sub", ("v5", 0.25), "v6", ("offset",)),
    )
    kinds: tuple[tuple[Kind, str], ...] = (
        ("full", dtype),
        ("full", dtype),
        ("row", dtype),
        ("channel", "float32"),
        ("channel", "float32"),
        ("scalar", "float32"),
    )
    operands = tuple(Operand(f"in{i}", kind, type_) for i, (kind, type_) in enumerate(kinds))
    results = (Result("out0", "v1", dtype), Result("out1", "v6", dtype))
    return Chain(
        "residual_gelu", axis, rank, hidden, 1e-5, operands, results, prologue, "v1", "n", ("norm",), epilogue,
        tuple("abcdefghijklmno"), (4,) * rank,
    )  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A full shape [outer, hidden] or [outer, hidden, inner]."""

    shape: tuple[int, ...]
    shifted: bool = False  # every tensor starts one element after an aligned address

    @property
    def large(self) -> bool:
        """Worth its time on a GPU; emulated in one dtype and one order only."""
        return int(np.prod(self.shape)) > 200_000

    def __str__(self) -> str:
        return "x".join(map(str, self.shape)) + ("-shifted" if self.shifted else "")


ROWS = [
    (0, 64), (1, 1), (3, 1), (2, 2), (5, 3), (4, 7), (33, 8), (7, 31), (9, 32), (3, 33), (17, 64), (2, 100), (5, 127),
    (6, 128), (3, 192), (130, 192), (2, 255), (4, 256), (1, 257), (5, 384), (3, 512), (2, 513), (3, 768), (1, 1000), (2, 1024),
    (2113, 1024), (1, 1536), (2, 2048), (1, 3000), (2, 4096), (1, 4098), (1, 4099), (1, 8192), (1, 16384), (40, 16384), (1, 16385),
    (1, 20000), (1, 32768), (34, 20480), (1, 65535), (1, 65536),
]  # fmt: skip
COLUMNS = [
    (0, 16, 5), (2, 16, 0), (1, 1, 1), (2, 3, 5), (1, 192, 1), (2, 192, 37), (1, 192, 96), (1, 80, 2050), (1, 256, 17000),
    (1, 512, 9), (2, 513, 6), (1, 768, 3), (1, 3000, 8), (1, 5000, 5),
]  # fmt: skip
SHIFTED = [(3, 64), (5, 256), (1, 4096), (1, 16384), (2, 64, 8)]
CASES = [Case(shape) for shape in (*ROWS, *COLUMNS)] + [Case(shape, shifted=True) for shape in SHIFTED]


class Emulated:
    """numpy arrays on the emulated device."""

    def __init__(self, arch: str = "sm_90", order: Order = Order.ASCENDING, seed: int = 1) -> None:
        self.device: Any = EmulatedDevice(arch, order=order, seed=seed)

    def put(self, array: Any, dtype: str, shift: int) -> Any:
        base = np.empty(array.size + shift + MARGIN, _numpy(dtype))
        base = base[_aligned_start(base) :]
        view = base[shift : shift + array.size].reshape(array.shape)
        view[...] = array.astype(_numpy(dtype))
        return view

    def blank(self, shape: tuple[int, ...], dtype: str, shift: int) -> Any:
        size = int(np.prod(shape))
        base = np.full(size + shift + 3 * MARGIN, np.nan, _numpy(dtype))
        first = _aligned_start(base[MARGIN:]) + MARGIN + shift
        return base, base[first : first + size].reshape(shape)

    def read(self, tensor: Any) -> Any:
        return np.asarray(tensor)

    def untouched(self, base: Any, view: Any) -> bool:
        nans = [int(np.isnan(array.astype(np.float32)).sum()) for array in (base, view)]
        return nans[0] - nans[1] == base.size - view.size


class Cuda:
    """torch tensors on the first GPU."""

    def __init__(self) -> None:
        self.device: Any = device.get("cuda")

    def put(self, array: Any, dtype: str, shift: int) -> Any:
        import torch

        base = torch.empty(array.size + shift, dtype=getattr(torch, dtype), device="cuda")
        view = base[shift:].reshape(array.shape)
        view.copy_(torch.from_numpy(np.ascontiguousarray(array)))
        return view

    def blank(self, shape: tuple[int, ...], dtype: str, shift: int) -> Any:
        import torch

        size = int(np.prod(shape))
        base = torch.full((size + shift + 2 * MARGIN,), float("nan"), dtype=getattr(torch, dtype), device="cuda")
        return base, base[MARGIN + shift : MARGIN + shift + size].reshape(shape)

    def read(self, tensor: Any) -> Any:
        name = str(tensor.dtype).removeprefix("torch.")
        return tensor.float().cpu().numpy().astype(_numpy(name))

    def untouched(self, base: Any, view: Any) -> bool:
        return int(base.isnan().sum() - view.isnan().sum()) == base.numel() - view.numel()


def check(chain: Chain, case: Case, machine: Any, seed: int = 0) -> tuple[ChainKernel, list[Comparison]]:
    """Run a chain on fresh random operands; compare every result with the float64 oracle and check its margins."""
    random = np.random.default_rng(seed)
    shift = int(case.shifted)
    arrays = [_random(chain, item.kind, case.shape, random) for item in chain.operands]
    placed = [machine.put(array, item.dtype, shift) for item, array in zip(chain.operands, arrays, strict=True)]
    blanks = [machine.blank(case.shape, item.dtype, shift) for item in chain.results]
    kernel = ChainKernel(chain, machine.device)
    kernel(placed, outputs=[view for _, view in blanks])
    expected = run_chain(chain, [machine.read(tensor).astype(np.float64) for tensor in placed])
    comparisons = []
    for item, (base, view), reference in zip(chain.results, blanks, expected, strict=True):
        assert machine.untouched(base, view), f"{item.name}: wrote outside its result"
        limit = find(LIMITS, "kernel", item.dtype)
        comparisons.append(compare(f"{item.name} {case}", machine.read(view), reference, limit))
    return kernel, comparisons


def _random(chain: Chain, kind: Kind, shape: tuple[int, ...], random: np.random.Generator) -> Any:
    across = tuple(1 if axis == chain.axis else size for axis, size in enumerate(shape))
    sizes = {"full": shape, "row": across, "channel": (chain.hidden,), "scalar": (1,)}
    return random.standard_normal(sizes[kind]) + (0.5 if kind != "row" else 0.0)


def _numpy(dtype: str) -> Any:
    return np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)


def _aligned_start(array: Any) -> int:
    return (-array.ctypes.data % 64) // int(array.itemsize)
