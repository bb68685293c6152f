"""The answers of one side. What it returned is overwritten once it was read, so that nothing is right by staying there.

Memory that a side returns again and again (a static output, a cache, a weight) gets its first content back at the end.
"""

from __future__ import annotations

from typing import Any

from onekernel.device.buffer import View
from onekernel.verify.compare import Comparison, Problem
from onekernel.verify.limits import Limit
from onekernel.verify.numbers.values import Array, arrays_of, copied, leaves, overwrite, place_of, to_numpy
from onekernel.verify.subject import Inputs, Subject

_NONE = Limit("model", "exact", 0.0, "there is nothing to measure")


class Answers:
    """Asks a subject and poisons what it gave. Use as a context: at its end, lasting memory is as it was found."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._lasting: list[tuple[View, Any, Array]] = []

    def __enter__(self) -> Answers:
        return self

    def __exit__(self, *error: object) -> None:
        for _, leaf, first in self._lasting:
            overwrite(leaf, first)

    def twice(self, inputs: Inputs) -> tuple[dict[str, Array], dict[str, Array]]:
        """Ask the same twice while both results are alive: memory that both lie in is lasting."""
        first = self._subject.call(copied(inputs))
        one = arrays_of(first)
        second = self._subject.call(copied(inputs))
        two = arrays_of(second)
        places = [place for _, leaf in leaves(second) if (place := place_of(leaf))]
        for name, leaf in leaves(first):
            if (where := place_of(leaf)) and any(where.overlaps(place) for place in places):
                self._lasting.append((where, leaf, one[name]))
        for result in (first, second):
            _poison(result)
        return one, two

    def ask(self, inputs: Inputs, faults: list[Comparison]) -> dict[str, Array]:
        """Answer one request; what it did to its inputs is a fault."""
        given = copied(inputs)
        result = self._subject.call(given)
        arrays = arrays_of(result)
        if changed := _changed(inputs, given):
            faults.append(fault(changed, "inputs", "the call wrote into its input"))
        _poison(result)
        return arrays

    def ask_in_place(self, inputs: Inputs, others: Inputs) -> dict[str, Array]:
        """Ask, then write other inputs into the same memory and ask again; return the second answer."""
        given = copied(inputs)
        _poison(self._subject.call(given))
        for (_, leaf), (_, other) in zip(leaves(given, "inputs"), leaves(others, "inputs"), strict=True):
            if place_of(leaf):
                overwrite(leaf, to_numpy(other))
        result = self._subject.call(given)
        arrays = arrays_of(result)
        _poison(result)
        return arrays


def fault(name: str, problem: Problem, detail: str) -> Comparison:
    """State a failure that has no number."""
    return Comparison(name, float("inf"), _NONE, problem, detail)


def _poison(result: Any) -> None:
    for _, leaf in leaves(result):
        overwrite(leaf)


def _changed(inputs: Inputs, given: Inputs) -> str:
    if not inputs:
        return ""
    before, after = arrays_of(inputs), arrays_of(given)
    return next((f"input {name}" for name in before if before[name].tobytes() != after[name].tobytes()), "")
