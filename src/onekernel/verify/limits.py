"""The one table of how far a number may be from its reference.

Tests, `optimize` and benchmarks all read this table, so "equal" has one meaning in the project. It knows no
model and no kernel. An error is relative in the norm, ||out - ref|| / ||ref||: it does not depend on the
scale of the data and is not decided by one element that happens to be near zero.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from onekernel.errors import InvalidInput

Scope = Literal["kernel", "model"]


@dataclass(frozen=True)
class Limit:
    """The largest relative error allowed for results of `dtype`; 0.0 means equal element by element."""

    scope: Scope
    dtype: str
    limit: float
    reason: str


_ROUNDING = "results are rounded once to {digits} significant bits, statistics are kept in float32"
_NOISE = (
    "five times the noise floor: ONNX Runtime's own graph optimisations move the float32 output of a VITS "
    "voice by 0.8e-5 to 2.2e-5 and of a PP-OCRv4 recogniser by 0.02e-5 to 0.3e-5 (1.32, CPU, on against off)"
)
_EXACT = "integers and booleans have no rounding"

LIMITS: tuple[Limit, ...] = (
    Limit("kernel", "float32", 1e-5, "about 80 units in the last place, for sums of up to 65,536 terms"),
    Limit("kernel", "float16", 1e-3, _ROUNDING.format(digits=11)),
    Limit("kernel", "bfloat16", 4e-3, _ROUNDING.format(digits=8)),
    Limit("kernel", "exact", 0.0, _EXACT),
    Limit("model", "float64", 1e-4, "a float64 output of a model whose chains are float32; as float32"),
    Limit("model", "float32", 1e-4, _NOISE),
    Limit("model", "float16", 1e-2, "ten times the limit of one kernel: layers add their roundings"),
    Limit("model", "bfloat16", 4e-2, "ten times the limit of one kernel: layers add their roundings"),
    Limit("model", "exact", 0.0, _EXACT),
)


_COARSE = ("bfloat16", "float16")


def find_for_model(limits: Sequence[Limit], result: str, inside: Collection[str]) -> Limit:
    """Choose the row for a model's result: a float result is no better known than what the model rounds to inside.

    `inside` are the dtypes of the model's values. Raises InvalidInput as `find`.
    """
    coarsest = next((dtype for dtype in _COARSE if dtype in inside), result)
    return find(limits, "model", coarsest if "float" in result else result)


def find(limits: Sequence[Limit], scope: Scope, dtype: str) -> Limit:
    """Choose the row for a scope and a dtype name; integers, booleans and strings share the row "exact".

    Raises InvalidInput when a floating dtype has no row: nothing is compared without a limit.
    """
    wanted = dtype if "float" in dtype else "exact"
    for row in limits:
        if (row.scope, row.dtype) == (scope, wanted):
            return row
    raise InvalidInput(
        expected=f"a limit for {wanted} in scope {scope!r}",
        got=", ".join(f"{row.scope}/{row.dtype}" for row in limits) or "an empty table",
        todo="add a row to the limits",
    )
