"""Draws of random numbers that give the same at every call, so that two models can be compared on equal draws.

A seed does not do that: an ONNX Runtime session goes on in the stream of a seeded operator from call to call. Here a
draw reads a table instead, from its start, again and again; Multinomial and Bernoulli stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from onekernel.splice.model import FusedModel, Part
from onekernel.splice.onnxruntime import assemble
from onekernel.splice.signature import Array

ROWS = 1 << 16  # of the table
_NORMAL, _UNIFORM = ("RandomNormal", "RandomNormalLike"), ("RandomUniform", "RandomUniformLike")


def repeated(model: Any) -> Any:
    """Copy an ONNX model with its draws replaced; one that draws nothing is returned as it is."""
    from onnx import ModelProto, shape_inference

    if not _draws(model.graph):
        return model
    copy = ModelProto()
    copy.CopyFrom(model)
    known = shape_inference.infer_shapes(model).graph
    elements = {v.name: v.type.tensor_type.elem_type for v in (*known.input, *known.value_info)}
    _replace(copy.graph, elements)
    return copy


def repeated_in(model: FusedModel) -> FusedModel:
    """Do the same for the sessions of a fused model."""
    parts = list(map(_repeated_part, model.parts))
    if all(new is old for new, old in zip(parts, model.parts, strict=True)):
        return model
    signature = (model.inputs, model.outputs)
    return assemble(parts, model.chains, model.engine, signature=signature, constants=model.constants)


def _repeated_part(part: Part) -> Part:
    from onnx import ModelProto

    if part.segment is None:
        return part
    model = ModelProto.FromString(part.segment)
    changed = repeated(model)
    return part if changed is model else replace(part, segment=changed.SerializeToString())


def _draws(graph: Any) -> bool:
    return any(node.op_type in (*_NORMAL, *_UNIFORM) or any(map(_draws, _bodies(node))) for node in graph.node)


def _bodies(node: Any) -> Iterator[Any]:
    for item in node.attribute:
        yield from [item.g] if item.HasField("g") else item.graphs


def _replace(graph: Any, elements: Mapping[str, int]) -> None:
    from onnx import GraphProto

    changed = GraphProto()
    for node in graph.node:
        for body in _bodies(node):
            _replace(body, elements)
        changed.node.extend(_table(node, elements) if node.op_type in (*_NORMAL, *_UNIFORM) else [node])
    del graph.node[:]
    graph.node.extend(changed.node)


def _table(node: Any, elements: Mapping[str, int]) -> list[Any]:
    """Write the nodes that give a draw's result: a constant of its shape, or the table wrapped to its input's shape."""
    from onnx import TensorProto, helper, numpy_helper

    given = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    element = given.get("dtype") or (elements.get(node.input[0]) if node.input else None) or TensorProto.FLOAT
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(element))
    (result,) = node.output

    def constant(name: str, array: Array) -> Any:
        return helper.make_node("Constant", [], [name], name, value=numpy_helper.from_array(array))

    if "shape" in given:
        numbers = _numbers(node.op_type, given, math.prod(given["shape"]))
        return [constant(result, numbers.reshape(given["shape"]).astype(dtype))]
    parts = ("table", "rows", "start", "step", "shape", "size", "index", "row", "flat")
    table, rows, start, step, shape, size, index, row, flat = (f"{result}.draw.{part}" for part in parts)
    steps = (
        ("Shape", [node.input[0]], shape), ("Size", [node.input[0]], size), ("Range", [start, size, step], index),
        ("Mod", [index, rows], row), ("Gather", [table, row], flat), ("Reshape", [flat, shape], result),
    )  # fmt: skip
    return [
        constant(table, _numbers(node.op_type, given, ROWS).astype(dtype)),
        *(constant(name, np.array(value)) for name, value in ((rows, ROWS), (start, 0), (step, 1))),
        *(helper.make_node(op, inputs, [output], output) for op, inputs, output in steps),
    ]


def _numbers(op: str, given: Mapping[str, Any], count: int) -> Array:
    random = np.random.default_rng(0)
    if op in _NORMAL:
        return random.normal(given.get("mean", 0.0), given.get("scale", 1.0), count)
    return random.uniform(given.get("low", 0.0), given.get("high", 1.0), count)
