"""Small ONNX models with norms in them, and the chains that belong to them, written down by hand.

Tests of the splicer must not depend on the search: here the builder knows where each chain is because it put
it there. `meaning` executes a chain in float64 from the definition of its operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onekernel import ops
from onekernel.fusion.chain import Chain, Operand, Result, Step

ROWS, HIDDEN, EPSILON = 3, 6, 1e-5


@dataclass
class Builder:
    """Collects nodes and chains; every value is float32 [3, 6]."""

    nodes: list[Any] = field(default_factory=list)
    weights: list[Any] = field(default_factory=list)
    chains: list[Chain] = field(default_factory=list)
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Append a node and name its output."""
        name = f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [f"{name}_out"], name=name, **attributes))
        return f"{name}_out"

    def weight(self, *shape: int, value: float | None = None) -> str:
        """Add an initializer, random unless a value is given."""
        data = self.random.standard_normal(shape) if value is None else np.full(shape, value)
        name = f"weight_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(data.astype(np.float32), name))
        return name

    def constant(self, *shape: int) -> str:
        """Add a Constant node."""
        data = self.random.standard_normal(shape).astype(np.float32)
        return self.node("Constant", value=numpy_helper.from_array(data))

    def norm(self, x: str, *, residual: str | None = None, in_nodes: bool = False) -> tuple[str, str | None]:
        """Append a decomposed LayerNorm; with a residual, its sum is a second result of the chain."""
        start = len(self.nodes)
        scale, shift = (self.constant(HIDDEN) if in_nodes else self.weight(HIDDEN) for _ in range(2))
        first = len(self.nodes)
        total = self.node("Add", x, residual) if residual else None
        centred = self.node("Sub", total or x, self.node("ReduceMean", total or x, axes=[-1]))
        variance = self.node("ReduceMean", self.node("Mul", centred, centred), axes=[-1])
        deviation = self.node("Sqrt", self.node("Add", variance, self.weight(1, value=EPSILON)))
        scaled = self.node("Mul", self.node("Div", centred, deviation), scale)
        output = self.node("Add", scaled, shift)
        source = tuple(node.name for node in self.nodes[first:])
        full = (x, residual) if residual else (x,)
        self.chains.append(
            Chain(
                name=f"norm_{start}",
                axis=1,
                rank=2,
                hidden=HIDDEN,
                epsilon=EPSILON,
                operands=(
                    *(Operand(name, "full", "float32") for name in full),
                    Operand(scale, "channel", "float32"),
                    Operand(shift, "channel", "float32"),
                ),
                results=(
                    *([Result(total, "sum", "float32")] if total else ()),
                    Result(output, "out", "float32"),
                ),
                prologue=(Step("add", full, "sum", source[:1]),) if residual else (),
                normal_input="sum" if residual else x,
                normal_output="normal",
                normal_source=source[-9:-2],
                epilogue=(
                    Step("mul", ("normal", scale), "scaled", source[-2:-1]),
                    Step("add", ("scaled", shift), "out", source[-1:]),
                ),
                source=source,
                sample_shape=(ROWS, HIDDEN),
            )
        )
        return output, total

    def branch(self, flag: str, yes: str, no: str) -> str:
        """Append an If whose bodies read `yes` and `no` from outside."""
        bodies = {
            key: helper.make_graph(
                [helper.make_node("Neg", [value], [f"{key}_{len(self.nodes)}"], name=f"{key}_{len(self.nodes)}")],
                key,
                [],
                [helper.make_tensor_value_info(f"{key}_{len(self.nodes)}", TensorProto.FLOAT, None)],
            )
            for key, value in (("then_branch", yes), ("else_branch", no))
        }
        return self.node("If", flag, **bodies)

    def model(
        self, inputs: Sequence[str], outputs: Sequence[str], *, flag: bool = False, more: Sequence[Any] = ()
    ) -> onnx.ModelProto:
        """Finish: float32 ["rows", 6] inputs, a boolean input named `flag` if asked for, and declared ones."""
        shape = ["rows", HIDDEN]
        values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in inputs]
        values += [helper.make_tensor_value_info("flag", TensorProto.BOOL, [])] if flag else []
        values += more
        results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, None]) for name in outputs]
        graph = helper.make_graph(self.nodes, "small", values, results, self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(model)
        return model


def two_norms() -> onnx.ModelProto:
    """Two chains of different kinds: a residual and weights in initializers; none, and weights in Constant nodes."""
    b = Builder()
    first, total = b.norm(b.node("MatMul", "x", b.weight(HIDDEN, HIDDEN)), residual="x")
    second, _ = b.norm(b.node("Relu", first), in_nodes=True)
    return b.model(["x"], [b.node("Add", second, total or first)])


def meaning(chain: Chain) -> Any:
    """Give the float64 meaning of a chain of [rows, hidden] operands as a callable over arrays."""

    def run(operands: Sequence[np.ndarray]) -> list[np.ndarray]:
        values: dict[Any, Any] = {
            operand.name: np.asarray(array, np.float64) for operand, array in zip(chain.operands, operands, strict=True)
        }
        for step in chain.prologue:
            _apply(step, values)
        values[chain.normal_output] = ops.standardize(
            values[chain.normal_input], axis=chain.axis, epsilon=chain.epsilon
        )
        for step in chain.epilogue:
            _apply(step, values)
        return [values[result.value].astype(result.dtype) for result in chain.results]

    return run


def _apply(step: Step, values: dict[Any, Any]) -> None:
    read = [value if isinstance(value, float) else values[value] for value in step.inputs]
    values[step.output] = ops.ELEMENTWISE[step.op].meaning(*read)
