"""What a model takes and gives: names, dtypes and shapes, and the rules for handing it one call's inputs.

It reads what an ONNX model declares and nothing else of it; values are checked, never changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from onekernel.errors import InvalidInput
from onekernel.graph.onnx_trace import dtype_name, dtype_of, model_inputs

Array = npt.NDArray[Any]
Inputs = Mapping[str, Array] | Sequence[Array]


@dataclass(frozen=True)
class Spec:
    """A declared input or output; a dimension is a size, or a name ("?" without one) when it may vary."""

    name: str
    dtype: str
    shape: tuple[int | str, ...] | None  # None = not even the rank is declared

    @property
    def dynamic(self) -> bool:
        """Whether a concrete size is missing."""
        return self.shape is None or any(isinstance(size, str) for size in self.shape)

    def __str__(self) -> str:
        """Write it as `name float32[batch,3]`."""
        sizes = "?" if self.shape is None else ",".join(str(size) for size in self.shape)
        return f"{self.name} {self.dtype}[{sizes}]"


def inputs_of(model: Any) -> tuple[Spec, ...]:
    """List what a call must give: the graph inputs that have no default among the initializers."""
    return tuple(map(_spec, model_inputs(model)))


def outputs_of(model: Any) -> tuple[Spec, ...]:
    """List what a call gives back."""
    return tuple(map(_spec, model.graph.output))


def _spec(info: Any) -> Spec:
    tensor = info.type.tensor_type
    if not tensor.elem_type:
        return Spec(info.name, info.type.WhichOneof("value") or "unknown", None)
    dtype = dtype_name(tensor.elem_type)
    if not tensor.HasField("shape"):
        return Spec(info.name, dtype, None)
    sizes = (d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in tensor.shape.dim)
    return Spec(info.name, dtype, tuple(sizes))


def bind(specs: Sequence[Spec], inputs: Inputs) -> dict[str, Array]:
    """Pair one call's inputs with the declared ones, by name or by position, and check each.

    Raises InvalidInput for a bare array, a missing or unknown name, a wrong dtype, rank or fixed size.
    """
    if isinstance(inputs, Mapping):
        given = dict(inputs)
    elif isinstance(inputs, Sequence) and not isinstance(inputs, (str, bytes)):
        given = dict(zip((spec.name for spec in specs), inputs, strict=False))
        if len(inputs) != len(specs):
            _refuse(specs, f"{len(inputs)} arrays")
    else:
        _refuse(specs, f"a bare {type(inputs).__name__}")
    if set(given) != {spec.name for spec in specs}:
        _refuse(specs, "the names " + (", ".join(given) or "(none)"))
    arrays = {name: np.asarray(array) for name, array in given.items()}
    for spec in specs:
        _check(spec, arrays[spec.name])
    return arrays


def _check(spec: Spec, array: Array) -> None:
    fits = spec.shape is None or (
        len(spec.shape) == array.ndim
        and all(isinstance(a, str) or a == b for a, b in zip(spec.shape, array.shape, strict=True))
    )
    if dtype_of(array) != spec.dtype or not fits:
        got = f"{dtype_of(array)}[{','.join(map(str, array.shape))}]"
        raise InvalidInput(expected=f"input {spec}", got=got, todo="convert the array to the declared dtype and shape")


def _refuse(specs: Sequence[Spec], got: str) -> None:
    wanted = "; ".join(str(spec) for spec in specs) or "no inputs"
    todo = "give a mapping from name to array, or a sequence in this order"
    raise InvalidInput(expected=f"inputs {wanted}", got=got, todo=todo)
