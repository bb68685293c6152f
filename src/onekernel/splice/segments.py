"""Segments of a plan as ONNX models of their own: nodes, the weights they read, typed inputs and outputs.

It writes models and asks ONNX Runtime for types; it does not run anything and knows no chain.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from onekernel.errors import InvalidInput
from onekernel.graph.onnx_session import cpu_session
from onekernel.splice.plan import RANDOM, Segment, reads

_TYPE = re.compile(r"^(?P<sequence>seq\()?tensor\((?P<element>\w+)\)\)?$")
_ELEMENTS = {"float": "FLOAT", "double": "DOUBLE"}  # the others have one name in both libraries


def reseeded(model: Any, seed: float) -> Any:
    """Copy a model so that every draw of random numbers without a seed of its own starts from `seed`.

    A model without such draws is returned as it is.
    """
    from onnx import AttributeProto, ModelProto

    if not any(_draws(model.graph)):
        return model
    copy = ModelProto()
    copy.CopyFrom(model)
    for node in _draws(copy.graph):
        node.attribute.append(AttributeProto(name="seed", type=AttributeProto.FLOAT, f=seed))
    return copy


def _draws(graph: Any) -> Iterator[Any]:
    for node in graph.node:
        for item in node.attribute:
            for body in (item.g, *item.graphs):
                yield from _draws(body)
        if node.op_type in RANDOM and not any(item.name == "seed" for item in node.attribute):
            yield node


def value_types(model: Any, names: Iterable[str]) -> dict[str, Any]:
    """Ask ONNX Runtime for the types of values: ONNX TypeProtos with the sizes that are known."""
    from onnx import ModelProto

    wanted = list(dict.fromkeys(names))
    probe = ModelProto()
    probe.CopyFrom(model)
    del probe.graph.output[:]
    for name in wanted:
        probe.graph.output.add().name = name
    session = cpu_session(probe.SerializeToString(), optimize=False)
    return {item.name: _type(item.name, item.type, item.shape) for item in session.get_outputs()}


def _type(name: str, text: str, shape: Sequence[int | str | None]) -> Any:
    from onnx import TensorProto, helper

    match = _TYPE.match(text)
    if not match:
        raise InvalidInput(
            expected="tensors where the model is cut",
            got=f"{name!r} of type {text}",
            todo="leave out the chain next to it",
        )
    element = match["element"]
    number = TensorProto.DataType.Value(_ELEMENTS.get(element, element.upper()))
    # ONNX Runtime shows an unknown rank and a scalar alike: declare neither.
    tensor = helper.make_tensor_type_proto(number, list(shape) or None)
    return helper.make_sequence_type_proto(tensor) if match["sequence"] else tensor


def build(model: Any, segment: Segment, types: Mapping[str, Any]) -> Any:
    """Write one segment as an ONNX model with only the nodes and weights that it needs."""
    from onnx import GraphProto, ModelProto

    nodes = [model.graph.node[index] for index in segment.nodes]
    used = {name for node in nodes for name in reads(node)} | set(segment.outputs)
    graph = GraphProto(name=f"segment_{segment.stage:03d}", node=nodes)
    wanted = used - set(segment.inputs)
    graph.initializer.extend(item for item in model.graph.initializer if item.name in wanted)
    for names, infos in ((segment.inputs, graph.input), (segment.outputs, graph.output)):
        for name in names:
            info = infos.add(name=name)
            info.type.CopyFrom(types[name])
    return ModelProto(
        ir_version=model.ir_version,
        opset_import=model.opset_import,
        functions=model.functions,
        producer_name="onekernel",
        graph=graph,
    )
