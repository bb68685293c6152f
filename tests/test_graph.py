"""The ONNX reader: every operator of the table against ONNX Runtime, what is refused, and what is kept."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from onekernel.errors import InvalidInput
from onekernel.graph import interpreter
from onekernel.graph.draft import Draft, topological
from onekernel.graph.model import Graph, Node, Value
from onekernel.graph.onnx_ops import MAPPERS
from onekernel.graph.onnx_reader import load, name_nodes, read
from onnx_models import Array, model, node, relative_error, run_onnx
from spellings import Spelling

X = np.random.default_rng(1).uniform(0.1, 2.0, (2, 3, 4)).astype(np.float32)
Y = np.random.default_rng(2).uniform(0.1, 2.0, (2, 3, 4)).astype(np.float32)
VECTOR = np.linspace(-1, 1, 4, dtype=np.float32)
AXES = np.asarray([-1], np.int64)

# operator -> (constant inputs after x, attributes, opset)
UNARY = (
    "Neg", "Abs", "Sqrt", "Reciprocal", "Exp", "Log", "Sin", "Cos", "Tanh", "Erf", "Sigmoid", "Relu", "Softplus",
    "Identity", "Dropout", "LeakyRelu", "Gelu",
)  # fmt: skip
Case = tuple[str, tuple[Array, ...], dict[str, Any], int]
CASES: list[Case] = [
    *((op, (), {}, 20) for op in UNARY),
    *((op, (Y,), {}, 17) for op in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum")),
    ("Pow", (np.float32(1.5),), {}, 17),
    ("Pow", (np.int64(3),), {}, 17),
    ("PRelu", (VECTOR,), {}, 17),
    ("LeakyRelu", (), {"alpha": 0.3}, 11),
    ("Clip", (np.float32(0.5), np.float32(1.0)), {}, 17),
    ("Clip", (np.float32(0.5),), {}, 11),
    ("Clip", (), {}, 12),
    ("Cast", (), {"to": TensorProto.DOUBLE}, 13),
    ("Transpose", (), {}, 17),
    ("Transpose", (), {"perm": [1, 2, 0]}, 17),
    ("ReduceMean", (), {"axes": [-1]}, 11),
    ("ReduceMean", (), {"axes": [0, 2], "keepdims": 0}, 17),
    ("ReduceMean", (), {}, 17),
    ("ReduceMean", (AXES,), {}, 18),
    ("ReduceMean", (), {}, 18),
    ("ReduceSum", (), {"axes": [1]}, 12),
    ("ReduceSum", (AXES,), {"keepdims": 0}, 13),
    ("Gelu", (), {"approximate": "tanh"}, 20),
    ("Gelu", (), {"domain": "com.microsoft"}, 17),
    ("FastGelu", (), {"domain": "com.microsoft"}, 17),
    ("FastGelu", (VECTOR,), {"domain": "com.microsoft"}, 17),
    ("BiasGelu", (VECTOR,), {"domain": "com.microsoft"}, 17),
    ("QuickGelu", (), {"domain": "com.microsoft", "alpha": 1.5}, 17),
    ("LayerNormalization", (VECTOR,), {"epsilon": 0.01}, 17),
    ("LayerNormalization", (VECTOR, VECTOR), {"axis": 2}, 17),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[3]}")
def test_every_operator_means_what_onnx_runtime_computes(case: Case) -> None:
    op, constants, attributes, opset = case
    names = {f"c{index}": np.asarray(array) for index, array in enumerate(constants)}
    proto = model([node(op, ["x", *names], "y", **attributes)], {"x": X}, ["y"], names, opset)
    graph = read(proto, {"x": X})
    assert op not in {item.op for item in graph.nodes}, "it stayed opaque"
    expected = run_onnx(proto, {"x": X}, ["y"])["y"]
    assert graph.values["y"].shape == expected.shape
    assert graph.values["y"].dtype == str(expected.dtype)
    assert relative_error(interpreter.run(graph, {"x": X})["y"], expected) < 2e-6
    assert {item.source for item in graph.nodes} == {("n_y",)}


def test_every_row_of_the_table_is_tested() -> None:
    assert set(MAPPERS) == {case[0] for case in CASES}


@pytest.mark.parametrize(
    ("op", "inputs", "attributes"),
    [
        ("Dropout", ("x", "", "yes"), {}),
        ("ReduceSum", ("x",), {"noop_with_empty_axes": 1}),
        ("Max", ("x", "x", "x"), {}),
        ("LayerNormalization", ("x", "scale"), {"axis": 1}),
        ("Add", ("whole", "whole"), {}),
        ("Cast", ("x",), {"to": TensorProto.INT32}),
        ("Softmax", ("x",), {}),
    ],
)
def test_what_the_table_does_not_cover_stays_opaque(
    op: str, inputs: tuple[str, ...], attributes: Mapping[str, Any]
) -> None:
    constants = {"yes": np.asarray(True), "scale": np.ones((3, 4), np.float32)}
    given = {"x": X, "whole": np.ones(3, np.int64)}
    graph = read(model([node(op, inputs, "y", **attributes)], given, ["y"], constants), given)
    assert [item.op for item in graph.nodes] == [op]


def test_shapes_may_depend_on_data() -> None:
    proto = model([node("NonZero", ["x"], "found"), node("Transpose", ["found"], "y")], {"x": X}, ["y"])
    sparse = np.where(X > 1.5, X, 0).astype(np.float32)
    graph = read(proto, {"x": sparse})
    assert graph.values["y"] == Value("y", "int64", (int((sparse != 0).sum()), 3))


def test_constants_in_nodes_and_what_is_computed_from_them_are_folded() -> None:
    s = Spelling((2, 4))
    number = s.op("Constant", value_float=2.0)
    wide = s.op("Cast", s.op("Constant", value=numpy_helper.from_array(np.asarray([3], np.int64))), to=1)
    product = s.op("Mul", "x", s.op("Unsqueeze", s.op("Mul", number, wide), s.array(np.asarray([0]))))
    proto, inputs = s.build(product)
    graph = read(proto, inputs)
    assert [item.op for item in graph.nodes] == ["mul", "transpose"]
    (folded,) = (graph.values[name] for name in graph.nodes[0].inputs[1:])
    assert folded.constant is not None
    assert folded.constant.tolist() == [[6.0]]


def branch(name: str, value: str) -> Any:
    """A graph without inputs that reads a value of the graph around it."""
    body = [helper.make_node("Neg", [value], [f"{name}_out"])]
    return helper.make_graph(body, name, [], [helper.make_tensor_value_info(f"{name}_out", 1, [2, 3, 4])])


def test_names_that_a_branch_reads_are_inputs_of_its_node() -> None:
    s = Spelling((2, 3, 4))
    one, other = s.op("Tanh", "x"), s.op("Exp", "x")
    positive = s.op("Greater", s.op("ReduceMax", "x", keepdims=0), s.number(0.0))
    chosen = s.op("If", positive, then_branch=branch("yes", one), else_branch=branch("no", other))
    proto, inputs = s.build(chosen)
    graph = read(proto, inputs)
    assert set(graph.producers[chosen].inputs) == {positive, one, other}
    assert graph.consumers[one] == (graph.producers[chosen],)


def test_functions_are_inlined() -> None:
    body = [helper.make_node("Tanh", ["a"], ["t"]), helper.make_node("Neg", ["t"], ["b"])]
    function = helper.make_function("own", "Twice", ["a"], ["b"], body, [helper.make_opsetid("", 17)])
    proto = model([node("Twice", ["x"], "y", domain="own")], {"x": X}, ["y"])
    proto.functions.append(function)
    proto.opset_import.append(helper.make_opsetid("own", 1))
    graph = read(proto, {"x": X})
    assert [item.op for item in graph.nodes] == ["tanh", "neg"]


def test_weights_may_be_in_another_file(tmp_path: Path) -> None:
    weight = np.arange(12, dtype=np.float32).reshape(3, 4)
    proto = model([node("Add", ["x", "w"], "y")], {"x": X}, ["y"], {"w": weight})
    path = tmp_path / "model.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    graph = read(path, {"x": X})
    np.testing.assert_array_equal(interpreter.run(graph, {"x": X})["y"], X.astype(np.float64) + weight)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(InvalidInput, match="external data"):
        read(path, {"x": X})


def test_nodes_get_stable_unique_names() -> None:
    proto = model([], {"x": X}, ["y"])
    for name, (inputs, output) in zip(
        ("", "same", "same", ""), (("x", "a"), ("a", "b"), ("b", "c"), ("c", "y")), strict=True
    ):
        proto.graph.node.append(helper.make_node("Neg", [inputs], [output], name=name))
    names = [item.name for item in name_nodes(proto).graph.node]
    assert names[1] == "same"
    assert len(set(names)) == 4
    assert [item.name for item in name_nodes(proto).graph.node] == names
    assert [item.source for item in read(proto, {"x": X}).nodes] == [(name,) for name in names]


# --- what is refused


def one_line(error: InvalidInput) -> str:
    assert "\n" not in str(error)
    return str(error)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "no such file"),
        (b"", "an empty file"),
        (b"hello, this is text\n", "another format"),
        (b"import onnx\n" * 50, "another format"),
        (bytes(range(256)), "another format"),
    ],
)
def test_what_is_no_onnx_file(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "model.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidInput) as caught:
        load(path)
    assert words in one_line(caught.value)
    assert str(path) in str(caught.value)


def test_a_folder_is_no_onnx_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="a folder"):
        load(tmp_path)


@pytest.mark.parametrize("opset", [1, 10, 21, 23])
def test_opsets_outside_the_range(opset: int) -> None:
    with pytest.raises(InvalidInput, match=rf"opset 11 to 20, got opset {opset}"):
        load(model([node("Neg", ["x"], "y")], {"x": X}, ["y"], opset=opset))


@pytest.mark.parametrize(
    ("op", "domain", "opset", "words"),
    [
        ("Frobnicate", "", 17, "Frobnicate (node 'n_y')"),
        ("Gelu", "", 19, "Gelu (node 'n_y')"),
        ("Neg", "my.own", 17, "my.own.Neg (node 'n_y')"),
    ],
)
def test_operators_that_nobody_defines(op: str, domain: str, opset: int, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        load(model([node(op, ["x"], "y", domain=domain)], {"x": X}, ["y"], opset=opset))
    assert words in one_line(caught.value)


def test_an_unknown_operator_inside_a_branch() -> None:
    s = Spelling((2, 3, 4))
    bad = branch("no", "x")
    bad.node[0].op_type = "Frobnicate"
    proto, _ = s.build(s.op("If", s.array(np.asarray(True)), then_branch=branch("yes", "x"), else_branch=bad))
    with pytest.raises(InvalidInput, match="Frobnicate"):
        load(proto)


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({}, "no 'x'"),
        ({"x": X, "z": X}, "an unknown 'z'"),
        ({"x": X.astype(np.float64)}, "'x' as float64[2, 3, 4]"),
        ({"x": X[0]}, "'x' as float32[3, 4]"),
    ],
)
def test_inputs_that_do_not_fit(inputs: dict[str, Array], words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read(model([node("Neg", ["x"], "y")], {"x": X}, ["y"]), inputs)
    message = one_line(caught.value)
    assert words in message
    assert "x: float32[x_0,x_1,x_2]" in message


def test_a_fixed_size_that_does_not_fit() -> None:
    proto = model([node("Neg", ["x"], "y")], {"x": X}, ["y"])
    proto.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 5
    with pytest.raises(InvalidInput, match=r"'x' as float32\[2, 3, 4\]"):
        read(proto, {"x": X})


def test_a_negative_size_is_free() -> None:
    proto = model([node("Neg", ["x"], "y")], {"x": X}, ["y"])
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    assert read(proto, {"x": X}).values["y"].shape == X.shape


def test_a_model_that_cannot_run() -> None:
    proto = model([node("MatMul", ["x", "x"], "y")], {"x": X}, ["y"])
    with pytest.raises(InvalidInput) as caught:
        read(proto, {"x": X})
    assert "a model that ONNX Runtime can run" in one_line(caught.value)


def test_the_interpreter_refuses_opaque_operators() -> None:
    graph = read(model([node("Softmax", ["x"], "y")], {"x": X}, ["y"]), {"x": X})
    with pytest.raises(InvalidInput, match="Softmax"):
        interpreter.run(graph, {"x": X})


# --- the draft


def chain_of(length: int) -> list[Node]:
    return [Node("neg", (f"v{i}",), (f"v{i + 1}",), {}, (f"n{i}",)) for i in range(length)]


@given(st.integers(0, 40), st.randoms(use_true_random=False))
def test_any_order_becomes_topological(length: int, shuffler: random.Random) -> None:
    nodes = chain_of(length)
    shuffled = nodes.copy()
    shuffler.shuffle(shuffled)
    assert topological(shuffled) == tuple(nodes)
    assert topological(nodes) == tuple(nodes)


def drafted(length: int, *outputs: str) -> Draft:
    values = {f"v{i}": Value(f"v{i}", "float32", (2,)) for i in range(length + 1)}
    return Draft(Graph(tuple(chain_of(length)), values, ("v0",), outputs))


def test_a_replacement_stands_for_what_it_absorbed() -> None:
    draft = drafted(3, "v3")
    first, second = draft.producer("v1"), draft.producer("v2")
    assert first is not None
    assert second is not None
    draft.replace(second, [Node("abs", ("v0",), ("v2",))], [first])
    graph = draft.freeze()
    assert [(item.op, item.source) for item in graph.nodes] == [("abs", ("n0", "n1")), ("neg", ("n2",))]
    assert set(graph.values) == {"v0", "v2", "v3"}


def test_what_is_still_read_is_not_absorbed() -> None:
    draft = drafted(2, "v1", "v2")
    first, second = draft.producer("v1"), draft.producer("v2")
    assert first is not None
    assert second is not None
    draft.replace(second, [Node("abs", ("v0",), ("v2",))], [first])
    assert [item.source for item in draft.freeze().nodes] == [("n0",), ("n1",)]
