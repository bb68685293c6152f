"""Where to cut a model: which nodes run together in one session, and which chains between two sessions.

Every node gets a stage, the largest stage of what it reads; a chain's results are one stage later than what
the chain reads. So all nodes of a stage form one segment, and all chains of a stage run after it. What can be
computed from constants alone has no stage: it is copied into each segment that reads it, so that a session
still sees weights as constants. This module reads names only; it builds no model and runs nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import Any

from onekernel.errors import InvalidInput
from onekernel.fusion.chain import Chain
from onekernel.graph.onnx_model import captured

# An operator that draws numbers must run once, however many segments read what it drew.
RANDOM = {
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "Multinomial",
    "Bernoulli",
}


@dataclass(frozen=True)
class Segment:
    """Nodes (indices into the model's list, in order) that run in one session."""

    stage: int
    nodes: tuple[int, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Launch:
    """One chain (index into the list of chains) with the values it reads and writes."""

    chain: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class _Item:
    """A node that stays (`index` >= 0) or a chain (~index), as the cut sees it."""

    index: int
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    copyable: bool = False


def cut(model: Any, chains: Sequence[Chain], constants: Collection[str] = ()) -> tuple[Segment | Launch, ...]:
    """Cut an ONNX model with named nodes at the chains; the steps are in the order of their run.

    `constants` are operands whose content the caller already has. Raises InvalidInput when a chain names a
    node or value that the model lacks, or when a path leaves a chain and comes back to it.
    """
    outputs = [item.name for item in model.graph.output]
    items = _live(_ordered(_items(model, chains), chains), outputs)
    free = {item.name for item in model.graph.initializer} | set(constants)
    stages = _stages(items, free, {item.name for item in model.graph.input})
    wanted = [*outputs, *(name for item in items if item.index < 0 for name in item.reads)]
    cutter = _Cutter(items, stages, free, dict.fromkeys(name for name in wanted if name not in constants))
    steps: list[Segment | Launch] = []
    for stage in range(1 + max((stage for stage in stages.values() if stage is not None), default=0)):
        segment = cutter.segment(stage)
        steps += [segment] if segment.outputs else []
        steps += [Launch(~item.index, item.reads, item.writes) for item in cutter.launches(stage)]
    return tuple(steps)


def unfused(model: Any, chain: Chain) -> Segment | None:
    """Gather the nodes that compute a chain's results from its operands: what the fused kernel stands for.

    None when they also depend on an input of the model that is no operand.
    """
    writers = {name: index for index, node in enumerate(model.graph.node) for name in node.output}
    operands = tuple(operand.name for operand in chain.operands)
    results = tuple(result.name for result in chain.results)
    given = {*operands, *(item.name for item in model.graph.initializer)}
    nodes, pending = set[int](), list(results)
    while pending:
        name = pending.pop()
        if name in given or writers.get(name) in nodes:
            continue
        if name not in writers:
            return None
        nodes.add(writers[name])
        pending += reads(model.graph.node[writers[name]])
    return Segment(0, tuple(sorted(nodes)), tuple(dict.fromkeys(operands)), results)


def reads(node: Any) -> tuple[str, ...]:
    """List what a node reads: its inputs, and the names that its bodies (If, Loop, Scan) capture."""
    return tuple(dict.fromkeys((*(name for name in node.input if name), *captured(node))))


def _items(model: Any, chains: Sequence[Chain]) -> list[_Item]:
    nodes = {node.name: index for index, node in enumerate(model.graph.node)}
    replaced = {name for chain in chains for name in chain.source}
    if missing := sorted(replaced - set(nodes)):
        raise InvalidInput(
            expected="chains of this model",
            got=f"an unknown node {missing[0]!r}",
            todo="search this model again",
        )
    kept = [
        _Item(index, reads(node), tuple(name for name in node.output if name), _copyable(node))
        for index, node in enumerate(model.graph.node)
        if node.name not in replaced
    ]
    fused = [
        _Item(~index, tuple(o.name for o in chain.operands), tuple(r.name for r in chain.results))
        for index, chain in enumerate(chains)
    ]
    return kept + fused


def _copyable(node: Any) -> bool:
    has_body = any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute)
    return not has_body and node.op_type not in RANDOM


def _ordered(items: Sequence[_Item], chains: Sequence[Chain]) -> list[_Item]:
    """Sort items so that each comes after what it reads."""
    writer = {name: item for item in items for name in item.writes}
    sorter: TopologicalSorter[_Item] = TopologicalSorter()
    for item in items:
        sorter.add(item, *(writer[name] for name in item.reads if name in writer))
    try:
        return list(sorter.static_order())
    except CycleError as error:
        inside = next(chains[~item.index].name for item in error.args[1] if item.index < 0)
        raise InvalidInput(
            expected="chains that no path leaves and enters again",
            got=f"such a path around {inside!r}",
            todo="leave this chain out and report it",
        ) from error


def _live(items: Sequence[_Item], outputs: Iterable[str]) -> list[_Item]:
    """Drop what no output needs."""
    wanted, live = set(outputs), []
    for item in reversed(items):
        if wanted.intersection(item.writes):
            wanted.update(item.reads)
            live.append(item)
    return live[::-1]


def _stages(items: Sequence[_Item], free: set[str], inputs: set[str]) -> dict[int, int | None]:
    """Give each item its stage; None where only constants are read and the node may be copied."""
    values: dict[str, int | None] = {**dict.fromkeys(inputs, 0), **dict.fromkeys(free)}
    stages: dict[int, int | None] = {}
    for item in items:
        if missing := [name for name in item.reads if name not in values]:
            todo = "search this model again"
            raise InvalidInput(expected="values of this model", got=f"an unknown {missing[0]!r}", todo=todo)
        known = [stage for name in item.reads if (stage := values[name]) is not None]
        stage = max(known, default=None if item.copyable else 0)
        stages[item.index] = stage
        after = stage + 1 if stage is not None and item.index < 0 else stage
        values |= dict.fromkeys(item.writes, after)
    return stages


@dataclass(frozen=True)
class _Cutter:
    """Items with their stages, and `wanted`: the values that chains or the caller read."""

    items: Sequence[_Item]
    stages: Mapping[int, int | None]
    free: set[str]
    wanted: Mapping[str, None]

    @cached_property
    def copies(self) -> dict[str, _Item]:
        """The writers of values that depend on constants alone."""
        return {name: item for item in self.items if self.stages[item.index] is None for name in item.writes}

    @cached_property
    def crossing(self) -> set[str]:
        """What leaves the segment that computes it."""
        homes = {name: self.stages[item.index] for item in self.items for name in item.writes if item.index >= 0}
        moved = {
            name for item in self.items for name in item.reads if homes.get(name) not in (None, self.stages[item.index])
        }
        return moved | set(self.wanted)

    def launches(self, stage: int) -> list[_Item]:
        """List the chains that run after this stage's segment."""
        return [item for item in self.items if item.index < 0 and self.stages[item.index] == stage]

    def segment(self, stage: int) -> Segment:
        """Gather a stage's nodes, copies of the constant nodes that they read, and what goes in and out."""
        mine = [item for item in self.items if item.index >= 0 and self.stages[item.index] == stage]
        exports = [name for name in self.wanted if stage == 0 and (name in self.copies or name in self.free)]
        outputs = [name for item in mine for name in item.writes if name in self.crossing] + exports
        nodes = {item.index: item for item in mine}
        pending = [*exports, *(name for item in mine for name in item.reads)]
        while pending:
            copy = self.copies.get(pending.pop())
            if copy and copy.index not in nodes:
                nodes[copy.index] = copy
                pending += copy.reads
        inside = {name for item in nodes.values() for name in item.writes} | self.free
        inputs = [name for item in mine for name in item.reads if name not in inside]
        return Segment(stage, tuple(sorted(nodes)), tuple(dict.fromkeys(inputs)), tuple(outputs))
