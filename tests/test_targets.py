"""Opening what the user named, and making up inputs that the model can run on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from onekernel.errors import InvalidInput
from onekernel.targets import open_target


def model(inputs: dict[str, tuple[int, Any]], *nodes: Any, weights: Any = ()) -> ModelProto:
    values = [helper.make_tensor_value_info(name, *kind) for name, kind in inputs.items()]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(list(nodes), "g", values, [result], list(weights))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def relu(shape: Any, element: int = TensorProto.FLOAT) -> ModelProto:
    cast = helper.make_node("Cast", ["x"], ["f"], to=TensorProto.FLOAT)
    return model({"x": (element, shape)}, cast, helper.make_node("Relu", ["f"], ["y"]))


def test_fixed_shapes_need_no_inputs() -> None:
    opened = open_target(relu([2, 3]))
    assert opened.inputs["x"].shape == (2, 3)
    assert opened.graph.inputs == ("x",)
    assert all(node.name for node in opened.model.graph.node)


@pytest.mark.parametrize("shape", [["n", 3], [None, 3]])
def test_a_varying_shape_needs_inputs(shape: list[Any]) -> None:
    with pytest.raises(InvalidInput, match=r"no inputs for x float32.*--inputs FILE.npz"):
        open_target(relu(shape))


@pytest.mark.parametrize(
    ("shape", "expected"),
    [(["n", 3, "w"], (1, 3, 64)), ([None, None], (1, 64)), (["n", "w", "n"], (1, 64, 1)), ([], ())],
)
def test_made_up_lengths(shape: list[Any], expected: tuple[int, ...]) -> None:
    assert open_target(relu(shape), "auto").inputs["x"].shape == expected


def test_made_up_values() -> None:
    floats = open_target(relu([4, 5]), "auto").inputs["x"]
    assert 0 <= floats.min() < floats.max() < 1
    np.testing.assert_array_equal(open_target(relu([4, 5]), "auto").inputs["x"], floats)
    assert (open_target(relu([7], TensorProto.INT64), "auto").inputs["x"] == 1).all()
    assert open_target(relu([7], TensorProto.BOOL), "auto").inputs["x"].all()
    assert open_target(relu([7], TensorProto.FLOAT16), "auto").inputs["x"].dtype == np.float16


@pytest.mark.parametrize("as_node", [True, False])
def test_made_up_indices_stay_within_their_table(as_node: bool) -> None:
    table = numpy_helper.from_array(np.zeros((9, 2), np.float32), "table")
    gather = helper.make_node("Gather", ["table", "x"], ["y"])
    nodes = [helper.make_node("Constant", [], ["table"], value=table), gather] if as_node else [gather]
    weights = [] if as_node else [table]
    ids = open_target(model({"x": (TensorProto.INT64, ["n", "t"])}, *nodes, weights=weights), "auto").inputs["x"]
    assert ids.shape == (1, 64)
    assert 0 <= ids.min() < ids.max() < 9
    assert len(np.unique(ids)) > 5


def test_inputs_by_position_and_by_name() -> None:
    x = np.ones((2, 3), np.float32)
    assert open_target(relu([2, 3]), [x]).inputs["x"] is x
    assert open_target(relu([2, 3]), {"x": x}).inputs["x"] is x
    with pytest.raises(InvalidInput, match="bare ndarray"):
        open_target(relu([2, 3]), x)  # type: ignore[arg-type]


def test_text_is_not_made_up_and_sequences_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"numeric type, got x string\[3\]"):
        open_target(relu([3], TensorProto.STRING), "auto")
    broken = relu([3])
    broken.graph.output[0].type.CopyFrom(
        helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    )
    with pytest.raises(InvalidInput, match="tensors only"):
        open_target(broken)


def test_made_up_inputs_that_the_model_refuses_are_named() -> None:
    table = numpy_helper.from_array(np.ones(24, np.float32), "w")
    with pytest.raises(InvalidInput, match=r"made-up inputs x float32\[1, 64\].*give --inputs FILE.npz"):
        open_target(model({"x": (1, ["n", "t"])}, helper.make_node("Add", ["x", "w"], ["y"]), weights=[table]), "auto")


def test_text_can_be_given() -> None:
    same = helper.make_node("Identity", ["x"], ["z"])
    y = helper.make_node("Cast", ["z"], ["y"], to=TensorProto.FLOAT)
    opened = open_target(model({"x": (TensorProto.STRING, ["n"])}, same, y), {"x": np.array(["1", "2"])})
    assert opened.graph.values["y"].shape == (2,)


@pytest.mark.parametrize("target", [None, 5, b"bytes"])
def test_what_is_no_model_is_refused(target: Any) -> None:
    with pytest.raises(InvalidInput, match="expected an ONNX model, got"):
        open_target(target)


def test_weights_that_are_not_there_are_refused() -> None:
    away = numpy_helper.from_array(np.ones(3, np.float32), "w")
    away.data_location = TensorProto.EXTERNAL
    add = helper.make_node("Add", ["x", "w"], ["y"])
    with pytest.raises(InvalidInput, match="'w' in another file"):
        open_target(model({"x": (1, [3])}, add, weights=[away]))
    sparse = model({"x": (1, [3])}, add)
    values, indices = helper.make_tensor("w", 1, [1], [1.0]), helper.make_tensor("i", TensorProto.INT64, [1], [0])
    sparse.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [3]))
    with pytest.raises(InvalidInput, match="the sparse 'w'"):
        open_target(sparse)
