"""Two arrays, one error number, and the first place where they part.

Everything is computed in float64. It knows nothing about where the arrays come from, and it never decides:
it states the error, the limit and whether the one is within the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from onekernel.verify.limits import Limit

Array = npt.NDArray[Any]
Problem = Literal["", "shape", "dtype", "nonfinite", "error", "missing", "raised", "inputs", "unstable", "distribution"]


@dataclass(frozen=True)
class Mismatch:
    """The first element, in row-major order, that is too far from its reference."""

    index: tuple[int, ...]
    expected: Any
    got: Any


@dataclass(frozen=True)
class Comparison:
    """One result against its reference; `problem` is empty when it is within the limit."""

    name: str
    error: float  # relative, in the norm; inf where no number can be given
    limit: Limit
    problem: Problem = ""
    detail: str = ""
    first: Mismatch | None = None

    @property
    def passed(self) -> bool:
        """Whether the result is within the limit."""
        return not self.problem

    def __str__(self) -> str:
        """Say it in one line."""
        if self.problem in ("shape", "dtype"):
            return f"{self.name}: {self.problem} differs, {self.detail}"
        if self.problem in ("missing", "raised", "inputs"):
            return f"{self.name}: {self.detail}"
        line = f"{self.name}: error {self.error:.2e}, limit {self.limit.limit:.2g}"
        line += f" ({self.detail})" if self.detail else ""
        if self.first is None:
            return line
        return f"{line}; first at {list(self.first.index)}: expected {self.first.expected}, got {self.first.got}"


PEAK = 10  # how many times further off than the whole one element may be: the largest of 10^9 normal errors is 6.1


def relative_error(got: Array, reference: Array) -> float:
    """Compute ||got - reference|| / ||reference|| in float64, or a tenth of the worst element's error if that is more.

    The error of an element is relative to itself or to the root mean square of the reference, whichever is larger: one
    wrong element of a million hides in the norm, and not in this. Equal infinities and NaNs in the same places count
    as equal; any other non-finite value gives inf. A zero reference gives 0 if the result is zero too, else inf. Two
    empty arrays are equal.
    """
    out, ref = _numbers(got), _numbers(reference)
    finite = np.isfinite(ref)
    if not np.array_equal(out[~finite], ref[~finite], equal_nan=True) or not np.isfinite(out[finite]).all():
        return float("inf")
    off, ref = out[finite] - ref[finite], ref[finite]
    whole = _ratio(_norm(off), size := _norm(ref))
    if not size or not whole:
        return whole
    worst = float(np.max(np.abs(off) / np.maximum(np.abs(ref), size / np.sqrt(ref.size))))
    return max(whole, worst / PEAK)


def compare(name: str, got: Array, reference: Array, limit: Limit, dtype: str | None = None) -> Comparison:
    """Compare a result with its reference, which may be of a wider dtype.

    `dtype` is what the result must be (None: as `limit` says, or as the reference where that is "exact").
    """
    wanted = dtype or (reference.dtype.name if limit.what == "exact" else limit.what)
    if got.shape != reference.shape:
        detail = f"expected {list(reference.shape)}, got {list(got.shape)}"
        return Comparison(name, float("inf"), limit, "shape", detail)
    if got.dtype.name != wanted:
        return Comparison(name, float("inf"), limit, "dtype", f"expected {wanted}, got {got.dtype.name}")
    if limit.what == "exact":
        return _compare_exactly(name, got, reference, limit)
    error = relative_error(got, reference)
    if error <= limit.limit:
        return Comparison(name, error, limit)
    problem: Problem = "error" if np.isfinite(error) or np.isfinite(got.astype(np.float64)).all() else "nonfinite"
    return Comparison(name, error, limit, problem, first=_first(got, reference, limit.limit))


def _compare_exactly(name: str, got: Array, reference: Array, limit: Limit) -> Comparison:
    wrong = np.flatnonzero(got.reshape(-1) != reference.reshape(-1))
    if not wrong.size:
        return Comparison(name, 0.0, limit)
    share = wrong.size / got.size
    detail = f"{wrong.size} of {got.size} elements differ"
    return Comparison(name, share, limit, "error", detail, _at(got, reference, int(wrong[0])))


def _first(got: Array, reference: Array, limit: float) -> Mismatch:
    """Find the first element off by more than the limit times its own or the typical size, else the worst."""
    out, ref = _numbers(got).reshape(-1), _numbers(reference).reshape(-1)
    with np.errstate(invalid="ignore"):
        distance = np.abs(out - ref)
    distance[(out == ref) | (np.isnan(out) & np.isnan(ref))] = 0.0
    distance[np.isnan(distance)] = np.inf
    finite = ref[np.isfinite(ref)]
    typical = float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 0.0
    sizes = np.maximum(np.where(np.isfinite(ref), np.abs(ref), 0.0), typical)
    far = np.flatnonzero(distance > limit * sizes)
    return _at(got, reference, int(far[0]) if far.size else int(np.argmax(distance)))


def _at(got: Array, reference: Array, flat: int) -> Mismatch:
    index = tuple(int(i) for i in np.unravel_index(flat, reference.shape))
    return Mismatch(index, reference[index].item(), got[index].item())


def _numbers(array: Array) -> Array:
    return np.asarray(array).astype(np.float64)


def _norm(values: Array) -> float:
    """Take the norm without overflow: values are scaled by the largest one."""
    largest = float(np.max(np.abs(values), initial=0.0))
    return largest * float(np.linalg.norm(values / largest)) if largest else 0.0


def _ratio(distance: float, size: float) -> float:
    if distance == 0.0:
        return 0.0
    return distance / size if size else float("inf")
