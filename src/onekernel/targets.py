"""What the user named, as a model and one call's inputs.

It opens files and makes up inputs; it knows no chain, kernel or runtime.

Inputs that are made up ("auto"): an axis of varying length is 1 where it is the first, else 64, and equal
names get equal lengths. Floats are uniform in [0, 1), booleans are true, integers are 1, except that integers
which index a table are random rows of it. The same model always gets the same inputs.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from onekernel.errors import InvalidInput
from onekernel.graph import onnx_reader
from onekernel.graph.model import Graph
from onekernel.splice.signature import Array, Inputs, Spec, bind, inputs_of, outputs_of

FIRST_AXIS, OTHER_AXIS = 1, 64
OTHER_TYPES = ("sequence_type", "map_type", "optional_type", "sparse_tensor_type")
_FILE = "give --inputs FILE.npz with one array for each input"
_TODO = f"{_FILE}, or --inputs auto"


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
    name = Path(target).stem if isinstance(target, (str, Path)) else model.graph.name or "model"
    specs = inputs_of(model)
    for spec in (*specs, *outputs_of(model)):
        if spec.dtype in OTHER_TYPES:
            todo = "export the model with tensors only"
            raise InvalidInput(expected="tensors as inputs and outputs", got=str(spec), todo=todo)
    arrays = bind(specs, _given(model, specs, inputs))
    try:
        return Target(name, model, onnx_reader.read(model, arrays), arrays)
    except InvalidInput as error:
        if isinstance(inputs, str) and inputs == "auto":
            sizes = ", ".join(f"{key} {array.dtype}{list(array.shape)}" for key, array in arrays.items())
            got = f"{error.got} (with made-up inputs {sizes})"
            raise InvalidInput(expected=error.expected, got=got, todo=_FILE) from error
        raise


def _given(model: Any, specs: Sequence[Spec], inputs: Inputs | str | Path | None) -> Inputs:
    if inputs is None:
        if dynamic := [spec for spec in specs if spec.dynamic]:
            got = "no inputs for " + "; ".join(map(str, dynamic))
            raise InvalidInput(expected="inputs of a fixed size", got=got, todo=_TODO)
        inputs = "auto"
    if isinstance(inputs, (str, Path)):
        return make_up(model, specs) if str(inputs) == "auto" else read_arrays(Path(inputs))
    return inputs


def read_arrays(path: Path) -> dict[str, Array]:
    """Read the named arrays of an .npz file."""
    hint = "write one with numpy.savez(FILE, name=array, ...)"
    try:
        archive = np.load(path, allow_pickle=False)
        if isinstance(archive, np.lib.npyio.NpzFile):
            with archive:
                return dict(archive)
    except FileNotFoundError as error:
        raise InvalidInput(expected=f"an .npz file at {path}", got="no such file", todo=hint) from error
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InvalidInput(expected=f"an .npz file at {path}", got="another format", todo=hint) from error
    raise InvalidInput(expected=f"an .npz file at {path}", got="a single array", todo=hint)


def make_up(model: Any, specs: Sequence[Spec]) -> dict[str, Array]:
    """Invent inputs by dtype and shape (the rules are at the top of this module)."""
    tables, random = _tables(model), np.random.default_rng(0)
    lengths: dict[str, int] = {}
    return {spec.name: _invent(spec, _shape(spec, lengths), tables.get(spec.name), random) for spec in specs}


def _shape(spec: Spec, lengths: dict[str, int]) -> list[int]:
    if spec.shape is None or spec.dtype in ("string", "unknown"):
        raise InvalidInput(expected="an input of known rank and numeric type", got=str(spec), todo=_FILE)
    return [_length(size, axis, lengths) for axis, size in enumerate(spec.shape)]


def _length(size: int | str, axis: int, lengths: dict[str, int]) -> int:
    default = OTHER_AXIS if axis else FIRST_AXIS
    if isinstance(size, int):
        return size
    return default if size == "?" else lengths.setdefault(size, default)


def _invent(spec: Spec, shape: list[int], rows: int | None, random: np.random.Generator) -> Array:
    dtype = np.dtype(spec.dtype)
    if dtype.kind == "f":
        return random.random(shape).astype(dtype)
    if dtype.kind in "iu" and rows:
        return random.integers(0, rows, shape).astype(dtype)
    return np.ones(shape, dtype)


def _tables(model: Any) -> dict[str, int]:
    """Find for each name that indexes a constant table how many rows the table has."""
    sizes = {item.name: item.dims[0] for item in model.graph.initializer if item.dims}
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].t.dims:
            sizes[node.output[0]] = node.attribute[0].t.dims[0]
    return {
        node.input[1]: int(sizes[node.input[0]])
        for node in model.graph.node
        if node.op_type == "Gather"
        and node.input[0] in sizes
        and not any(a.name == "axis" and a.i for a in node.attribute)
    }
