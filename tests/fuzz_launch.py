"""Fuzz the launch checker: `python tests/fuzz_launch.py [CASES]`.

Signatures and operands are drawn at random; an oracle that shares no code with the product says whether the operand may
be used and which bytes must be packed. Anything else is an error: a crash, a wrong refusal, a wrong acceptance.
"""

from __future__ import annotations

import ctypes
import random
import struct
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from onekernel.device.buffer import Buffer, View
from onekernel.errors import InvalidOperand
from onekernel.jit.operands import Signature
from onekernel.jit.request import DTYPES, KernelRequest, Parameter

BYTES = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "int16": 2, "bool": 1}
ENOUGH = np.zeros(4096, np.uint8)


@dataclass(frozen=True)
class Case:
    """An operand for a parameter; `packed` is what must be in memory, None when it must be refused."""

    operand: Any
    packed: bytes | None


class Place:
    """A device that holds memory of its own name only."""

    name, arch, emulated = "fuzz", "sm_90", False

    def holds(self, where: View) -> bool:
        return where.device == "fuzz:0"


@dataclass
class Tensor:
    """What the checker asks of a torch tensor, and nothing else."""

    dtype: Any
    address: int
    device: Any
    contiguous: bool
    negative: bool = False
    shape: tuple[int, ...] = (4,)

    def data_ptr(self) -> int:
        return self.address

    def numel(self) -> int:
        return 4

    def is_contiguous(self) -> bool:
        return self.contiguous and not self.negative

    def is_neg(self) -> bool:
        return self.negative


class TorchDtype(str):
    """Prints as torch's do."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"torch.{str.__str__(self)}"


class TorchDevice(str):
    """Prints as torch's do, with a type."""

    __slots__ = ()

    @property
    def type(self) -> str:
        return self.partition(":")[0]


TORCH_DTYPES = {name: TorchDtype(name) for name in BYTES}


def draw_pointer(chance: random.Random, parameter: Parameter) -> Case:
    right = parameter.dtype
    dtype = chance.choice([right] * 40 + list(BYTES))
    place = chance.choice(["fuzz:0"] * 40 + ["fuzz:1", "host", "meta"])
    contiguous, writable = chance.random() < 0.95, chance.random() < 0.95
    address = 0x10000 + 16 * chance.randrange(1000) + chance.choice([0] * 40 + [1, 2, 4, 8])
    aligned = address % (parameter.alignment or BYTES[right]) == 0
    good = dtype == right and place == "fuzz:0" and contiguous and aligned
    packed = struct.pack("<Q", address)
    if chance.random() < 0.5:
        tensor = Tensor(TORCH_DTYPES[dtype], address, TorchDevice(place), contiguous)
        return Case(tensor, packed if good else None)
    view = View(address, dtype, (4,), contiguous, place, None, writable)
    return Case(Buffer(view, read=lambda _: ENOUGH), packed if good and (writable or not parameter.writable) else None)


def draw_number(chance: random.Random, parameter: Parameter) -> Case:
    if parameter.type == "float":
        return draw_float(chance)
    bits = 32 if parameter.type == "int" else 64
    half = 2 ** (bits - 1)
    edge = chance.choice([0, 1, -1, half, -half, 2**70, chance.getrandbits(bits) - half])
    value: Any = edge + chance.choice([0, 0, 1, -1])
    fits = -half <= value < half
    packed = value.to_bytes(bits // 8, "little", signed=True) if fits else None
    if chance.random() < 0.3 and -(2**63) <= value < 2**63:
        value = np.int64(value)
    return chance.choice([Case(value, packed)] * 60 + [Case(float(edge), None), Case(bool(edge), None), *ODD])


def draw_float(chance: random.Random) -> Case:
    drawn = [chance.uniform(-10, 10), chance.randrange(-(10**6), 10**6), np.float32(0.1), np.float16(3)]
    value = chance.choice([*drawn, *EDGES])
    with np.errstate(over="ignore"):
        rounded = np.float32(value) if not isinstance(value, int) or abs(value) < 10**39 else None
    fits = rounded is not None and bool(np.isinf(rounded)) == bool(np.isinf(np.float64(value)))
    return chance.choice([Case(value, rounded.tobytes() if fits and rounded is not None else None)] * 60 + ODD)


EDGES = [0.0, -0.0, 1e-45, 3.4028234e38, 3.4028236e38, 1e39, 1e300, 10**400, *map(float, ("inf", "-inf", "nan"))]
ODD = [Case(item, None) for item in (None, "1", b"1", True, np.bool_(True), 1 + 2j, [1], object(), np.zeros(1))]


def draw(chance: random.Random) -> tuple[tuple[Parameter, ...], list[list[Case]]]:
    """Draw a signature and several calls of it, so that what one call taught the checker meets the next."""
    types = [f"{const}{element}*" for element in DTYPES if DTYPES[element] in BYTES for const in ("", "const ")]
    types += ["int", "long long", "float"] * 3
    kinds = [chance.choice(types) for _ in range(chance.randrange(1, 7))]
    integers = [f"x{number}" for number, kind in enumerate(kinds) if kind in ("int", "long long")]
    parameters = tuple(
        Parameter(f"x{number}", kind, chance.choice([0, 0, 16]), chance.choice(["", "", "4", "5", *integers]))
        if kind.endswith("*")
        else Parameter(f"x{number}", kind)
        for number, kind in enumerate(kinds)
    )
    calls = [
        [draw_pointer(chance, item) if item.pointer else draw_number(chance, item) for item in parameters]
        for _ in range(10)
    ]
    return parameters, calls


def right(parameters: tuple[Parameter, ...], call: list[Case]) -> bool:
    """Say whether a call must be accepted: every operand on its own, and every tensor, of 4 elements, large enough."""
    if any(case.packed is None for case in call):
        return False
    sizes = {item.name: case.operand for item, case in zip(parameters, call, strict=True)}
    return all(int(sizes.get(item.elements, item.elements or 0)) <= 4 for item in parameters)


def check(signature: Signature, call: list[Case], *, good: bool) -> None:
    """Pack one call; raise AssertionError when the checker did anything but its duty."""
    arguments, refusal = signature.arguments(), None
    operands = [case.operand for case in call]
    try:
        signature.pack(arguments.fill, *operands)
    except InvalidOperand as error:
        refusal = error
    if refusal is not None:
        assert not good, f"refused {operands}: {refusal}"
        return
    assert good, f"accepted {operands}"
    slots = (ctypes.c_void_p * len(call)).from_address(arguments.pointers)
    for case, slot in zip(call, slots, strict=True):
        assert case.packed is not None
        got = ctypes.string_at(slot, len(case.packed))
        same_nan = len(got) == 4 and case.packed != got and np.isnan(np.frombuffer(got, np.float32)[0])
        assert got == case.packed or (same_nan and np.isnan(np.frombuffer(case.packed, np.float32)[0])), case


def run(cases: int, seed: int = 0) -> tuple[int, int]:
    """Check that many launches; return how many were right to be accepted and to be refused."""
    chance, accepted, refused = random.Random(seed), 0, 0
    while accepted + refused < cases:
        parameters, calls = draw(chance)
        signature = Signature(KernelRequest("k", "sm_90", parameters, 32), Place())  # type: ignore[arg-type]
        for call in calls:
            good = right(parameters, call)
            check(signature, call, good=good)
            accepted, refused = accepted + good, refused + (not good)
    return accepted, refused


if __name__ == "__main__":
    good, bad = run(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
    print(f"{good + bad} launches: {good} accepted, {bad} refused, all rightly")
