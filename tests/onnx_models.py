"""What tests of graph and fusion share: small ONNX models, ONNX Runtime as oracle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import ModelProto, NodeProto, helper, numpy_helper

from onekernel.fusion.chain import Chain
from onekernel.fusion.oracle import run_chain

Array = npt.NDArray[Any]


def model(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, Array],
    outputs: Sequence[str],
    constants: Mapping[str, Array] | None = None,
    opset: int = 17,
) -> ModelProto:
    """A model whose inputs have the rank and dtype of `inputs`, with free sizes."""
    graph = helper.make_graph(
        list(nodes),
        "test",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), [f"{name}_{i}" for i in range(array.ndim)]
            )
            for name, array in inputs.items()
        ],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()],
    )
    domains = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=8)


def node(op: str, inputs: Sequence[str], output: str, **attributes: Any) -> NodeProto:
    """A node named after its output."""
    return helper.make_node(op, list(inputs), [output], name=f"n_{output}", **attributes)


def run_onnx(proto: ModelProto, inputs: Mapping[str, Array], names: Sequence[str]) -> dict[str, Array]:
    """Values of a model by name, intermediates included, from ONNX Runtime without optimisations."""
    probe = ModelProto()
    probe.CopyFrom(proto)
    del probe.graph.output[:]
    given = {item.name: numpy_helper.to_array(item) for item in proto.graph.initializer} | dict(inputs)
    asked = [name for name in dict.fromkeys(names) if name not in given]
    probe.graph.output.extend(onnx.ValueInfoProto(name=name) for name in asked)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = ort.InferenceSession(probe.SerializeToString(), options, providers=["CPUExecutionProvider"])
    got = session.run(asked, dict(inputs)) if asked else []
    return {**given, **dict(zip(asked, got, strict=True))}


def relative_error(got: Array, reference: Array) -> float:
    """||got - reference|| / ||reference|| in float64."""
    got, reference = np.asarray(got, np.float64), np.asarray(reference, np.float64)
    assert got.shape == reference.shape
    return float(np.linalg.norm(got - reference) / max(np.linalg.norm(reference), 1e-30))


def chain_errors(proto: ModelProto, inputs: Mapping[str, Array], chains: Sequence[Chain]) -> list[float]:
    """For each result of each chain: the oracle on ONNX Runtime's operands against ONNX Runtime's result."""
    names = [item.name for chain in chains for item in (*chain.operands, *chain.results)]
    values = run_onnx(proto, inputs, names)
    return [
        relative_error(got, values[result.name])
        for chain in chains
        for result, got in zip(
            chain.results, run_chain(chain, [values[item.name] for item in chain.operands]), strict=True
        )
    ]
