"""What is verified: something that answers requests, and what else it can tell about itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onekernel.device.counters import Counts
from onekernel.errors import InvalidInput

Inputs = Mapping[str, Any] | Sequence[Any]
See = Callable[[str, Any], None]
_NOTHING = Counts()


@dataclass(frozen=True)
class Subject:
    """One side of a comparison. `call` answers one request: one call's inputs in, results out.

    oracle: the same in float64. watch: answers a request and shows each part as it ends, by name and value: values are
    compared part by part, and the time between two of them is the part's. values: the same values, of a runtime that
    does not stop at each part. reopen: makes `call` anew as in a new process, so that first calls can be timed. peak:
    bytes of host memory at the peak of the last call, where it runs in another process. inside: dtypes that it
    rounds to on the way. gpu: the number of the GPU that it runs on. opening: what OneKernel loaded and compiled to
    make `call`, where that is known.
    """

    call: Callable[[Inputs], Any]
    name: str = "call"
    oracle: Callable[[Inputs], Any] | None = None
    watch: Callable[[Inputs, See], Any] | None = None
    values: Callable[[Inputs], Mapping[str, Any]] | None = None
    reopen: Callable[[], Callable[[Inputs], Any]] | None = None
    peak: Callable[[], float] | None = None
    inside: tuple[str, ...] = ()
    gpu: int | None = None
    opening: Counts = _NOTHING


def subject_of(side: Any, name: str) -> Subject:
    """Make a Subject of a callable, which gets positional inputs as `f(*inputs)` and named ones as `f(**inputs)`.

    A torch module runs without gradients; its parts are its submodules and its oracle a copy in float64. Raises
    InvalidInput for one in training mode, and for what cannot be called.
    """
    if isinstance(side, Subject):
        return side
    if not callable(side):
        todo = "give a callable, or a Subject"
        raise InvalidInput(expected=f"something to call as {name}", got=type(side).__name__, todo=todo)
    if hasattr(side, "named_modules"):
        from onekernel.verify.sides.torch_module import subject_of_module

        return subject_of_module(side, name)
    return Subject(spread(side), getattr(side, "__name__", name))


def spread(function: Callable[..., Any]) -> Callable[[Inputs], Any]:
    """Turn a function of several arguments into one of a single call's inputs."""

    def call(inputs: Inputs) -> Any:
        return function(**inputs) if isinstance(inputs, Mapping) else function(*inputs)

    return call


def check_inputs(inputs: Any) -> Inputs:
    """Raise InvalidInput unless these are one call's inputs: a bare array is refused."""
    if isinstance(inputs, Mapping) or (isinstance(inputs, Sequence) and not isinstance(inputs, (str, bytes))):
        return inputs
    todo = "give a sequence (positional) or a mapping (named)"
    raise InvalidInput(expected="one call's inputs", got=f"a bare {type(inputs).__name__}", todo=todo)
