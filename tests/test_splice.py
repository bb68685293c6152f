"""Cutting and running: a spliced model equals the original, whatever the cut goes through."""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper

from onekernel.device.emulated import EmulatedDevice
from onekernel.errors import InvalidInput, InvalidOperand
from onekernel.fusion.chain import Chain, Operand
from onekernel.fusion.rules import normal_form
from onekernel.fusion.search import find_chains
from onekernel.graph.onnx_reader import read
from onekernel.splice.engine import HostEngine, cpu_session, engine_for
from onekernel.splice.loop import Step, make_loop
from onekernel.splice.model import FusedModel
from onekernel.splice.onnxruntime import splice
from onekernel.splice.plan import Launch, Segment, cut
from onekernel.splice.segments import reseeded
from onekernel.splice.signature import Spec, bind
from onekernel.verify.compare import relative_error
from small_models import HIDDEN, ROWS, Builder, meaning

ENGINE = HostEngine(meaning)


def sample(*names: str) -> dict[str, Any]:
    random = np.random.default_rng(3)
    return {name: random.standard_normal((ROWS, HIDDEN)).astype(np.float32) for name in names}


def check(builder: Builder, model: ModelProto, inputs: dict[str, Any]) -> FusedModel:
    fused = splice(model, builder.chains, ENGINE)
    names = [item.name for item in model.graph.output]
    expected = dict(zip(names, cpu_session(model.SerializeToString()).run(None, inputs), strict=True))
    got = fused(inputs)
    assert list(got) == names
    for name in names:
        assert got[name].shape == expected[name].shape
        assert relative_error(got[name], expected[name]) < 1e-5, name
    return fused


def test_two_chains_of_one_stage_run_between_two_sessions() -> None:
    b = Builder()
    before = b.node("MatMul", "x", b.weight(HIDDEN, HIDDEN))
    left, _ = b.norm(before)
    right, _ = b.norm(b.node("Relu", before))
    model = b.model(["x"], [b.node("MatMul", b.node("Mul", left, right), b.weight(HIDDEN, HIDDEN))])
    kinds = [type(step) for step in cut(model, b.chains)]
    assert kinds == [Segment, Launch, Launch, Segment]
    fused = check(b, model, sample("x"))
    assert (fused.stats.segments, fused.stats.launches, fused.stats.replaced) == (2, 2, 18)


def test_chains_in_a_row_need_no_session_between_them() -> None:
    b = Builder()
    first, _ = b.norm("x")
    second, _ = b.norm(first)
    model = b.model(["x"], [b.node("Relu", second)])
    constants = {name for chain in b.chains for name in (o.name for o in chain.operands if o.kind == "channel")}
    kinds = [type(step) for step in cut(model, b.chains, constants)]
    assert kinds == [Launch, Launch, Segment]
    check(b, model, sample("x"))


def test_a_chain_may_read_an_input_and_write_an_output() -> None:
    b = Builder()
    output, _ = b.norm("x", in_nodes=True)
    check(b, b.model(["x"], [output]), sample("x"))


def test_several_results_and_a_result_that_is_also_an_output() -> None:
    b = Builder()
    output, total = b.norm(b.node("Relu", "x"), residual="y")
    assert total is not None
    again, _ = b.norm(output, residual=total)
    check(b, b.model(["x", "y"], [total, b.node("Add", again, total)]), sample("x", "y"))


@pytest.mark.parametrize("flag", [True, False])
def test_names_captured_by_branches_travel_with_them(flag: bool) -> None:
    b = Builder()
    early = b.node("Relu", "x")
    output, _ = b.norm("x")
    weight = b.weight(ROWS, HIDDEN)
    chosen = b.branch("flag", b.node("Add", output, weight), b.node("Mul", early, b.constant(HIDDEN)))
    inner = b.branch("flag", output, weight)
    model = b.model(["x"], [b.node("Add", chosen, inner)], flag=True)
    check(b, model, {**sample("x"), "flag": np.array(flag)})


def test_names_captured_by_a_loop_travel_with_it() -> None:
    b = Builder()
    output, _ = b.norm("x")
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            helper.make_node("Add", ["state", output], ["next"], name="step"),
            helper.make_node("Identity", ["going"], ["still"], name="keep"),
        ],
        "body",
        [value("i", TensorProto.INT64, []), value("going", TensorProto.BOOL, []), value("state", 1, None)],
        [value("still", TensorProto.BOOL, []), value("next", 1, None)],
    )
    trips = b.node("Constant", value_int=3)
    looped = b.node("Loop", trips, "", b.node("Relu", "x"), body=body)
    check(b, b.model(["x"], [b.node("Neg", looped)]), sample("x"))


def test_float16_values_cross_the_cuts() -> None:
    b = Builder()
    half = b.node("Cast", "x", to=TensorProto.FLOAT16)
    same = b.node("Cast", half, to=TensorProto.FLOAT)
    output, _ = b.norm(same)
    model = b.model(["x"], [b.node("Add", output, b.node("Cast", half, to=TensorProto.FLOAT))])
    later = [chain.operands[0].name for chain in b.chains]
    assert later == [same]
    check(b, model, sample("x"))


def test_an_unnamed_use_inside_a_nested_branch_is_seen() -> None:
    b = Builder()
    output, _ = b.norm("x")
    outer = b.branch("flag", "x", "x")
    nested = b.nodes[-1].attribute[0].g
    b.nodes.pop()
    inner = b.branch("flag", output, "x")
    nested.node[0].CopyFrom(b.nodes.pop())
    nested.node[0].output[0] = nested.output[0].name
    assert inner
    b.branch("flag", "x", "x")
    b.nodes[-1].attribute[0].g.CopyFrom(nested)
    assert b.nodes[-1].output[0] == outer
    check(b, b.model(["x"], [outer], flag=True), {**sample("x"), "flag": np.array(True)})


def test_weights_stay_constants_in_the_segments_that_read_them_and_nowhere_else() -> None:
    b = Builder()
    folded = b.node("Transpose", b.weight(HIDDEN, HIDDEN))
    normed, _ = b.norm(b.node("MatMul", "x", folded))
    model = b.model(["x"], [b.node("MatMul", normed, b.weight(HIDDEN, HIDDEN))])
    fused = check(b, model, sample("x"))
    last = ModelProto.FromString(fused.parts[-1].segment or b"")
    assert [item.name for item in last.graph.input] == [normed]
    assert len(last.graph.initializer) == 1
    later = Builder()
    normed, _ = later.norm("x")
    folded = later.node("Transpose", later.weight(HIDDEN, HIDDEN))
    fused = check(later, later.model(["x"], [later.node("MatMul", normed, folded)]), sample("x"))
    last = ModelProto.FromString(fused.parts[-1].segment or b"")
    assert [node.op_type for node in last.graph.node] == ["Transpose", "MatMul"]
    assert [item.name for item in last.graph.input] == [normed]


def test_a_random_draw_happens_once() -> None:
    b = Builder()
    noise = b.node("RandomNormal", shape=[ROWS, HIDDEN])
    normed, _ = b.norm(b.node("Mul", noise, b.weight(1, value=0.0)), residual="x")
    model = b.model(["x"], [b.node("Sub", b.node("Add", normed, noise), noise)])
    assert runs_of(model, b, "RandomNormal") == 1
    check(b, model, sample("x"))


def test_a_branch_over_constants_is_not_copied() -> None:
    b = Builder()
    weight = b.weight(ROWS, HIDDEN)
    flag = b.node("Constant", value=numpy_helper.from_array(np.array(True)))
    chosen = b.branch(flag, weight, weight)
    normed, _ = b.norm(b.node("Add", "x", chosen))
    model = b.model(["x"], [b.node("Add", normed, chosen)])
    assert runs_of(model, b, "If") == 1
    check(b, model, sample("x"))


def test_nodes_that_no_output_needs_are_dropped() -> None:
    b = Builder()
    normed, _ = b.norm("x")
    b.node("Exp", normed)
    model = b.model(["x"], [b.node("Relu", normed)])
    assert (runs_of(model, b, "Exp"), runs_of(model, b, "Relu")) == (0, 1)


def test_constants_that_depend_on_constants_are_copied_together() -> None:
    b = Builder()
    normed, _ = b.norm("x")
    folded = b.node("Relu", b.node("Transpose", b.weight(HIDDEN, HIDDEN)))
    model = b.model(["x"], [b.node("MatMul", normed, folded)])
    assert runs_of(model, b, "Transpose") == 1
    check(b, model, sample("x"))


def runs_of(model: ModelProto, b: Builder, op: str) -> int:
    """Count how often an operator runs over all segments."""
    segments = [step for step in cut(model, b.chains) if isinstance(step, Segment)]
    return sum(model.graph.node[index].op_type == op for segment in segments for index in segment.nodes)


def test_a_value_of_unknown_rank_crosses_a_cut() -> None:
    b = Builder()
    loose = b.node("Reshape", b.node("Relu", "x"), "shape")
    normed, _ = b.norm(loose)
    shape = helper.make_tensor_value_info("shape", TensorProto.INT64, ["rank"])
    product = b.node("MatMul", normed, b.weight(HIDDEN, HIDDEN))
    model = b.model(["x"], [b.node("Add", product, loose)], more=[shape])
    check(b, model, {**sample("x"), "shape": np.array([ROWS, HIDDEN])})


def test_only_draws_without_a_seed_are_seeded() -> None:
    b = Builder()
    b.node("RandomNormal", shape=[1], seed=5.0)
    b.node("RandomNormal", shape=[1])
    model = b.model(["x"], [b.node("Add", *(node.output[0] for node in b.nodes))])
    copy = reseeded(model, 9.0)
    seeds = [item.f for node in copy.graph.node for item in node.attribute if item.name == "seed"]
    assert seeds == [5.0, 9.0]
    assert reseeded(copy, 1.0) is copy


def test_values_die_after_their_last_use() -> None:
    b = Builder()
    first, _ = b.norm(b.node("Relu", "x"))
    second, _ = b.norm(b.node("Relu", first))
    fused = check(b, b.model(["x"], [b.node("Relu", second)]), sample("x"))
    names = {name for part in fused.parts for name in (*part.inputs, *part.outputs)}
    dead = [name for names_ in fused.loop.dead for name in names_]
    assert sorted(dead) == sorted(names - set(fused.loop.outputs))


def test_the_loop_holds_no_dead_value() -> None:
    held: list[weakref.ref[Any]] = []

    def make(_: Any) -> list[Any]:
        array = np.zeros(3)
        held.append(weakref.ref(array))
        return [array]

    def alive(_: Any) -> list[Any]:
        return [[ref() is not None for ref in held]]

    steps = [Step(make, (), ("a",)), Step(make, ("a",), ("b",)), Step(alive, ("b",), ("c",))]
    assert make_loop([*steps, Step(alive, (), ("d",))], ["c", "d"]).run({}) == {
        "c": [False, True],
        "d": [False, False],
    }


def test_a_chain_that_a_path_leaves_and_enters_again_is_refused() -> None:
    b = Builder()
    output, _ = b.norm("x")
    outside = b.node("Relu", output)
    model = b.model(["x"], [outside])
    entered = replace(b.chains[0], operands=(*b.chains[0].operands, Operand(outside, "full", "float32")))
    with pytest.raises(InvalidInput, match="leaves and enters"):
        cut(model, [entered])


def test_chains_of_another_model_are_refused() -> None:
    b, other = Builder(), Builder()
    b.norm("x")
    model = other.model(["x"], [other.node("Relu", "x")])
    with pytest.raises(InvalidInput, match="unknown node"):
        splice(model, b.chains, ENGINE)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (np.zeros((ROWS, HIDDEN), np.float32), "bare ndarray"),
        ({"y": np.zeros((ROWS, HIDDEN), np.float32)}, "names y"),
        ([], "0 arrays"),
        ([np.zeros((ROWS, HIDDEN))], "float64"),
        ([np.zeros((ROWS, HIDDEN + 1), np.float32)], r"float32\[3,7\]"),
        ([np.zeros(HIDDEN, np.float32)], r"float32\[6\]"),
    ],
)
def test_unusable_inputs_are_named(inputs: Any, message: str) -> None:
    b = Builder()
    output, _ = b.norm("x")
    fused = splice(b.model(["x"], [output]), b.chains, ENGINE)
    with pytest.raises(InvalidInput, match=message):
        fused(inputs)


def test_inputs_by_position_and_other_sizes_of_a_dynamic_dimension() -> None:
    b = Builder()
    output, _ = b.norm("x")
    fused = splice(b.model(["x"], [b.node("Relu", output)]), b.chains, ENGINE)
    x = sample("x")["x"]
    np.testing.assert_array_equal(fused([x])[fused.outputs[0].name], fused({"x": x})[fused.outputs[0].name])
    assert fused([np.tile(x, (5, 1))])[fused.outputs[0].name].shape == (5 * ROWS, HIDDEN)
    assert fused([x[:0]])[fused.outputs[0].name].shape == (0, HIDDEN)


def test_explain_counts_kernels_and_operators() -> None:
    b = Builder()
    output, _ = b.norm("x")
    text = splice(b.model(["x"], [output]), b.chains, ENGINE).explain()
    assert "rows of 6" in text
    assert "9 -> 1" in text


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_random_graphs(data: st.DataObject) -> None:
    b = Builder()
    values = ["x", "y"]
    pick = st.deferred(lambda: st.sampled_from(values))
    for _ in range(data.draw(st.integers(1, 9))):
        kind = data.draw(st.sampled_from(["Add", "Mul", "Tanh", "Constant", "MatMul", "norm", "residual", "If"]))
        if kind in ("Add", "Mul"):
            values.append(b.node(kind, data.draw(pick), data.draw(pick)))
        elif kind == "Tanh":
            values.append(b.node(kind, data.draw(pick)))
        elif kind == "Constant":
            values.append(b.constant(ROWS, HIDDEN))
        elif kind == "MatMul":
            values.append(b.node(kind, data.draw(pick), b.weight(HIDDEN, HIDDEN)))
        elif kind == "If":
            values.append(b.branch("flag", data.draw(pick), data.draw(pick)))
        else:
            other = data.draw(pick) if kind == "residual" else None
            values += [v for v in b.norm(b.node("Tanh", data.draw(pick)), residual=other) if v]
    inner = values[2:]
    outputs = data.draw(st.lists(st.sampled_from(inner), min_size=1, max_size=3, unique=True))
    model = b.model(["x", "y"], outputs, flag=True)
    check(b, model, {**sample("x", "y"), "flag": np.array(data.draw(st.booleans()))})


def test_sizes_that_a_kernel_refuses_are_told_in_names_of_the_model() -> None:
    b = Builder()
    output, _ = b.norm("x", residual="y")

    def refuse(_: Chain) -> Any:
        def call(_: Any) -> Any:
            raise InvalidOperand(expected="(2, 6) for the full operand 'in1'", got="(1, 6)", todo="...")

        return call

    fused = splice(b.model(["x", "y"], [output]), b.chains, HostEngine(refuse))
    with pytest.raises(InvalidInput, match=r"'x' \[2, 6\], 'y' \[1, 6\].*optimize the model again"):
        fused([np.zeros((rows, HIDDEN), np.float32) for rows in (2, 1)])


def test_lists_become_arrays_and_foreign_byte_order_is_refused() -> None:
    numbers, words = Spec("n", "int64", ("k",)), Spec("w", "string", ("k",))
    bound = bind([numbers, words], [[1, 2], ["a", "b"]])
    assert bound["n"].tolist() == [1, 2]
    assert bound["w"].tolist() == ["a", "b"]
    with pytest.raises(InvalidInput, match=">f4"):
        bind([Spec("x", "float32", ("k",))], [np.ones(2, ">f4")])


@pytest.mark.parametrize(
    ("norm_axis", "sample", "other"),
    [(2, (1, HIDDEN), (HIDDEN, 1)), (1, (1, 1, HIDDEN), (HIDDEN, 1, 1))],  # a vector along channels, along rows
)
def test_a_small_operand_along_another_axis_is_refused(norm_axis: int, sample: Any, other: Any) -> None:
    b = Builder()
    centred = b.node("Sub", "x", b.node("ReduceMean", "x", axes=[norm_axis]))
    variance = b.node("ReduceMean", b.node("Mul", centred, centred), axes=[norm_axis])
    normal = b.node("Div", centred, b.node("Sqrt", b.node("Add", variance, b.weight(1, value=1e-5))))
    values = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, HIDDEN, HIDDEN]),
        helper.make_tensor_value_info("k", TensorProto.FLOAT, [f"k{i}" for i in range(len(sample))]),
    ]
    output = b.node("Mul", normal, "k")
    graph = helper.make_graph(b.nodes, "g", values, [onnx.ValueInfoProto(name=output)], b.weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = np.random.default_rng(2).standard_normal((1, HIDDEN, HIDDEN)).astype(np.float32)
    inputs = {"x": x, "k": np.ones(sample, np.float32)}
    (chain,) = find_chains(normal_form(read(model, inputs))).chains
    assert len(chain.operands) == 2
    fused = splice(model, [chain], engine_for(EmulatedDevice()))
    assert fused(inputs)[output].shape == x.shape
    with pytest.raises(InvalidInput, match="optimize the model again"):
        fused({"x": x, "k": np.ones(other, np.float32)})


def test_inputs_on_which_the_model_cannot_run_are_refused_in_one_line() -> None:
    b = Builder()
    output, _ = b.norm(b.node("Add", "x", "y"))
    fused = splice(b.model(["x", "y"], [output]), b.chains, ENGINE)
    with pytest.raises(InvalidInput, match="inputs that the model can run on") as caught:
        fused([np.zeros((rows, HIDDEN), np.float32) for rows in (2, 3)])
    assert "\n" not in str(caught.value)
