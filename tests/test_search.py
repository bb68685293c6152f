"""Chains of real and generated models: how many, what is in them, and that they compute the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

import minilm
from onekernel.fusion.chain import Chain, Search
from onekernel.fusion.growth.layout import Frame, after_transpose, before_transpose, frames, kind_of
from onekernel.fusion.naming import canonical
from onekernel.fusion.rules import normal_form
from onekernel.fusion.search import find_chains
from onekernel.graph.model import Graph, Node, Value
from onekernel.graph.onnx_reader import load, read
from onnx_models import Array, chain_errors, model
from spellings import DIVIDES, MEANS, SQUARES, Spelling, written

RANDOM = np.random.default_rng(5)


def search_model(proto: Any, inputs: Mapping[str, Array]) -> Search:
    return find_chains(normal_form(read(proto, inputs)))


def piper_inputs() -> dict[str, Array]:
    """A short sentence of phonemes; no noise, so that every run is the same."""
    ids = np.array([[1, 0, 20, 0, 61, 0, 24, 0, 59, 0, 100, 0, 3, 0, 15, 0, 2]], np.int64)
    lengths = np.array([ids.shape[1]], np.int64)
    return {"input": ids, "input_lengths": lengths, "scales": np.array([0, 1, 0], np.float32)}


def test_piper_has_36_chains_and_none_is_left(piper_voice: Path) -> None:
    proto, inputs = load(piper_voice), piper_inputs()
    search = search_model(proto, inputs)
    assert (len(search.chains), search.left) == (36, ())
    assert sum("gelu" in chain.name for chain in search.chains) == 24
    assert sum(chain.name.startswith(("add_", "mask_add_")) for chain in search.chains) == 12
    assert {chain.layout for chain in search.chains} == {"columns"}
    assert max(chain_errors(proto, inputs, search.chains)) < 1e-5
    replaced = [name for chain in search.chains for name in chain.source]
    assert len(replaced) == len(set(replaced))
    ops = {node.name: node.op_type for node in proto.graph.node}
    assert [ops[name] for name in replaced].count("Transpose") == 72


def test_piper_needs_few_distinct_kernels(piper_voice: Path) -> None:
    search = search_model(load(piper_voice), piper_inputs())
    assert len({canonical(chain) for chain in search.chains}) == 6


def test_recognition_has_5_chains(ocr_recogniser: Path) -> None:
    proto = load(ocr_recogniser)
    inputs = {"x": np.random.default_rng(0).standard_normal((1, 3, 48, 320)).astype(np.float32)}
    search = search_model(proto, inputs)
    assert (len(search.chains), search.left) == (5, ())
    assert {chain.layout for chain in search.chains} == {"rows"}
    assert max(chain_errors(proto, inputs, search.chains)) < 1e-5


# --- what is drawn into a chain


def norm(s: Spelling, x: str) -> str:
    """One plain normalisation of a value."""
    return written(s, MEANS["mean"], SQUARES["pow"], DIVIDES["div"], x=x)


def layer_norm(s: Spelling, x: str, *vector: int) -> str:
    """A normalisation with its scale and shift."""
    shape = vector or (s.shape[s.axis],)
    scaled = s.op("Mul", norm(s, x), s.array(s.random(*shape)))
    return s.op("Add", scaled, s.array(s.random(*shape)))


def only_chain(s: Spelling, output: str, *more: str) -> tuple[Chain, set[str]]:
    """Find the one chain, compare it with ONNX Runtime; returns it and the nodes left outside."""
    proto, inputs = s.build(output, *more)
    search = search_model(proto, inputs)
    assert (len(search.chains), search.left) == (1, ())
    (chain,) = search.chains
    limit = 5e-3 if s.dtype is np.float16 else 1e-5
    assert max(chain_errors(load(proto), inputs, search.chains)) < limit
    outside = {node.name for node in proto.graph.node if node.op_type != "Constant"} - set(chain.source)
    return chain, outside - {"n_y"}


def kinds(chain: Chain) -> list[str]:
    return [operand.kind for operand in chain.operands]


def test_residual_scale_and_shift_join() -> None:
    s = Spelling((2, 5, 8))
    chain, outside = only_chain(s, layer_norm(s, s.op("Add", "x", s.given(2, 5, 8))))
    assert (chain.name, chain.layout, outside) == ("add_layer_norm", "rows", set())
    assert kinds(chain) == ["full", "full", "channel", "channel"]


def test_a_residual_sum_used_later_is_stored_too() -> None:
    s = Spelling((2, 5, 8))
    total = s.op("Add", "x", s.given(2, 5, 8))
    chain, _ = only_chain(s, layer_norm(s, total), s.op("Softmax", total))
    assert [result.name for result in chain.results] == [total, "y"]


def test_a_third_result_is_refused() -> None:
    s = Spelling((2, 5, 8))
    total = s.op("Add", "x", s.given(2, 5, 8))
    out = layer_norm(s, total)
    more = [s.op("Softmax", value) for value in (total, out, s.op("Tanh", out))]
    chain, outside = only_chain(s, out, *more)
    assert len(chain.results) == 2
    assert len(outside) == 4


def test_wrapping_transposes_become_an_axis() -> None:
    s = Spelling((2, 8, 5), axis=-1)
    inside = Spelling((2, 5, 8), nodes=s.nodes, constants=s.constants)
    out = layer_norm(inside, s.op("Transpose", "x", perm=[0, 2, 1]))
    chain, outside = only_chain(s, s.op("Relu", s.op("Transpose", out, perm=[0, 2, 1])))
    assert (chain.layout, chain.axis, chain.sample_shape, outside) == ("columns", 1, (2, 8, 5), set())


def test_wrapping_transposes_of_an_image() -> None:
    s = Spelling((2, 8, 3, 5))
    inside = Spelling((2, 3, 5, 8), nodes=s.nodes, constants=s.constants)
    out = layer_norm(inside, s.op("Transpose", "x", perm=[0, 2, 3, 1]))
    chain, outside = only_chain(s, s.op("Transpose", out, perm=[0, 3, 1, 2]))
    assert (chain.axis, chain.sample_shape, outside) == (1, (2, 8, 3, 5), set())


def test_transposes_between_two_axis_orders_stay_inside() -> None:
    """norm in rows, an activation in columns, and back."""
    s = Spelling((2, 5, 8))
    turned = s.op("Tanh", s.op("Transpose", layer_norm(s, "x"), perm=[0, 2, 1]))
    chain, outside = only_chain(s, s.op("Transpose", turned, perm=[0, 2, 1]))
    assert (chain.layout, outside) == ("rows", set())


@pytest.mark.parametrize("before", [True, False])
def test_a_single_transpose_stays_outside(before: bool) -> None:
    s = Spelling((2, 5, 8))
    x = s.op("Transpose", s.given(2, 8, 5), perm=[0, 2, 1]) if before else "x"
    out = layer_norm(s, x)
    chain, outside = only_chain(s, out if before else s.op("Transpose", out, perm=[0, 2, 1]))
    assert (chain.layout, len(outside)) == ("rows", 1)


def test_axes_in_another_order_are_not_a_frame() -> None:
    """[T, B, C] <-> [B, T, C] moves rows, which no kernel of ours does."""
    s = Spelling((2, 5, 8))
    out = layer_norm(s, s.op("Transpose", s.given(5, 2, 8), perm=[1, 0, 2]))
    _, outside = only_chain(s, s.op("Transpose", out, perm=[1, 0, 2]))
    assert len(outside) == 2


def test_an_inner_axis_needs_no_transposes() -> None:
    s = Spelling((2, 8, 5), axis=1)
    chain, outside = only_chain(s, layer_norm(s, "x", 8, 1))
    assert (chain.layout, chain.hidden, outside) == ("columns", 8, set())
    assert kinds(chain) == ["full", "channel", "channel"]


def test_a_mask_in_either_order_is_a_row_operand() -> None:
    s = Spelling((2, 8, 5))
    inside = Spelling((2, 5, 8), nodes=s.nodes, constants=s.constants)
    masked = s.op("Mul", s.op("Transpose", "x", perm=[0, 2, 1]), s.given(2, 5, 1))
    out = s.op("Transpose", layer_norm(inside, masked), perm=[0, 2, 1])
    chain, outside = only_chain(s, s.op("Mul", out, s.given(2, 1, 5)))
    assert (chain.name, outside) == ("mask_layer_norm_mask", set())
    assert kinds(chain) == ["full", "row", "channel", "channel", "row"]


def test_a_partial_broadcast_is_refused() -> None:
    s = Spelling((2, 5, 8))
    _, outside = only_chain(s, s.op("Mul", layer_norm(s, "x"), s.given(2, 1, 8)))
    assert len(outside) == 1


def test_an_outer_product_is_not_a_tensor_to_read() -> None:
    """A launch takes its shape from a full operand, so there must be one."""
    s = Spelling((2, 5, 8))
    chain, outside = only_chain(s, norm(s, s.op("Mul", s.given(2, 5, 1), s.array(s.random(8)))))
    assert (kinds(chain), len(outside)) == (["full"], 1)


def test_a_scalar_known_at_run_time() -> None:
    s = Spelling((2, 5, 8))
    chain, outside = only_chain(s, s.op("Mul", norm(s, "x"), s.given(1)))
    assert (kinds(chain), outside) == (["full", "scalar"], set())


def test_a_constant_tensor_is_a_full_operand() -> None:
    s = Spelling((2, 5, 8))
    chain, _ = only_chain(s, s.op("Add", norm(s, "x"), s.array(s.random(2, 5, 8))))
    assert kinds(chain) == ["full", "full"]


@pytest.mark.parametrize("shape", [(1, 1, 8), (1, 1), (3, 1), (1, 4), (0, 4), (2, 0, 4)])
def test_sizes_of_one_and_none(shape: tuple[int, ...]) -> None:
    s = Spelling(shape)
    out = layer_norm(s, s.op("Mul", "x", s.given(*shape[:-1], 1)))
    chain, outside = only_chain(s, s.op("Add", out, s.given(*shape)))
    assert outside == set()
    assert kinds(chain)[0] == "full"
    assert kinds(chain)[-1] == "full"


def gelu_erf(s: Spelling, x: str) -> str:
    erf = s.op("Erf", s.op("Div", x, s.number(math.sqrt(2))))
    return s.op("Mul", s.op("Mul", x, s.op("Add", erf, s.number(1))), s.number(0.5))


def gelu_erf_other_order(s: Spelling, x: str) -> str:
    erf = s.op("Erf", s.op("Mul", x, s.number(math.sqrt(0.5))))
    return s.op("Mul", s.op("Mul", s.number(0.5), x), s.op("Add", s.number(1), erf))


def gelu_tanh(s: Spelling, x: str) -> str:
    cube = s.op("Mul", s.op("Pow", x, s.number(3)), s.number(0.044715))
    inner = s.op("Tanh", s.op("Mul", s.op("Add", x, cube), s.number(math.sqrt(2 / math.pi))))
    return s.op("Mul", s.op("Mul", x, s.number(0.5)), s.op("Add", inner, s.number(1)))


def gate(s: Spelling, x: str) -> str:
    return s.op("Mul", s.op("Tanh", x), s.op("Sigmoid", x))


ACTIVATIONS: dict[str, Callable[[Spelling, str], str]] = {
    "gelu_erf": gelu_erf,
    "gelu_erf_other_order": gelu_erf_other_order,
    "gelu_tanh": gelu_tanh,
    "gate": gate,
    "silu": lambda s, x: s.op("Mul", x, s.op("Sigmoid", x)),
    "leaky": lambda s, x: s.op("LeakyRelu", x, alpha=0.2),
    "prelu": lambda s, x: s.op("PRelu", x, s.array(s.random(8))),
    "clip": lambda s, x: s.op("Clip", x, s.number(-1), s.number(1)),
    "clip_above": lambda s, x: s.op("Clip", x, "", s.number(1)),
    "softplus": lambda s, x: s.op("Softplus", x),
    "gelu": lambda s, x: s.op("Gelu", x),
    "gelu_by_tanh": lambda s, x: s.op("Gelu", x, approximate="tanh"),
    "quick_gelu": lambda s, x: s.op("QuickGelu", x, domain="com.microsoft", alpha=1.702),
    "fast_gelu": lambda s, x: s.op("FastGelu", x, s.array(s.random(8)), domain="com.microsoft"),
    "bias_gelu": lambda s, x: s.op("BiasGelu", x, s.array(s.random(8)), domain="com.microsoft"),
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation_joins_whole(activation: str) -> None:
    s = Spelling((3, 5, 8), opset=20)
    chain, outside = only_chain(s, ACTIVATIONS[activation](s, layer_norm(s, "x")))
    assert (outside, len(chain.results)) == (set(), 1)


def test_half_an_activation_never_joins() -> None:
    """When the steps run out, an ONNX node that stands for several steps is in or out, not cut."""
    s = Spelling((3, 8))
    value = layer_norm(s, "x")
    for _ in range(20):
        value = s.op("Tanh", value)
    chain, outside = only_chain(s, s.op("QuickGelu", value, domain="com.microsoft"))
    assert len(chain.epilogue) == 22
    assert outside == {f"n_{s.nodes[-2].output[0]}"}


def test_half_precision_with_casts() -> None:
    s = Spelling((3, 8), dtype=np.float16)
    inner = Spelling((3, 8), nodes=s.nodes, constants=s.constants)
    chain, outside = only_chain(s, s.op("Cast", layer_norm(inner, s.op("Cast", "x", to=1)), to=10))
    assert outside == set()
    assert [operand.dtype for operand in chain.operands] == ["float16", "float32", "float32"]
    assert [result.dtype for result in chain.results] == ["float16"]


# --- cycles


def test_a_residual_around_something_slow_is_not_drawn_in() -> None:
    s = Spelling((2, 5, 8))
    out = layer_norm(s, "x")
    chain, outside = only_chain(s, s.op("Add", out, s.op("Softmax", out)))
    assert [result.name for result in chain.results] == [out]
    assert len(outside) == 2


def test_only_one_end_of_a_detour_joins() -> None:
    s = Spelling((2, 5, 8))
    total = s.op("Add", "x", s.given(2, 5, 8))
    _, outside = only_chain(s, s.op("Add", norm(s, total), s.op("Softmax", total)))
    assert len(outside) == 2


def test_two_chains_never_wait_for_each_other() -> None:
    """Each sum could join its own chain, but not both: the launches would need each other's results."""
    s = Spelling((2, 5, 8))
    one, other = norm(s, "x"), norm(s, s.given(2, 5, 8))
    sums = [s.op("Add", one, s.op("Softmax", other)), s.op("Add", other, s.op("Softmax", one))]
    proto, inputs = s.build(*sums)
    chains = search_model(proto, inputs).chains
    assert len(chains) == 2
    joined = {name for chain in chains for name in chain.source}
    assert len(joined & {f"n_{name}" for name in sums}) == 1


def test_a_row_operand_in_another_order_is_refused() -> None:
    s = Spelling((2, 3, 5, 8))
    turned = s.op("Transpose", norm(s, "x"), perm=[0, 2, 1, 3])
    masked = s.op("Mul", turned, s.given(2, 5, 3, 1))
    _, outside = only_chain(s, s.op("Transpose", masked, perm=[0, 2, 1, 3]))
    assert len(outside) == 3


def test_an_epilogue_may_read_the_prologue() -> None:
    s = Spelling((2, 5, 8))
    total = s.op("Add", "x", s.given(2, 5, 8))
    chain, outside = only_chain(s, s.op("Add", norm(s, total), total))
    assert (outside, len(chain.results)) == (set(), 1)


def test_side_operands_bring_their_producers() -> None:
    s = Spelling((2, 5, 8))
    side = s.op("Tanh", s.op("Mul", s.given(2, 5, 8), s.given(2, 5, 1)))
    chain, outside = only_chain(s, s.op("Add", norm(s, "x"), side))
    assert outside == set()
    assert len(chain.epilogue) == 3


# --- a whole encoder


def test_a_tiny_bert() -> None:
    """The real one is test_minilm; this has its spelling, at random weights."""
    config = {"num_attention_heads": 2, "hidden_size": 8, "layer_norm_eps": 1e-5}
    encoder = minilm.Encoder(_Weights(), config)
    x = encoder.embeddings(5)
    for number in range(2):
        x = encoder.layer(x, f"encoder.layer.{number}")
    constants = {name: numpy_helper.to_array(item) for name, item in encoder.constants.items()}
    inputs = {"input_ids": np.array([[3, 1, 4, 1, 5]], np.int64)}
    proto = model(encoder.nodes, inputs, [x], constants, opset=13)
    search = search_model(proto, inputs)
    assert (len(search.chains), search.left) == (5, ())
    assert [chain.name for chain in search.chains[1:]] == ["shift_add_layer_norm"] * 4
    assert max(chain_errors(load(proto), inputs, search.chains)) < 1e-5


SHAPES = (
    ("*_embeddings.weight", (9, 8)),
    ("*.intermediate.dense.weight", (16, 8)),
    ("*.intermediate.dense.bias", (16,)),
    ("*.attention.*.dense.weight", (8, 8)),
    ("*.output.dense.weight", (8, 16)),
    ("*.attention.self.*.weight", (8, 8)),
    ("*", (8,)),
)


class _Weights(dict[str, Array]):
    """Random weights of an encoder of 8 channels, made when they are asked for."""

    def __missing__(self, name: str) -> Array:
        shape = next(shape for pattern, shape in SHAPES if fnmatch(name, pattern))
        return self.setdefault(name, RANDOM.standard_normal(shape).astype(np.float32))


# --- limits


def test_steps_are_limited() -> None:
    s = Spelling((3, 8))
    value = norm(s, "x")
    for _ in range(30):
        value = s.op("Tanh", value)
    chain, outside = only_chain(s, value)
    assert (len(chain.epilogue), len(outside)) == (24, 6)


def test_full_operands_are_limited() -> None:
    s = Spelling((3, 8))
    value = norm(s, "x")
    for _ in range(9):
        value = s.op("Add", value, s.given(3, 8))
    chain, outside = only_chain(s, value)
    assert kinds(chain) == ["full"] * 6
    assert len(outside) == 4


def standardize_graph(shape: tuple[int, ...], dtype: str) -> Graph:
    """A graph of one node."""
    values = {name: Value(name, dtype, shape) for name in ("x", "y")}
    node = Node("standardize", ("x",), ("y",), {"axis": len(shape) - 1, "epsilon": 1e-5}, ("norm",))
    return Graph((node,), values, ("x",), ("y",))


@pytest.mark.parametrize(
    ("shape", "dtype", "reason"),
    [
        ((2, 8), "float64", "it computes in float64"),
        ((2, 8), "int32", "it computes in int32"),
        ((2, 65_537), "float32", "it normalises 65537 elements"),
        ((2, 0), "float32", "it normalises 0 elements"),
    ],
)
def test_what_no_kernel_can_do_is_left(shape: tuple[int, ...], dtype: str, reason: str) -> None:
    search = find_chains(standardize_graph(shape, dtype))
    assert search.chains == ()
    assert reason in search.left[0].reason
    assert search.left[0].source == ("norm",)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("hidden", [1, 65_536])
def test_what_a_kernel_can_do_is_found(hidden: int, dtype: str) -> None:
    (chain,) = find_chains(standardize_graph((2, hidden), dtype)).chains
    assert (chain.hidden, chain.operands[0].dtype, chain.name) == (hidden, dtype, "plain_norm")


# --- the fused operator of opset 17


@pytest.mark.parametrize("biased", [True, False])
def test_layer_normalization(biased: bool) -> None:
    s = Spelling((2, 5, 8))
    vectors = [s.array(s.random(8)) for _ in range(1 + biased)]
    out = s.op("LayerNormalization", s.op("Add", "x", s.given(2, 5, 8)), *vectors, epsilon=1e-3)
    chain, outside = only_chain(s, s.op("Tanh", out))
    assert (outside, len(chain.normal_source)) == (set(), 1)
    assert chain.epsilon == pytest.approx(1e-3)


def test_layer_normalization_over_two_axes_is_left() -> None:
    s = Spelling((2, 5, 8))
    search = search_model(*s.build(s.op("LayerNormalization", "x", s.array(s.random(5, 8)), axis=1)))
    assert [left.reason for left in search.left] == ["it normalises over several axes at once"]


def test_layer_normalization_with_statistics_is_left() -> None:
    s = Spelling((2, 5, 8))
    s.nodes.append(helper.make_node("LayerNormalization", ["x", s.array(s.random(8))], ["out", "mean"], name="ln"))
    search = search_model(*s.build("out", "mean"))
    assert [left.reason for left in search.left] == ["its statistics 'mean' are used elsewhere"]


# --- layouts, names, keys


@pytest.mark.parametrize("rank", [1, 2, 3, 4])
def test_frames_are_consistent(rank: int) -> None:
    shape = tuple(range(2, 2 + rank))
    for axis in range(rank):
        listed = list(frames(shape, axis))
        assert listed[0] == (Frame(shape, axis), tuple(range(rank)))
        assert len({frame for frame, _ in listed}) == rank
        for frame, layout in listed:
            assert frame.shape_in(layout) == shape
            assert layout[axis] == frame.axis


def test_transposes_of_layouts_undo_each_other() -> None:
    layout, perm = (2, 0, 1, 3), (3, 1, 0, 2)
    x = RANDOM.standard_normal((2, 3, 4, 5))
    assert before_transpose(after_transpose(layout, perm), perm) == layout
    lying = x.transpose(layout)
    np.testing.assert_array_equal(lying.transpose(perm), x.transpose(after_transpose(layout, perm)))


def test_ambiguous_sizes_are_taken_at_their_word() -> None:
    frame = Frame((1, 8, 1), 1)
    assert kind_of(Value("mask", "float32", (1, 1, 1)), frame, frame.identity) == "row"
    assert kind_of(Value("residual", "float32", (1, 8, 1)), frame, frame.identity) == "full"
    constant = Value("gamma", "float32", (1, 8, 1), np.ones((1, 8, 1), np.float32))
    assert kind_of(constant, frame, frame.identity) == "channel"
    assert kind_of(replace(constant, shape=(1, 1, 1)), frame, frame.identity) == "scalar"
    assert kind_of(Value("places", "float32", (8, 1)), frame, frame.identity) == "channel"
    wide = Frame((1, 8, 5), 1)
    assert kind_of(Value("row without its batch", "float32", (5,)), wide, wide.identity) is None


def test_equal_kernels_have_one_key() -> None:
    def chain_of(shape: tuple[int, ...], slope: float) -> Chain:
        s = Spelling(shape)
        return only_chain(s, s.op("LeakyRelu", layer_norm(s, s.op("Add", "x", s.given(*shape))), alpha=slope))[0]

    one = canonical(chain_of((2, 5, 8), 0.1))
    assert one == canonical(chain_of((7, 8), 0.1))
    assert hash(one) == hash(canonical(chain_of((7, 8), 0.1)))
    assert one != canonical(chain_of((2, 5, 8), 0.2))
    assert one != canonical(chain_of((2, 5, 16), 0.1))
    assert one == canonical(one)
