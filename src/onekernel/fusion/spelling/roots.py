"""Knows the ways to divide by a square root, and the one pattern that all of them lead to."""

from __future__ import annotations

from onekernel.fusion.spelling.norm import Norm, is_centred, is_same, match, origin
from onekernel.fusion.spelling.registry import put, rule
from onekernel.graph.draft import Draft
from onekernel.graph.model import Node


@rule("reciprocal")
def _inverse_root(draft: Draft, node: Node) -> bool:
    """reciprocal(sqrt(x)) -> rsqrt(x)."""
    root = draft.made_by(node.inputs[0], "sqrt")
    return root is not None and put(draft, node, "rsqrt", root.inputs[0], absorbed=(root,))


@rule("sqrt")
def _root_of_inverse(draft: Draft, node: Node) -> bool:
    """sqrt(reciprocal(x)) -> rsqrt(x)."""
    inverse = draft.made_by(node.inputs[0], "reciprocal")
    return inverse is not None and put(draft, node, "rsqrt", inverse.inputs[0], absorbed=(inverse,))


@rule("div")
def _divided_by_root(draft: Draft, node: Node) -> bool:
    """div(centred, sqrt(v)) -> mul(centred, rsqrt(v))."""
    numerator, denominator = node.inputs
    root = draft.made_by(origin(draft, denominator), "sqrt")
    if root is None or not is_centred(draft, numerator):
        return False
    inverse = draft.between(root.outputs[0], "inverse")
    made = [
        Node("rsqrt", root.inputs, (inverse,)),
        Node("mul", (numerator, inverse), node.outputs),
    ]
    draft.replace(node, made, [*_between(draft, denominator), root])
    return True


@rule("mul")
def _scaled_root(draft: Draft, node: Node) -> bool:
    """mul(centred, mul(root, scale)) -> mul(mul(centred, root), scale)."""
    for centred, factor in (node.inputs, node.inputs[::-1]):
        inner = draft.made_by(factor, "mul")
        if inner is None or not is_centred(draft, centred):
            continue
        for root, scale in (inner.inputs, inner.inputs[::-1]):
            if draft.made_by(origin(draft, root), "rsqrt"):
                normal = draft.between(centred, "normal")
                made = [Node("mul", (centred, root), (normal,)), Node("mul", (normal, scale), node.outputs)]
                draft.replace(node, made, [inner])
                return True
    return False


@rule("mul")
def _standardize(draft: Draft, node: Node) -> bool:
    """The one pattern of `norm` -> standardize(x)."""
    norm = match(draft, node)
    if not isinstance(norm, Norm):
        return False
    made = Node("standardize", (norm.x,), node.outputs, {"axis": norm.axis, "epsilon": norm.epsilon})
    draft.replace(node, [made], norm.nodes)
    return True


def _between(draft: Draft, name: str) -> list[Node]:
    """The casts and idle transposes that stand over a value, readers first."""
    met: list[Node] = []
    while (node := draft.producer(name)) is not None and is_same(node):
        met.append(node)
        name = node.inputs[0]
    return met
