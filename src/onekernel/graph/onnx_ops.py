"""Knows which ONNX operator is which of ours: one table, a short function for what is not a plain name.

A mapper returns the nodes that an application stands for, or None, which leaves it opaque. Attributes that
our operators take as inputs become constant scalars. It refuses to know fusion.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onekernel.graph.model import Node, Value

FLOATS = ("float16", "bfloat16", "float32", "float64")


@dataclass
class Application:
    """One ONNX node with what is known around it; `values` grows by what its translation needs."""

    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    opset: int
    values: dict[str, Value]
    used: frozenset[str] = field(default_factory=frozenset)

    def input(self, index: int) -> str:
        """Name of an input, "" when it is absent."""
        return self.inputs[index] if index < len(self.inputs) else ""

    def value(self, index: int = 0) -> Value:
        """An input that is present."""
        return self.values[self.inputs[index]]

    def content(self, index: int) -> Any:
        """What a constant input holds, or None."""
        name = self.input(index)
        return self.values[name].constant if name in self.values else None

    def node(self, op: str, *inputs: str, into: str = "", **attributes: Any) -> Node:
        """A node of ours that writes the application's output, or the value `into`."""
        return Node(op, inputs, (into or self.outputs[0],), attributes, (self.name,))

    def scalar(self, label: str, number: float) -> str:
        """Name of a new constant scalar of the input's dtype."""
        name = f"{self.name}:{label}"
        dtype = self.value().dtype
        self.values[name] = Value(name, dtype, (), np.asarray(number, np.float64))
        return name

    def between(self, label: str, like: str) -> str:
        """Name of a new intermediate with the shape and dtype of another value."""
        name = f"{self.name}:{label}"
        self.values[name] = Value(name, self.values[like].dtype, self.values[like].shape)
        return name


Mapper = Callable[[Application], list[Node] | None]

_PLAIN = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Neg": "neg", "Abs": "abs", "Sqrt": "sqrt",
    "Reciprocal": "reciprocal", "Exp": "exp", "Log": "log", "Sin": "sin", "Cos": "cos", "Tanh": "tanh",
    "Erf": "erf", "Sigmoid": "sigmoid", "Relu": "relu", "Softplus": "softplus", "Pow": "pow",
    "PRelu": "leaky_relu",
}  # fmt: skip
_PAIRS = {"Max": "maximum", "Min": "minimum", "Sum": "add"}


def convert(application: Application) -> list[Node] | None:
    """Nodes of ours for one ONNX node, or None when it stays opaque; only floating-point values convert."""
    mapper = MAPPERS.get(application.op)
    tensors = [name for name in (*application.inputs[:1], *application.outputs) if name]
    if mapper is None or not all(
        name in application.values and application.values[name].dtype in FLOATS for name in tensors
    ):
        return None
    return mapper(application)


def _plain(op: str) -> Mapper:
    return lambda a: [a.node(op, *a.inputs)]


def _pair(op: str) -> Mapper:
    return lambda a: [a.node(op, *a.inputs)] if len(a.inputs) == 2 else None


def _cast(a: Application) -> list[Node]:
    return [a.node("cast", a.input(0), to=a.values[a.outputs[0]].dtype)]


def _same(a: Application) -> list[Node]:
    """An operator that changes nothing is the transpose that moves no axis."""
    return [a.node("transpose", a.input(0), perm=tuple(range(len(a.value().shape))))]


def _dropout(a: Application) -> list[Node] | None:
    training = a.input(2) and not (a.content(2) is not None and not a.content(2).any())
    return None if training or any(name in a.used for name in a.outputs[1:]) else _same(a)


def _transpose(a: Application) -> list[Node]:
    perm = a.attributes.get("perm") or reversed(range(len(a.value().shape)))
    return [a.node("transpose", a.input(0), perm=tuple(perm))]


def _reduce(op: str, axes_are_input_since: int) -> Mapper:
    def mapper(a: Application) -> list[Node] | None:
        rank = len(a.value().shape)
        axes = a.content(1) if a.opset >= axes_are_input_since else a.attributes.get("axes")
        if axes is None and (a.input(1) or a.attributes.get("noop_with_empty_axes")):
            return None
        listed = range(rank) if axes is None else (int(axis) for axis in axes)
        whole = tuple(sorted(axis % rank for axis in listed)) if rank else ()
        return [a.node(op, a.input(0), axes=whole, keepdims=bool(a.attributes.get("keepdims", 1)))]

    return mapper


def _leaky_relu(a: Application) -> list[Node]:
    return [a.node("leaky_relu", a.input(0), a.scalar("alpha", a.attributes.get("alpha", 0.01)))]


def _clip(a: Application) -> list[Node]:
    widest = 65504.0 if a.value().dtype == "float16" else float(np.finfo(np.float32).max)
    low, high = a.input(1) or a.scalar("min", -widest), a.input(2) or a.scalar("max", widest)
    return [a.node("clip", a.input(0), low, high)]


def _gelu(a: Application) -> list[Node]:
    tanh = a.attributes.get("approximate", b"none") == b"tanh"
    return [a.node("gelu_tanh" if tanh else "gelu", a.input(0))]


def _biased(op: str) -> Mapper:
    def mapper(a: Application) -> list[Node]:
        if not a.input(1):
            return [a.node(op, a.input(0))]
        biased = a.between("biased", a.outputs[0])
        return [a.node("add", a.input(0), a.input(1), into=biased), a.node(op, biased)]

    return mapper


def _quick_gelu(a: Application) -> list[Node]:
    x, scaled, gate = a.input(0), a.between("scaled", a.outputs[0]), a.between("gate", a.outputs[0])
    alpha = a.scalar("alpha", a.attributes.get("alpha", 1.702))
    return [
        a.node("mul", x, alpha, into=scaled),
        a.node("sigmoid", scaled, into=gate),
        a.node("mul", x, gate),
    ]


def _layer_norm(a: Application) -> list[Node] | None:
    rank = len(a.value().shape)
    statistics = any(name in a.used for name in a.outputs[1:])
    if statistics or a.attributes.get("axis", -1) % rank != rank - 1:
        return None
    normal, biased = a.between("normal", a.outputs[0]), a.input(2)
    scaled = a.between("scaled", a.outputs[0]) if biased else a.outputs[0]
    epsilon = float(a.attributes.get("epsilon", 1e-5))
    nodes = [
        a.node("standardize", a.input(0), into=normal, axis=rank - 1, epsilon=epsilon),
        a.node("mul", normal, a.input(1), into=scaled),
    ]
    return [*nodes, a.node("add", scaled, biased)] if biased else nodes


MAPPERS: dict[str, Mapper] = {
    **{theirs: _plain(ours) for theirs, ours in _PLAIN.items()},
    **{theirs: _pair(ours) for theirs, ours in _PAIRS.items()},
    "Cast": _cast,
    "Identity": _same,
    "Dropout": _dropout,
    "Transpose": _transpose,
    "ReduceMean": _reduce("reduce_mean", 18),
    "ReduceSum": _reduce("reduce_sum", 13),
    "LeakyRelu": _leaky_relu,
    "Clip": _clip,
    "Gelu": _gelu,
    "FastGelu": _biased("gelu_tanh"),
    "BiasGelu": _biased("gelu"),
    "QuickGelu": _quick_gelu,
    "LayerNormalization": _layer_norm,
}
