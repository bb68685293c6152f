"""A small typed graph: what a foreign model computes, with concrete shapes.

It is pure dataflow: every value is written once. Nodes whose operator OneKernel knows carry a name of
`ops.ELEMENTWISE` or one of these; any other node keeps its foreign name and is opaque: it can be neighbour to
a chain but never part of one.

    transpose                 perm: tuple[int, ...]
    reduce_mean, reduce_sum   axes: tuple[int, ...] (non-negative), keepdims: bool
    standardize               axis: int (non-negative), epsilon: float; ops.standardize
    pow                       two inputs; the normal form turns the powers that a norm uses into other operators
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy.typing as npt


@dataclass(frozen=True)
class Value:
    """A tensor of the graph; `constant` holds its content when the model fixes it."""

    name: str
    dtype: str  # "float32", "float16", "bfloat16", "int64", ...
    shape: tuple[int, ...]  # the sample inputs' shape
    constant: npt.NDArray[Any] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Node:
    """An operator application; `source` names the nodes of the original model that it stands for."""

    op: str
    inputs: tuple[str, ...]  # "" = an optional input that is absent
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict, hash=False)
    source: tuple[str, ...] = ()


@dataclass(frozen=True)
class Graph:
    """Nodes in topological order; `values` holds every input, constant and intermediate by name."""

    nodes: tuple[Node, ...]
    values: Mapping[str, Value]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @cached_property
    def producers(self) -> dict[str, Node]:
        """The node that writes each value."""
        return {name: node for node in self.nodes for name in node.outputs if name}

    @cached_property
    def consumers(self) -> dict[str, tuple[Node, ...]]:
        """The nodes that read each value, in order; one entry per node, however often it reads it."""
        readers: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                readers.setdefault(name, []).append(node)
        return {name: tuple(nodes) for name, nodes in readers.items()}
