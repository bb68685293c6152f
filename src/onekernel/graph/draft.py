"""Knows how to change a graph one node at a time and keep track of who reads what.

A rule replaces a node by others that give the same output; every node that a replacement makes stands for all
the original nodes that went into it, so that intermediates which the original model does not have never stand
alone. It refuses to know any operator.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from onekernel.graph.model import Graph, Node, Value


class Draft:
    """A graph under change. A node is known by the name of its first output that is not absent."""

    def __init__(self, graph: Graph) -> None:
        self._inputs, self._outputs = graph.inputs, graph.outputs
        self.values: dict[str, Value] = dict(graph.values)
        self._nodes: dict[str, Node] = {}
        self._producers: dict[str, Node] = {}
        self._users: dict[str, dict[str, None]] = {}
        for node in graph.nodes:
            self._add(node)

    def keys(self) -> tuple[str, ...]:
        """Every node at this moment."""
        return tuple(self._nodes)

    def get(self, key: str) -> Node | None:
        """A node by its key, if it still stands."""
        return self._nodes.get(key)

    def producer(self, name: str) -> Node | None:
        """The node that writes a value."""
        return self._producers.get(name)

    def made_by(self, name: str, *ops: str) -> Node | None:
        """The node that writes a value, if it is one of these operators."""
        node = self._producers.get(name)
        return node if node is not None and node.op in ops else None

    def users(self, name: str) -> list[Node]:
        """The nodes that read a value."""
        return [self._nodes[key] for key in self._users.get(name, ())]

    def is_output(self, name: str) -> bool:
        """Whether the graph gives the value to its caller."""
        return name in self._outputs

    def scalar(self, name: str) -> float | None:
        """The number that a constant of one element holds."""
        value = self.values.get(name)
        if value is None or value.constant is None or value.constant.size != 1:
            return None
        return float(value.constant.reshape(()))

    def between(self, base: str, label: str, shape: Sequence[int] | None = None) -> str:
        """Name of a new intermediate with the dtype of `base`, and its shape unless another is given."""
        name, number = f"{base}:{label}", 0
        while name in self.values:
            number += 1
            name = f"{base}:{label}{number}"
        like = self.values[base]
        self.values[name] = Value(name, like.dtype, like.shape if shape is None else tuple(shape))
        return name

    def replace(self, node: Node, by: Sequence[Node], absorbed: Iterable[Node] = ()) -> None:
        """Put `by` in the place of `node`; of `absorbed` (readers first) those go that nobody reads now."""
        self._remove(node)
        for made in by:
            self._add(made)
        gone = [item for item in absorbed if self._drop_if_unused(item)]
        source = tuple(dict.fromkeys(name for item in (*reversed(gone), node) for name in item.source))
        for made in by:
            self._remove(made)
            self._add(replace(made, source=source))

    def freeze(self) -> Graph:
        """The graph as it stands, in topological order."""
        nodes = topological(self._nodes.values())
        used = {name for node in nodes for name in (*node.inputs, *node.outputs)}
        used.update(self._inputs, self._outputs)
        values = {name: value for name, value in self.values.items() if name in used}
        return Graph(nodes, values, self._inputs, self._outputs)

    def _drop_if_unused(self, node: Node) -> bool:
        if self._nodes.get(_key(node)) is not node:
            return False
        if any(self._users.get(name) or self.is_output(name) for name in node.outputs):
            return False
        self._remove(node)
        return True

    def _add(self, node: Node) -> None:
        key = _key(node)
        self._nodes[key] = node
        for name in filter(None, node.outputs):
            self._producers[name] = node
        for name in filter(None, node.inputs):
            self._users.setdefault(name, {})[key] = None

    def _remove(self, node: Node) -> None:
        key = _key(node)
        del self._nodes[key]
        for name in filter(None, node.outputs):
            del self._producers[name]
        for name in filter(None, node.inputs):
            self._users[name].pop(key, None)


def _key(node: Node) -> str:
    return next(filter(None, node.outputs))


def topological(nodes: Iterable[Node]) -> tuple[Node, ...]:
    """Order nodes so that each follows its producers, and stays near its place otherwise."""
    listed = list(nodes)
    producers = {name: index for index, node in enumerate(listed) for name in node.outputs if name}
    order: list[Node] = []
    done: set[int] = set()
    stack = list(reversed(range(len(listed))))
    while stack:
        index = stack[-1]
        needs = {producers[name] for name in listed[index].inputs if name in producers} - done
        if index in done or not needs:
            stack.pop()
            if index not in done:
                done.add(index)
                order.append(listed[index])
        else:
            stack.extend(sorted(needs, reverse=True))
    return tuple(order)
