"""Knows the float64 meaning of every operator that OneKernel knows, over a graph or a list of nodes.

It is the oracle of the rewriting rules, not a runtime: plain numpy, no care for speed. It refuses opaque
operators.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from onekernel.errors import InvalidInput
from onekernel.graph.model import Graph, Node
from onekernel.ops import ELEMENTWISE, standardize

Array = npt.NDArray[Any]


def run(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Compute the outputs of a graph in float64."""
    known = {name: value.constant for name, value in graph.values.items() if value.constant is not None}
    everything = run_nodes(graph.nodes, {**known, **inputs})
    return {name: everything[name] for name in graph.outputs}


def run_nodes(nodes: Iterable[Node], values: Mapping[str, Array]) -> dict[str, Array]:
    """Compute nodes in the given order; returns `values` in float64 with every output added."""
    known = {name: np.asarray(array).astype(np.float64) for name, array in values.items()}
    for node in nodes:
        known[node.outputs[0]] = apply(node, [known[name] for name in node.inputs])
    return known


def apply(node: Node, inputs: list[Array]) -> Array:
    """Compute one node in float64; raises InvalidInput for an opaque operator."""
    attributes = node.attributes
    match node.op:
        case "transpose":
            return np.transpose(inputs[0], attributes["perm"])
        case "reduce_mean":
            return _reduce(np.mean, node, inputs[0])
        case "reduce_sum":
            return _reduce(np.sum, node, inputs[0])
        case "standardize":
            return standardize(inputs[0], axis=attributes["axis"], epsilon=attributes["epsilon"])
        case "pow":
            return np.asarray(np.power(*inputs))
        case op if op in ELEMENTWISE:
            return np.asarray(ELEMENTWISE[op].meaning(*inputs))
    raise InvalidInput(expected="an operator that OneKernel knows", got=node.op, todo="run it elsewhere")


def _reduce(function: Any, node: Node, x: Array) -> Array:
    axes, keepdims = node.attributes["axes"], node.attributes["keepdims"]
    return np.asarray(function(x, axis=axes, keepdims=keepdims))
