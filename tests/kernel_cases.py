"""Chains and shapes that kernel tests and benchmarks share, and the machines that run them.

A machine puts numbers on its device, optionally shifted by one element so that wide accesses are illegal, and makes
results that are poisoned with NaN and fenced by margins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from onekernel.device import Buffer, Device, get
from onekernel.device.buffer import numpy_dtype
from onekernel.device.emulated import EmulatedDevice, Order
from onekernel.device.parts import Part
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
    (0, 64), (1, 1), (3, 1), (2, 2), (5, 3), (4, 7), (33, 8), (7, 31), (9, 32), (3, 33), (17, 64), (2, 100),
    (5, 127), (6, 128), (3, 192), (130, 192), (2, 255), (4, 256), (1, 257), (5, 384), (3, 512), (2, 513), (3, 768),
    (1, 1000), (2, 1024), (2113, 1024), (1, 1536), (2, 2048), (1, 3000), (2, 4096), (1, 4098), (1, 4099),
    (1, 8192), (1, 16384), (40, 16384), (1, 16385), (1, 20000), (1, 32768), (34, 20480), (1, 65535), (1, 65536),
]  # fmt: skip
COLUMNS = [
    (0, 16, 5), (2, 16, 0), (1, 1, 1), (2, 3, 5), (1, 192, 1), (2, 192, 37), (1, 192, 96), (1, 80, 2050),
    (1, 256, 17000), (1, 512, 9), (2, 513, 6), (1, 768, 3), (1, 3000, 8), (1, 5000, 5),
]  # fmt: skip
SHIFTED = [(3, 64), (5, 256), (1, 4096), (1, 16384), (2, 64, 8)]
CASES = [Case(shape) for shape in (*ROWS, *COLUMNS)] + [Case(shape, shifted=True) for shape in SHIFTED]


class Machine:
    """Places tensors on a device. Results lie between margins; what nobody wrote reads as NaN."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def put(self, array: Any, dtype: str, shift: int) -> Buffer:
        """Copy float64 numbers to the device, `shift` elements after an aligned address."""
        base = np.zeros(array.size + shift + MARGIN, numpy_dtype(dtype))
        base[shift : shift + array.size] = array.reshape(-1).astype(base.dtype)
        return self.device.upload(_aligned(base)).slice(shift, array.shape)

    def blank(self, shape: tuple[int, ...], dtype: str, shift: int) -> tuple[Buffer, Buffer]:
        """Return a poisoned tensor and the larger one that it lies in."""
        size = int(np.prod(shape))
        base = self.device.upload(_aligned(np.full(size + shift + 2 * MARGIN, np.nan, numpy_dtype(dtype))))
        return base.slice(MARGIN + shift, shape), base

    @staticmethod
    def untouched(view: Buffer, base: Buffer) -> bool:
        """Say whether everything around a result is still NaN."""
        nans = [int(np.isnan(item.numpy().astype(np.float32)).sum()) for item in (base, view)]
        return nans[0] - nans[1] == base.view.elements - view.view.elements


def emulated(arch: str = "sm_90", order: Order = Order.ASCENDING, seed: int = 1) -> Machine:
    """The emulated device."""
    return Machine(EmulatedDevice(arch, order=order, seed=seed))


def cuda() -> Machine:
    """The first GPU."""
    return Machine(get("cuda"))


def check(chain: Chain, case: Case, machine: Machine, part: Part | None = None) -> tuple[ChainKernel, list[Comparison]]:
    """Run a chain on random operands; compare every result with the float64 oracle and check its margins.

    `part`: whose limits choose the schedule, when it is not the machine's own.
    """
    random = np.random.default_rng(0)
    shift = int(case.shifted)
    arrays = [_random(chain, item.kind, case.shape, random) for item in chain.operands]
    placed = [machine.put(array, item.dtype, shift) for item, array in zip(chain.operands, arrays, strict=True)]
    blanks = [machine.blank(case.shape, item.dtype, shift) for item in chain.results]
    kernel = ChainKernel(chain, machine.device, part)
    kernel(placed, outputs=[view for view, _ in blanks])
    expected = run_chain(chain, [tensor.numpy().astype(np.float64) for tensor in placed])
    comparisons = []
    for item, (view, base), reference in zip(chain.results, blanks, expected, strict=True):
        assert machine.untouched(view, base), f"{item.name}: wrote outside its result"
        limit = find(LIMITS, "kernel", item.dtype)
        comparisons.append(compare(f"{item.name} {case}", view.numpy(), reference, limit))
    return kernel, comparisons


def _random(chain: Chain, kind: Kind, shape: tuple[int, ...], random: np.random.Generator) -> Any:
    across = tuple(1 if axis == chain.axis else size for axis, size in enumerate(shape))
    sizes = {"full": shape, "row": across, "channel": (chain.hidden,), "scalar": (1,)}
    return random.standard_normal(sizes[kind]) + (0.5 if kind != "row" else 0.0)


def _aligned(array: Any) -> Any:
    """Copy to an address that is a multiple of 64, which a device may share."""
    memory = np.empty(array.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    copy = memory[start : start + array.nbytes].view(array.dtype)
    copy[...] = array
    return copy
