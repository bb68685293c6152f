"""Knows the shape and dtype of every value: one run of ONNX Runtime on the sample inputs.

Shapes of real models depend on data (durations, NonZero), so they are observed, not inferred. Only shapes
leave the run, not tensors: a `Shape` node is put behind each value. It refuses to know what operators mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from onekernel.errors import InvalidInput, MissingExtra
from onekernel.graph.onnx_session import cpu_session

if TYPE_CHECKING:
    from onnx import ModelProto, TypeProto, ValueInfoProto

Array = npt.NDArray[Any]
_SHAPE_OF = "onekernel.shape_of:"


@dataclass(frozen=True)
class Seen:
    """What one run showed of a value; `content` is kept only where it was asked for."""

    dtype: str
    shape: tuple[int, ...]
    content: Array | None = None


def check_inputs(model: ModelProto, inputs: Mapping[str, Array]) -> None:
    """Compare sample inputs with the model's signature; raises InvalidInput that lists what is expected."""
    wanted = {value.name: value for value in model_inputs(model)}
    signature = ", ".join(_signature(value) for value in wanted.values()) or "no inputs"
    faults = [f"no {name!r}" for name in wanted if name not in inputs]
    faults += [f"an unknown {name!r}" for name in inputs if name not in wanted]
    faults += [
        f"{name!r} as {dtype_of(array)}{list(array.shape)}"
        for name, array in inputs.items()
        if name in wanted and not _fits(wanted[name], array)
    ]
    if faults:
        todo = "give one array for each input of the model"
        raise InvalidInput(expected=f"inputs {signature}", got=", ".join(faults), todo=todo)


def model_inputs(model: ModelProto) -> list[ValueInfoProto]:
    """Inputs that a caller must give: those that no initializer fills."""
    filled = {item.name for item in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in filled]


def trace(model: ModelProto, inputs: Mapping[str, Array], contents: Sequence[str]) -> dict[str, Seen]:
    """Run the model once and return what was seen of each node output; `contents` are kept whole."""
    import onnx

    types = _inferred_types(model)
    whole = set(contents)
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    del probe.graph.output[:]
    for name in dict.fromkeys(name for node in model.graph.node for name in node.output if name):
        kind = types.get(name)
        if kind is None or name in whole:
            probe.graph.output.append(onnx.ValueInfoProto(name=name))
        elif kind.HasField("tensor_type"):
            probe.graph.node.append(onnx.helper.make_node("Shape", [name], [_SHAPE_OF + name]))
            probe.graph.output.append(onnx.ValueInfoProto(name=_SHAPE_OF + name))
    return {name: seen for name, seen in (_seen(*item, types) for item in _run(probe, inputs)) if seen}


def dtype_name(element: int) -> str:
    """Name of an ONNX element type: "float32", "bfloat16", "int64", ..."""
    from onnx import helper

    return "string" if element == 8 else str(np.dtype(helper.tensor_dtype_to_np_dtype(element)))


def dtype_of(array: Array) -> str:
    """Name of an array's dtype as `dtype_name` spells it; one in foreign byte order has no such name (">f4")."""
    return "string" if array.dtype.kind in "OU" else str(array.dtype)


def _seen(name: str, got: Any, types: Mapping[str, TypeProto]) -> tuple[str, Seen | None]:
    if name.startswith(_SHAPE_OF):
        name = name.removeprefix(_SHAPE_OF)
        return name, Seen(dtype_name(types[name].tensor_type.elem_type), tuple(map(int, got)))
    if not isinstance(got, np.ndarray):
        return name, None
    return name, Seen(str(got.dtype), got.shape, got)


def _run(probe: ModelProto, inputs: Mapping[str, Array]) -> list[tuple[str, Any]]:
    try:
        from onnxruntime.capi import onnxruntime_pybind11_state as state
    except ModuleNotFoundError as error:
        raise MissingExtra("onnxruntime", "onnx") from error
    names = [value.name for value in probe.graph.output]
    refusals = (state.Fail, state.InvalidArgument, state.InvalidGraph, state.NotImplemented)
    try:
        session = cpu_session(_serialized(probe), optimize=False)
        return list(zip(names, session.run(names, dict(inputs)), strict=True))
    except (*refusals, state.RuntimeException, RuntimeError) as error:  # the last: it has no array for bfloat16
        reason = " ".join(str(error).split())
        todo = "check that the original model runs on these inputs"
        raise InvalidInput(expected="a model that ONNX Runtime can run", got=reason, todo=todo) from error


def _serialized(model: ModelProto) -> bytes:
    from google.protobuf.message import EncodeError  # type: ignore[import-untyped]

    try:
        return bytes(model.SerializeToString())
    except (EncodeError, ValueError) as error:
        todo = "split the model or lower its precision"
        raise InvalidInput(expected="a model under 2 GiB", got="a larger one", todo=todo) from error


def _inferred_types(model: ModelProto) -> dict[str, TypeProto]:
    from onnx import shape_inference

    graph = shape_inference.infer_shapes(_serialized(model)).graph
    known = (*graph.value_info, *graph.output, *graph.input)
    return {value.name: value.type for value in known if _is_typed(value.type)}


def _is_typed(kind: TypeProto) -> bool:
    return kind.WhichOneof("value") is not None and (
        not kind.HasField("tensor_type") or kind.tensor_type.elem_type != 0
    )


def _dims(value: ValueInfoProto) -> list[int | str]:
    dims = value.type.tensor_type.shape.dim
    return [int(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param or "?" for dim in dims]


def _signature(value: ValueInfoProto) -> str:
    dims = ",".join(map(str, _dims(value)))
    return f"{value.name}: {dtype_name(value.type.tensor_type.elem_type)}[{dims}]"


def _fits(value: ValueInfoProto, array: Array) -> bool:
    if dtype_of(array) != dtype_name(value.type.tensor_type.elem_type):
        return False
    if not value.type.tensor_type.HasField("shape"):
        return True
    dims = _dims(value)
    return len(dims) == array.ndim and all(
        isinstance(dim, str) or dim == size for dim, size in zip(dims, array.shape, strict=True)
    )
