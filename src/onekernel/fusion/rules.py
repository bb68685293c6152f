"""Knows how to bring a graph to its normal form: rules, one at a time, until none applies.

The rules are in `spelling`, one short function each. They keep the meaning of every value that the original
model names. This module refuses to know any of them.
"""

from __future__ import annotations

from onekernel.fusion.spelling import arithmetic, means, roots
from onekernel.fusion.spelling.registry import RULES
from onekernel.graph.draft import Draft
from onekernel.graph.model import Graph

SPELLINGS = (arithmetic, means, roots)  # importing a module registers its rules


def normal_form(graph: Graph) -> Graph:
    """Rewrite a graph to its fixed point; each normalisation that can be fused is one `standardize` node."""
    draft = Draft(graph)
    while sum(_rewrite_at(draft, key) for key in draft.keys()):  # noqa: SIM118 - a snapshot, not a view
        pass
    return draft.freeze()


def _rewrite_at(draft: Draft, key: str) -> bool:
    node = draft.get(key)
    return node is not None and any(rule(draft, node) for rule in RULES.get(node.op, ()))
