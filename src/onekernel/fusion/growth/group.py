"""Knows which nodes around a normalisation may join its launch.

A chain is a set of nodes with one `standardize`: elementwise operators and transposes around it, such that
one kernel that reads contiguous operands and writes at most two contiguous results can do all of it, and such
that no path leaves the set and comes back. It refuses to know how a chain is written down.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from onekernel.fusion.chain import Kind
from onekernel.fusion.growth.layout import Frame, Layout, after_transpose, before_transpose, kind_of
from onekernel.graph.model import Graph, Node
from onekernel.ops import ELEMENTWISE

DTYPES = ("float32", "float16", "bfloat16")
MAX_RESULTS, MAX_FULL_OPERANDS, MAX_STEPS = 2, 6, 24


class Neighbourhood:
    """A graph with what growth asks of it: positions, reachability, and which nodes are already taken."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.outputs = frozenset(graph.outputs)
        self.position = {node.outputs: index for index, node in enumerate(graph.nodes)}
        self.by_source: dict[str, list[int]] = {}
        for index, node in enumerate(graph.nodes):
            for name in node.source:
                self.by_source.setdefault(name, []).append(index)
        self.taken: set[int] = set()
        # below[i] is a set of bits: the nodes that depend on node i, where a chain counts as one node.
        self.below = [0] * len(graph.nodes)
        for index in reversed(range(len(graph.nodes))):
            for reader in self.readers(index):
                self.below[index] |= self.below[reader] | 1 << reader

    def readers(self, index: int) -> list[int]:
        """Nodes that read an output of a node."""
        consumers = self.graph.consumers
        names = self.graph.nodes[index].outputs
        return [self.position[node.outputs] for name in names if name for node in consumers.get(name, ())]

    def writers(self, index: int) -> list[int]:
        """Nodes that write an input of a node."""
        producers = self.graph.producers
        names = self.graph.nodes[index].inputs
        return [self.position[producers[name].outputs] for name in names if name in producers]

    def take(self, members: Iterable[int]) -> None:
        """Make one launch of some nodes: what reaches one of them now reaches all that follows any."""
        bits = sum(1 << index for index in members)
        self.taken |= set(members)
        reached = bits
        for index in members:
            reached |= self.below[index]
        self.below = [own | reached if own & bits or bits >> index & 1 else own for index, own in enumerate(self.below)]


@dataclass(frozen=True)
class Group:
    """A set of nodes in a frame; `layouts` has every full value it touches, `kinds` every value it reads."""

    around: Neighbourhood
    frame: Frame
    members: frozenset[int]
    layouts: dict[str, Layout]
    kinds: dict[str, Kind]

    def nodes(self) -> list[Node]:
        """Members in topological order."""
        return [self.around.graph.nodes[index] for index in sorted(self.members)]

    def written(self) -> set[str]:
        """Values that members write."""
        return {name for node in self.nodes() for name in node.outputs}

    def visible(self) -> list[str]:
        """Values written inside and read outside, or given to the model's caller."""
        graph, inside = self.around.graph, self.members
        return [
            name
            for index in sorted(inside)
            for name in graph.nodes[index].outputs
            if name in self.around.outputs
            or any(self.around.position[user.outputs] not in inside for user in graph.consumers.get(name, ()))
        ]


def seed(around: Neighbourhood, index: int, frame: Frame, layout: Layout) -> Group:
    """The group of one `standardize`."""
    node = around.graph.nodes[index]
    x, normal = node.inputs[0], node.outputs[0]
    return Group(around, frame, frozenset([index]), {x: layout, normal: layout}, {x: "full"})


def grow(start: Group) -> Group | str:
    """The largest legal group found from a seed, or why there is none.

    Nodes join in graph order. An illegal group may become legal with what joins next (a GELU has open values
    half-way), so growth looks ahead; if that leads nowhere, its first node is barred and growth resumes.
    """
    best = start if not fault(start) else None
    barred: frozenset[int] = frozenset()
    while True:
        base = best or start
        steps = list(_ahead(base, barred))
        legal = next((group for group in steps if not fault(group)), None)
        if legal is not None:
            best = legal
        elif steps:
            barred |= steps[0].members - base.members
        else:
            return best or fault(start)


def _ahead(group: Group, barred: frozenset[int]) -> Iterator[Group]:
    while True:
        joined = (joined for index in _border(group) if index not in barred if (joined := join(group, index)))
        following = next(joined, None)
        if following is None:
            return
        group = following
        yield group


def _border(group: Group) -> list[int]:
    around = group.around
    near = {i for member in group.members for i in (*around.writers(member), *around.readers(member))}
    return sorted(near - group.members - around.taken)


def join(group: Group, index: int) -> Group | None:
    """The group with one more node, or None when that can never be one launch."""
    node = group.around.graph.nodes[index]
    layouts = _layouts_with(group, node)
    if layouts is None or _comes_back(group, index):
        return None
    kinds = _kinds_with(group, node, layouts[node.outputs[0]])
    if kinds is None:
        return None
    full = {name: layouts[node.outputs[0]] for name in node.inputs if kinds.get(name) == "full"}
    if node.op != "transpose":
        if any(layouts.get(name, layout) != layout for name, layout in full.items()):
            return None
        layouts |= full
    members = group.members | {index}
    steps = sum(group.around.graph.nodes[i].op in ELEMENTWISE for i in members)
    return None if steps > MAX_STEPS else replace(group, members=members, layouts=layouts, kinds=kinds)


def _layouts_with(group: Group, node: Node) -> dict[str, Layout] | None:
    """Layouts with those of a new node's output (and input, of a transpose); None when they contradict."""
    output = node.outputs[0]
    if node.op == "transpose":
        perm, source = node.attributes["perm"], node.inputs[0]
        if output in group.layouts:
            new = {source: before_transpose(group.layouts[output], perm), output: group.layouts[output]}
        else:
            new = {source: group.layouts[source], output: after_transpose(group.layouts[source], perm)}
    elif node.op in ELEMENTWISE and len(node.outputs) == 1:
        known = [group.layouts[name] for name in (output, *node.inputs) if name in group.layouts]
        new = {output: known[0]} if known else {}
    else:
        return None
    values = group.around.graph.values
    fits = output in new and values[output].shape == group.frame.shape_in(new[output])
    agrees = all(group.layouts.get(name, layout) == layout for name, layout in new.items())
    return {**group.layouts, **new} if fits and agrees else None


def _kinds_with(group: Group, node: Node, layout: Layout) -> dict[str, Kind] | None:
    """Kinds with those of a new node's inputs; None when an input has none, or two."""
    kinds = dict(group.kinds)
    values = group.around.graph.values
    for name in node.inputs:
        value = values.get(name)
        if value is None or value.dtype not in DTYPES:
            return None
        kind = "full" if node.op == "transpose" else kind_of(value, group.frame, layout)
        if kind is None or kinds.setdefault(name, kind) != kind:
            return None
    return kinds if values[node.outputs[0]].dtype in DTYPES else None


def _comes_back(group: Group, index: int) -> bool:
    """Whether a path would leave the group with the new node and come back into it."""
    around = group.around
    members = group.members | {index}
    bits = sum(1 << member for member in members)
    outside = {reader for member in members for reader in around.readers(member)} - members
    return any(around.below[reader] & bits for reader in outside)


def fault(group: Group) -> str:
    """Why a group cannot be one launch as it stands; "" when it can."""
    visible, frame, written = group.visible(), group.frame, group.written()
    full = {name for name, kind in group.kinds.items() if kind == "full"} - written
    if not visible:
        return "nobody reads its result"
    if len(visible) > MAX_RESULTS:
        return f"{len(visible)} of its values are used elsewhere"
    if any(group.layouts[name] != frame.identity for name in (*visible, *full)):
        return "it reads and writes different memory orders"
    if not full:
        return "it reads no whole tensor"
    if len(full) > MAX_FULL_OPERANDS:
        return f"it reads {len(full)} tensors"
    sources = {name for node in group.nodes() for name in node.source}
    if any(not group.members.issuperset(group.around.by_source[name]) for name in sources):
        return "its scale or shift does not fit"
    return ""
