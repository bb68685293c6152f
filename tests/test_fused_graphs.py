"""Random graphs: running the chains in place of their nodes gives the outputs that the graph gives.

The graphs are small dataflows of everything that a chain may and may not hold: residuals, masks, transposes,
scalars, detours through an operator that never fuses, values used many times.
"""

from __future__ import annotations

from graphlib import TopologicalSorter

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from onekernel.fusion.chain import Chain
from onekernel.fusion.growth.group import MAX_FULL_OPERANDS, MAX_RESULTS, MAX_STEPS
from onekernel.fusion.oracle import run_chain
from onekernel.fusion.search import find_chains
from onekernel.graph import interpreter
from onekernel.graph.model import Graph, Node, Value
from onnx_models import Array, relative_error

SHAPE = {"rows": (2, 3, 4), "columns": (2, 4, 3)}
TURN = {"rows": "columns", "columns": "rows"}
UNARY = ("tanh", "sigmoid", "neg", "square", "relu")


class Random:
    """Draws a graph; `pools` holds the full values by shape, each usable from then on."""

    def __init__(self, data: st.DataObject) -> None:
        self.data, self.nodes, self.values = data, list[Node](), dict[str, Value]()
        self.pools: dict[str, list[str]] = {"rows": [], "columns": []}
        for order, shape in SHAPE.items():
            self.pools[order] += [self.value(f"{order}_{label}", shape) for label in ("a", "b")]
            self.value(f"{order}_mask", tuple(1 if size == 4 else size for size in shape))
            vector = np.linspace(0.5, 1.5, 4).reshape([4 if size == 4 else 1 for size in shape])
            self.value(f"{order}_gamma", vector.shape, vector)
        self.value("number", (), np.asarray(0.5))
        self.value("scalar", (1,))
        self.value("three", (), np.asarray(3.0))
        self.inputs = tuple(name for name, value in self.values.items() if value.constant is None)

    def value(self, name: str, shape: tuple[int, ...], constant: Array | None = None) -> str:
        self.values[name] = Value(name, "float32", shape, constant)
        return name

    def pick(self, items: list[str] | tuple[str, ...]) -> str:
        """Choose one, the latest ones more often: long paths find more faults than wide ones."""
        near = items[-4:] if self.data.draw(st.booleans()) else items
        return self.data.draw(st.sampled_from(near))

    def add(self, op: str, inputs: tuple[str, ...], order: str, **attributes: object) -> None:
        name = f"v{len(self.nodes)}"
        self.nodes.append(Node(op, inputs, (name,), attributes, (f"n_{name}",)))
        self.pools[order].append(self.value(name, SHAPE[order]))

    def step(self) -> None:
        """Append one node."""
        order = self.data.draw(st.sampled_from(("rows", "columns")))
        x = self.pick(self.pools[order])
        match self.data.draw(st.sampled_from(("unary", "binary", "with", "turn", "norm", "slow"))):
            case "unary":
                self.add(self.pick(UNARY), (x,), order)
            case "binary":
                self.add(self.pick(("add", "mul")), (x, self.pick(self.pools[order])), order)
            case "with":
                other = self.pick((f"{order}_mask", f"{order}_gamma", "number", "scalar"))
                self.add(self.pick(("add", "mul")), (x, other), order)
            case "turn":
                self.add("transpose", (x,), TURN[order], perm=(0, 2, 1))
            case "norm":
                axis = SHAPE[order].index(4)
                self.add("standardize", (x,), order, axis=axis, epsilon=1e-2)
            case _:
                self.add("pow", (x, "three"), order)

    def graph(self) -> Graph:
        for _ in range(self.data.draw(st.integers(1, 24))):
            self.step()
        names = [node.outputs[0] for node in self.nodes]
        read = {name for node in self.nodes for name in node.inputs}
        extra = self.data.draw(st.lists(st.sampled_from(names), max_size=2))
        outputs = tuple(dict.fromkeys([*(name for name in names if name not in read), *extra]))
        return Graph(tuple(self.nodes), self.values, self.inputs, outputs)


def run_with_chains(graph: Graph, chains: tuple[Chain, ...], values: dict[str, Array]) -> dict[str, Array]:
    """Run each chain as one launch; raises CycleError when no order of launches exists."""
    owner = {source: index for index, chain in enumerate(chains) for source in chain.source}
    group = {node.outputs[0]: owner.get(node.source[0], node.outputs[0]) for node in graph.nodes}
    needs: dict[int | str, set[int | str]] = {name: set() for name in group.values()}
    for node in graph.nodes:
        me = group[node.outputs[0]]
        needs[me] |= {group[name] for name in node.inputs if name in group} - {me}
    for item in TopologicalSorter(needs).static_order():
        if isinstance(item, int):
            chain = chains[item]
            got = run_chain(chain, [values[operand.name] for operand in chain.operands])
            values |= {result.name: array for result, array in zip(chain.results, got, strict=True)}
        else:
            values = interpreter.run_nodes([graph.producers[item]], values)
    return values


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_fused_graph_computes_the_same(data: st.DataObject) -> None:
    graph = Random(data).graph()
    random = np.random.default_rng(0)
    inputs = {name: random.uniform(-1, 1, graph.values[name].shape) for name in graph.inputs}
    constants = {name: value.constant for name, value in graph.values.items() if value.constant is not None}
    search = find_chains(graph)
    assert search.left == ()
    assert len(search.chains) == [node.op for node in graph.nodes].count("standardize")
    with np.errstate(all="ignore"):
        expected = interpreter.run_nodes(graph.nodes, {**constants, **inputs})
    # Towers of products leave the range in which two orders of summation agree.
    assume(all(np.abs(array).max() < 1e4 for array in expected.values()))
    got = run_with_chains(graph, search.chains, {**constants, **inputs})
    for name in graph.outputs:
        assert relative_error(got[name], expected[name]) < 1e-6


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_chain_keeps_the_limits(data: st.DataObject) -> None:
    graph = Random(data).graph()
    chains = find_chains(graph).chains
    sources = [source for chain in chains for source in chain.source]
    assert len(sources) == len(set(sources))
    for chain in chains:
        assert 1 <= len(chain.results) <= MAX_RESULTS
        assert sum(operand.kind == "full" for operand in chain.operands) <= MAX_FULL_OPERANDS
        assert len(chain.prologue) + len(chain.epilogue) <= MAX_STEPS
        for result in chain.results:
            assert graph.values[result.name].shape == chain.sample_shape
        for operand in chain.operands:
            if operand.kind == "full":
                assert graph.values[operand.name].shape == chain.sample_shape
