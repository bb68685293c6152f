"""Where two sides part: both show their intermediate values, and the first one that is off is named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onekernel.verify.compare import Comparison, compare
from onekernel.verify.limits import Limit, find_for_model
from onekernel.verify.numbers.values import Array, arrays_of, copied
from onekernel.verify.sides.subject import Inputs, Subject


def first_divergence(before: Subject, after: Subject, inputs: Inputs, limits: Sequence[Limit]) -> Comparison | None:
    """Compare the parts that both sides name, in the order of `after`; None where either shows none, or all agree."""
    expected, seen = _seen(before, inputs), _seen(after, inputs)
    for name, got in seen.items():
        if name in expected and not (item := _compared(name, got, expected[name], before, limits)).passed:
            return item
    return None


def _compared(name: str, got: Array, expected: Array, before: Subject, limits: Sequence[Limit]) -> Comparison:
    dtype = expected.dtype.name
    return compare(name, got, expected, find_for_model(limits, dtype, before.inside), dtype)


def _seen(subject: Subject, inputs: Inputs) -> dict[str, Array]:
    """Run once and copy every part's value; a part with several has them as `name.key`."""
    seen: dict[str, Array] = {}
    if subject.values is not None:
        return arrays_of(subject.values(copied(inputs)))
    if subject.watch is None:
        return seen

    def see(name: str, value: Any) -> None:
        for key, array in ({} if value is None else arrays_of(value)).items():
            seen[name if key == "output" else f"{name}.{key}"] = array

    subject.watch(copied(inputs), see)
    return seen
