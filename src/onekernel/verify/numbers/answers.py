"""The answers of one side. What it returned is overwritten once it was read, so that nothing is right by staying there.

Memory that a side returns again and again (a static output, a cache, a weight) gets its first content back at the end.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from onekernel.device.buffer import View
from onekernel.verify.compare import Comparison, Problem
from onekernel.verify.limits import Limit
from onekernel.verify.numbers.values import Array, arrays_of, copied, leaves, overwrite, place_of, poisoned, to_numpy
from onekernel.verify.sides.subject import Inputs, Subject

_NONE = Limit("model", "exact", 0.0, "there is nothing to measure")


class Answers:
    """Asks a subject and poisons what it gave. Use as a context: at its end, lasting memory is as it was found."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._lasting: list[_Lasting] = []

    def __enter__(self) -> Answers:
        return self

    def __exit__(self, *error: object) -> None:
        for item in self._lasting:
            item.put_back()

    def twice(self, inputs: Inputs) -> tuple[dict[str, Array], dict[str, Array]]:
        """Ask the same twice while both results are alive: memory that both lie in is lasting."""
        first = self._subject.call(copied(inputs))
        one = arrays_of(first)
        second = self._subject.call(copied(inputs))
        two = arrays_of(second)
        places = [place for _, leaf in leaves(second) if (place := place_of(leaf))]
        for name, leaf in leaves(first):
            if (where := place_of(leaf)) and any(where.overlaps(place) for place in places):
                self._lasting.append(_Lasting(where, leaf, one[name]))
        for result in (first, second):
            self._poison(result)
        if self._lasting:
            self._find_constants(inputs)
        return one, two

    def _find_constants(self, inputs: Inputs) -> None:
        """Ask once more: what is then still poison through and through is no result but a weight, and gets it back."""
        with suppress(Exception):  # with its weights poisoned, a call may do anything
            self._subject.call(copied(inputs))
        for item in self._lasting:
            if poisoned(to_numpy(item.leaf)):
                item.constant = True
                item.put_back()

    def ask(self, inputs: Inputs, faults: list[Comparison] | None = None) -> dict[str, Array]:
        """Answer one request; what it did to its inputs is added to the faults, where they are asked for."""
        given = copied(inputs)
        result = self._subject.call(given)
        arrays = arrays_of(result)
        if faults is not None and (changed := _changed(inputs, given)):
            faults.append(fault(changed, "inputs", "the call wrote into its input"))
        self._poison(result)
        return arrays

    def ask_in_place(self, inputs: Inputs, others: Inputs) -> dict[str, Array]:
        """Ask, then write other inputs into the same memory and ask again; return the second answer."""
        given = copied(inputs)
        self._poison(self._subject.call(given))
        for (_, leaf), (_, other) in zip(leaves(given, "inputs"), leaves(others, "inputs"), strict=True):
            if place_of(leaf):
                overwrite(leaf, to_numpy(other))
        result = self._subject.call(given)
        arrays = arrays_of(result)
        self._poison(result)
        return arrays

    def _poison(self, result: Any) -> None:
        constants = [item.where for item in self._lasting if item.constant]
        for _, leaf in leaves(result):
            where = place_of(leaf) if constants else None
            if where is None or not any(where.overlaps(place) for place in constants):
                overwrite(leaf)


@dataclass
class _Lasting:
    """Memory that a side returns again and again, with what it held first; `constant`: no call writes it."""

    where: View
    leaf: Any
    first: Array
    constant: bool = False

    def put_back(self) -> None:
        overwrite(self.leaf, self.first)


def fault(name: str, problem: Problem, detail: str) -> Comparison:
    """State a failure that has no number."""
    return Comparison(name, float("inf"), _NONE, problem, detail)


def _changed(inputs: Inputs, given: Inputs) -> str:
    if not inputs:
        return ""
    before, after = arrays_of(inputs), arrays_of(given)
    return next((f"input {name}" for name in before if before[name].tobytes() != after[name].tobytes()), "")
