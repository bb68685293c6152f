"""The one table of limits: how far a number may be from its reference, and what a change may cost.

Tests, `optimize`, `verify` and benchmarks all read this table, so "equal" and "faster" have one meaning in the
project. It knows no model and no kernel. The error of a result is the one of `compare.relative_error`; costs are
relative changes, 0.02 being 2 % more than before.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from onekernel.errors import InvalidInput

Scope = Literal["kernel", "model", "change", "evidence"]


@dataclass(frozen=True)
class Limit:
    """One number of the table.

    kernel, model: the largest relative error of results of a dtype; 0.0 means equal element by element.
    change: by how much a quantity may rise. evidence: how much of it is enough.
    """

    scope: Scope
    what: str  # a dtype, or the name of a quantity
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
    Limit("change", "time", 0.02, "what is smaller is not told from the noise of a machine in use"),
    Limit("change", "tail", 0.05, "P95 and P99 rest on fewer requests than the median"),
    Limit("change", "memory", 0.02, "allocators round sizes up"),
    Limit("change", "energy", 0.05, "the counter of a GPU is read in steps of up to 0.1 s in windows of 5 s"),
    Limit("change", "drift", 0.10, "a machine that changes more between start and end is not one machine"),
    Limit("evidence", "requests for P95", 1000, "50 of them lie above it"),
    Limit("evidence", "requests for P99", 5000, "50 of them lie above it"),
    Limit("evidence", "bytes", 8e6, "smaller differences of memory are the allocator's, not the model's"),
    Limit("evidence", "share", 0.02, "a part of less than 2 % of the whole cannot move it"),
)


_COARSE = ("bfloat16", "float16")


def find_for_model(limits: Sequence[Limit], result: str, inside: Collection[str]) -> Limit:
    """Choose the row for a model's result: a float result is no better known than what the model rounds to inside.

    `inside` are the dtypes of the model's values. Raises InvalidInput as `find`.
    """
    coarsest = next((dtype for dtype in _COARSE if dtype in inside), result)
    return find(limits, "model", coarsest if "float" in result else result)


def allowed(limits: Sequence[Limit], scope: Scope, what: str) -> float:
    """Return the number of a row of the scopes change and evidence; rows that the user's table lacks are LIMITS'."""
    return next(row.limit for row in (*limits, *LIMITS) if (row.scope, row.what) == (scope, what))


def find(limits: Sequence[Limit], scope: Scope, dtype: str) -> Limit:
    """Choose the row for a scope and a dtype name; integers, booleans and strings share the row "exact".

    Raises InvalidInput when a floating dtype has no row: nothing is compared without a limit.
    """
    wanted = dtype if "float" in dtype else "exact"
    for row in limits:
        if (row.scope, row.what) == (scope, wanted):
            return row
    raise InvalidInput(
        expected=f"a limit for {wanted} in scope {scope!r}",
        got=", ".join(f"{row.scope}/{row.what}" for row in limits) or "an empty table",
        todo="add a row to the limits",
    )
