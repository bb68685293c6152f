"""Knows how to write a group of nodes down as a Chain. It refuses to know why they are one group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from onekernel.fusion.chain import Chain, Operand, Result, Step
from onekernel.fusion.growth.group import Group
from onekernel.fusion.naming import slug
from onekernel.graph.model import Node


def emit(group: Group) -> Chain:
    """Write a legal group down as a chain."""
    graph, frame = group.around.graph, group.frame
    nodes = group.nodes()
    norm = next(node for node in nodes if node.op == "standardize")
    alias = _aliases(nodes)
    first = _above(nodes, norm.inputs[0])
    before = [_step(group, node, alias) for node in nodes if node.op not in _SILENT and _key(node) in first]
    after = [_step(group, node, alias) for node in nodes if node.op not in _SILENT and _key(node) not in first]
    normal_input = alias.get(norm.inputs[0], norm.inputs[0])
    values = graph.values
    chain = Chain(
        name="",
        axis=frame.axis,
        rank=len(frame.shape),
        hidden=frame.shape[frame.axis],
        epsilon=float(norm.attributes["epsilon"]),
        operands=_operands(group, before, normal_input, after),
        results=tuple(Result(name, alias.get(name, name), values[name].dtype) for name in group.visible()),
        prologue=tuple(before),
        normal_input=normal_input,
        normal_output=norm.outputs[0],
        normal_source=norm.source,
        epilogue=tuple(after),
        source=tuple(dict.fromkeys(name for node in nodes for name in node.source)),
        sample_shape=frame.shape,
    )
    return replace(chain, name=slug(chain))


_SILENT = ("transpose", "standardize")


def _key(node: Node) -> str:
    return node.outputs[0]


def _aliases(nodes: Sequence[Node]) -> dict[str, str]:
    """What the output of each transpose is the same memory as."""
    alias: dict[str, str] = {}
    for node in nodes:
        if node.op == "transpose":
            alias[node.outputs[0]] = alias.get(node.inputs[0], node.inputs[0])
    return alias


def _above(nodes: Sequence[Node], name: str) -> set[str]:
    """Values that `name` is computed from, itself included."""
    wanted = {name}
    for node in reversed(nodes):
        if _key(node) in wanted:
            wanted.update(node.inputs)
    return wanted


def _step(group: Group, node: Node, alias: dict[str, str]) -> Step:
    """One elementwise node; constant scalars become numbers."""
    values = group.around.graph.values
    inputs: list[str | float] = []
    for name in node.inputs:
        constant = values[name].constant
        literal = constant is not None and group.kinds.get(name) == "scalar"
        inputs.append(float(constant.reshape(())) if literal and constant is not None else alias.get(name, name))
    return Step(node.op, tuple(inputs), node.outputs[0], node.source)


def _operands(group: Group, before: Sequence[Step], normal_input: str, after: Sequence[Step]) -> tuple[Operand, ...]:
    """What the chain reads and does not write, in the order of reading."""
    values = group.around.graph.values
    made = {step.output for step in (*before, *after)} | group.written()
    read = (*_reads(before), normal_input, *_reads(after))
    names = dict.fromkeys(name for name in read if name not in made)
    return tuple(Operand(name, group.kinds[name], values[name].dtype, values[name].shape) for name in names)


def _reads(steps: Sequence[Step]) -> list[str]:
    return [item for step in steps for item in step.inputs if isinstance(item, str)]
