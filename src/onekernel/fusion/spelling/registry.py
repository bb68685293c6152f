"""Knows the list of rules by the operator they start from, and the one-node replacement most of them make."""

from __future__ import annotations

from collections.abc import Callable

from onekernel.graph.draft import Draft
from onekernel.graph.model import Node

Rule = Callable[[Draft, Node], bool]
RULES: dict[str, list[Rule]] = {}


def rule(*ops: str) -> Callable[[Rule], Rule]:
    """Register a rule for some operators; it looks upwards, and returns whether it changed the draft."""

    def register(function: Rule) -> Rule:
        for op in ops:
            RULES.setdefault(op, []).append(function)
        return function

    return register


def keeps_shape(draft: Draft, node: Node, name: str) -> bool:
    """Whether a node's output has the shape of some value."""
    return draft.values[node.outputs[0]].shape == draft.values[name].shape


def put(draft: Draft, node: Node, op: str, *inputs: str, absorbed: tuple[Node, ...] = ()) -> bool:
    """Compute the output of `node` by one node of another spelling, unless that loses axes."""
    if len(inputs) == 1 and not keeps_shape(draft, node, inputs[0]):
        return False
    draft.replace(node, [Node(op, inputs, node.outputs)], absorbed)
    return True
