"""The plain host loop: steps in order, values in a dictionary, each dropped after its last use.

A step is a callable from values to values; whether it is a session or a kernel, and whether a value is an
array on the host or on a device, is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Call = Callable[[Sequence[Any]], Sequence[Any]]
Watch = Callable[["Step", Sequence[Any], Sequence[Any]], None]


@dataclass(frozen=True)
class Step:
    """One session run or kernel launch; `chain` is its index in the list of chains, None for a session."""

    call: Call
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    chain: int | None = None


@dataclass(frozen=True)
class Loop:
    """Steps with what must stay alive: `outputs` are the names a run gives back."""

    steps: tuple[Step, ...]
    outputs: tuple[str, ...]
    dead: tuple[tuple[str, ...], ...]  # by step: values that nothing reads any more

    def run(self, inputs: Mapping[str, Any], watch: Watch | None = None) -> dict[str, Any]:
        """Run every step once; `watch` sees the step, what it read and what it wrote."""
        values = dict(inputs)
        for step, dead in zip(self.steps, self.dead, strict=True):
            read = [values[name] for name in step.inputs]
            written = step.call(read)
            if watch:
                watch(step, read, written)
            values.update(zip(step.outputs, written, strict=True))
            for name in dead:
                values.pop(name, None)
        return {name: values[name] for name in self.outputs}


def make_loop(steps: Sequence[Step], outputs: Sequence[str]) -> Loop:
    """Find after which step each value dies."""
    alive = set(outputs)
    dead: list[tuple[str, ...]] = []
    for step in reversed(steps):
        names = dict.fromkeys((*step.inputs, *step.outputs))
        dead.append(tuple(name for name in names if name not in alive))
        alive.update(names)
    return Loop(tuple(steps), tuple(outputs), tuple(dead[::-1]))
