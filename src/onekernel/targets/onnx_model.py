"""An ONNX model as what is to be optimized: with named nodes, one call's inputs, and the graph of that call."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onekernel.errors import InvalidInput
from onekernel.graph import onnx_reader
from onekernel.graph.model import Graph
from onekernel.splice.signature import Array, Inputs, bind, inputs_of, outputs_of
from onekernel.targets.inputs import FROM_FILE, find_inputs, table_rows

OTHER_TYPES = ("sequence_type", "map_type", "optional_type", "sparse_tensor_type")


@dataclass(frozen=True)
class Target:
    """An ONNX model with named nodes, the inputs of one call, and the graph that this call runs through."""

    name: str
    model: Any
    graph: Graph
    inputs: dict[str, Array]


def open_target(target: str | Path | Any, inputs: Inputs | str | Path | None = None) -> Target:
    """Open an ONNX model (a path or a ModelProto) and the inputs for it.

    `inputs`: a mapping or sequence of arrays, the path of an .npz file, "auto", or None for a model whose
    input shapes are all fixed. Raises InvalidInput for a model or for inputs that cannot be used.
    """
    model = onnx_reader.load(target)
    specs = inputs_of(model)
    for spec in (*specs, *outputs_of(model)):
        if spec.dtype in OTHER_TYPES:
            todo = "export the model with tensors only"
            raise InvalidInput(expected="tensors as inputs and outputs", got=str(spec), todo=todo)
    arrays = bind(specs, find_inputs(inputs, specs, table_rows(model)))
    try:
        return Target(name_of(target), model, onnx_reader.read(model, arrays), arrays)
    except InvalidInput as error:
        if isinstance(inputs, str) and inputs == "auto":
            sizes = ", ".join(f"{key} {array.dtype}{list(array.shape)}" for key, array in arrays.items())
            got = f"{error.got} (with made-up inputs {sizes})"
            raise InvalidInput(expected=error.expected, got=got, todo=FROM_FILE) from error
        raise


def name_of(target: str | Path | Any) -> str:
    """Name a model after its file, or as it names itself."""
    return Path(target).stem if isinstance(target, (str, Path)) else target.graph.name or "model"
