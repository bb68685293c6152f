"""Knows how to turn an ONNX model and sample inputs into a Graph with concrete shapes.

Operators that the table of `onnx_ops` does not name stay opaque, and bodies of If and Loop stay closed (the
outer values that they read are listed among the node's inputs). It refuses to know fusion.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from onekernel.graph.draft import topological
from onekernel.graph.model import Graph, Node, Value
from onekernel.graph.onnx_model import captured, load, name_nodes, standard_opset
from onekernel.graph.onnx_ops import Application, convert
from onekernel.graph.onnx_trace import check_inputs, model_inputs, trace

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

__all__ = ["load", "name_nodes", "read"]

Array = npt.NDArray[Any]

# Operators that give a constant when all their inputs are constant. Short on purpose: what exporters wrap
# around epsilons, exponents, axes and shared weights.
_FOLDED = {
    "Identity", "Cast", "Unsqueeze", "Squeeze", "Reshape", "ConstantOfShape", "Expand", "Transpose", "Concat",
    "Sqrt", "Reciprocal", "Neg", "Add", "Sub", "Mul", "Div", "Gather", "Slice", "Range",
}  # fmt: skip


def read(source: str | Path | ModelProto, inputs: Mapping[str, Array]) -> Graph:
    """Read an ONNX model as a graph whose shapes are those of one run on `inputs`, without what no output needs.

    Raises InvalidInput when the file, an operator, the opset or an input cannot be used.
    """
    model = load(source)
    check_inputs(model, inputs)
    constants = _constants(model)
    folded = _folded(model, set(constants))
    values = {name: _value(name, array) for name, array in constants.items()}
    values |= {name: Value(name, str(array.dtype), array.shape) for name, array in inputs.items()}
    for name, seen in trace(model, inputs, folded).items():
        if name not in constants:
            values[name] = Value(name, seen.dtype, seen.shape, seen.content if name in folded else None)
    live = _live(model)
    used = _used(live, model)
    fixed = {*constants, *folded}
    nodes: list[Node] = []
    for proto in live:
        if not fixed.issuperset(proto.output):
            nodes += _nodes(_application(proto, standard_opset(model), values, used), captured(proto))
    return Graph(
        nodes=topological(nodes),
        values=values,
        inputs=tuple(value.name for value in model_inputs(model)),
        outputs=tuple(value.name for value in model.graph.output),
    )


def _nodes(application: Application, hidden_inputs: tuple[str, ...]) -> list[Node]:
    """The application in our operators, or one opaque node."""
    for name in application.outputs:
        if name:
            application.values.setdefault(name, Value(name, "sequence", ()))
    opaque = Node(
        application.op,
        (*application.inputs, *hidden_inputs),
        application.outputs,
        source=(application.name,),
    )
    return convert(application) or [opaque]


def _application(node: NodeProto, opset: int, values: dict[str, Value], used: frozenset[str]) -> Application:
    from onnx import helper

    attributes = {
        item.name: helper.get_attribute_value(item)
        for item in node.attribute
        if not item.HasField("g") and not item.graphs
    }
    return Application(node.op_type, node.name, tuple(node.input), tuple(node.output), attributes, opset, values, used)


def _live(model: ModelProto) -> list[NodeProto]:
    """Nodes that some output of the model needs, in the model's order; the others never run."""
    writers = {name: node for node in model.graph.node for name in node.output if name}
    live: set[str] = set()
    pending = [value.name for value in model.graph.output]
    while pending:
        node = writers.get(pending.pop())
        if node is not None and node.name not in live:
            live.add(node.name)
            pending += (*node.input, *captured(node))
    return [node for node in model.graph.node if node.name in live]


def _used(nodes: Iterable[NodeProto], model: ModelProto) -> frozenset[str]:
    read_by_nodes = {name for node in nodes for name in (*node.input, *captured(node))}
    return frozenset(read_by_nodes | {value.name for value in model.graph.output})


def _value(name: str, array: Array) -> Value:
    return Value(name, str(array.dtype), array.shape, array)


def _constants(model: ModelProto) -> dict[str, Array]:
    """Content of initializers and of Constant nodes; sparse and text constants stay opaque."""
    from onnx import numpy_helper

    found = {item.name: numpy_helper.to_array(item) for item in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant" and (array := _constant(node)) is not None:
            found[node.output[0]] = array
    return found


def _constant(node: NodeProto) -> Array | None:
    from onnx import helper, numpy_helper

    item = node.attribute[0]
    content = helper.get_attribute_value(item)
    match item.name:
        case "value":
            return numpy_helper.to_array(content)
        case "value_float" | "value_floats":
            return np.asarray(content, np.float32)
        case "value_int" | "value_ints":
            return np.asarray(content, np.int64)
    return None


def _folded(model: ModelProto, constants: set[str]) -> list[str]:
    """Names of node outputs that depend on constants only, through operators of `_FOLDED`."""
    known, found = set(constants), []
    for node in model.graph.node:
        if node.op_type in _FOLDED and not node.domain and known.issuperset(filter(None, node.input)):
            found += node.output
            known.update(node.output)
    return found
