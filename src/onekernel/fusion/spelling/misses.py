"""Knows the candidates that the pattern of `norm` did not take, and the reason for each.

It refuses to know how a candidate would be fused.
"""

from __future__ import annotations

from onekernel.fusion.chain import Left
from onekernel.fusion.spelling.norm import Trail, is_same, match, origin, variance_below
from onekernel.graph.draft import Draft
from onekernel.graph.model import Graph, Node


def near_misses(graph: Graph) -> tuple[Left, ...]:
    """Every place that divides by the root of a mean square and is no normalisation that can fuse."""
    draft = Draft(graph)
    found: dict[tuple[str, ...], str] = {}
    for root in graph.nodes:
        trail = Trail(draft)
        if root.op in ("sqrt", "rsqrt") and variance_below(trail, root.inputs[0]) is not None:
            for user, reason in _reasons(draft, root):
                nodes = (*reversed(trail.nodes.values()), root, user)
                found.setdefault(tuple(dict.fromkeys(s for node in nodes for s in node.source)), reason)
    return tuple(Left(source, reason) for source, reason in found.items())


def _reasons(draft: Draft, root: Node) -> list[tuple[Node, str]]:
    users = [user for reader in draft.users(root.outputs[0]) for user in _through(draft, reader)]
    reasons: list[tuple[Node, str]] = []
    for user in users:
        matched = match(draft, user) if user.op == "mul" and root.op == "rsqrt" else None
        if isinstance(matched, str):
            reasons.append((user, matched))
        elif user.op == "div" and root.op == "sqrt" and origin(draft, user.inputs[1]) == root.outputs[0]:
            reasons.append((user, "no mean is subtracted (a root-mean-square normalisation)"))
        elif user.op == "add" and root.op == "sqrt":
            reasons.append((user, "epsilon is added after the square root"))
    return reasons


def _through(draft: Draft, node: Node) -> list[Node]:
    if not is_same(node):
        return [node]
    return [user for reader in draft.users(node.outputs[0]) for user in _through(draft, reader)]
