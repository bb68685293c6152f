"""Knows how to find every chain of a graph in normal form, and says of each candidate that it leaves why.

It refuses to know cost and kernels: `cost` says whether a chain pays, `kernel` builds it.
"""

from __future__ import annotations

from onekernel.fusion.chain import Chain, Left, Search
from onekernel.fusion.growth.emit import emit
from onekernel.fusion.growth.group import DTYPES, Group, Neighbourhood, grow, seed
from onekernel.fusion.growth.layout import frames
from onekernel.fusion.naming import canonical
from onekernel.fusion.spelling.misses import near_misses
from onekernel.graph.model import Graph, Node

__all__ = ["canonical", "find_chains"]

HIDDEN = range(1, 65_537)


def find_chains(graph: Graph) -> Search:
    """Grow one chain from each `standardize` of a graph in normal form, in graph order."""
    around = Neighbourhood(graph)
    chains: list[Chain] = []
    left: list[Left] = []
    for index, node in enumerate(graph.nodes):
        if node.op == "standardize":
            found = _unfit(graph, node) or _largest(around, index)
            if isinstance(found, str):
                left.append(Left(node.source, found))
            else:
                around.take(found.members)
                chains.append(emit(found))
        elif node.op == "LayerNormalization":
            left.append(Left(node.source, _opaque_reason(graph, node)))
    return Search(tuple(chains), (*left, *near_misses(graph)))


def _largest(around: Neighbourhood, index: int) -> Group | str:
    """The group that stands for most nodes of the model, over all frames; the earlier frame wins a tie."""
    node = around.graph.nodes[index]
    shape = around.graph.values[node.inputs[0]].shape
    reason, best, most = "", None, 0
    for frame, layout in frames(shape, node.attributes["axis"]):
        found = grow(seed(around, index, frame, layout))
        if isinstance(found, str):
            reason = reason or found
        elif len(sources := {name for item in found.nodes() for name in item.source}) > most:
            best, most = found, len(sources)
    return best or reason


def _unfit(graph: Graph, node: Node) -> str:
    value = graph.values[node.inputs[0]]
    hidden = value.shape[node.attributes["axis"]]
    if value.dtype not in DTYPES:
        return f"it computes in {value.dtype}; kernels exist for {', '.join(DTYPES)}"
    if hidden not in HIDDEN:
        return f"it normalises {hidden} elements; kernels exist for {HIDDEN[0]} to {HIDDEN[-1]}"
    return ""


def _opaque_reason(graph: Graph, node: Node) -> str:
    value = graph.values[node.inputs[0]]
    if value.dtype not in (*DTYPES, "float64"):
        return f"it computes in {value.dtype}"
    read = [name for name in node.outputs[1:] if name in graph.consumers or name in graph.outputs]
    return f"its statistics {read[0]!r} are used elsewhere" if read else "it normalises over several axes at once"
