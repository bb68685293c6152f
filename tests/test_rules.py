"""The normal form: every spelling becomes one `standardize`, no meaning changes, every rule is needed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product

import numpy as np
import pytest

from onekernel.fusion.rules import normal_form
from onekernel.fusion.search import find_chains
from onekernel.fusion.spelling.norm import equal
from onekernel.fusion.spelling.registry import RULES
from onekernel.graph import interpreter
from onekernel.graph.draft import Draft
from onekernel.graph.model import Graph, Node, Value
from onekernel.graph.onnx_reader import load, read
from onnx_models import chain_errors, relative_error, run_onnx
from spellings import DIVIDES, EPSILON, MEANS, SQUARES, WHOLE, Spelling, casts_between, written

PARTS = list(product(MEANS, SQUARES, DIVIDES))
OPSETS = range(11, 21)


def check(spelling: Spelling, output: str) -> Graph:
    """Read, rewrite, and compare with ONNX Runtime; returns the normal form."""
    proto, inputs = spelling.build(output)
    graph = read(proto, inputs)
    normal = normal_form(graph)
    assert [node.op for node in normal.nodes].count("standardize") == 1
    (after,) = interpreter.run(normal, inputs).values()
    if "Unsqueeze" not in {node.op for node in graph.nodes}:
        (before,) = interpreter.run(graph, inputs).values()
        assert relative_error(after, before) < 1e-7
    assert relative_error(run_onnx(proto, inputs, ["y"])["y"], after) < 1e-5
    search = find_chains(normal)
    assert (len(search.chains), search.left) == (1, ())
    assert max(chain_errors(load(proto), inputs, search.chains)) < 1e-5
    return normal


@pytest.mark.parametrize(("mean", "square", "divide"), PARTS)
def test_every_combination_is_found(mean: str, square: str, divide: str) -> None:
    spelling = Spelling((2, 5, 8))
    normal = check(spelling, written(spelling, MEANS[mean], SQUARES[square], DIVIDES[divide]))
    assert [node.op for node in normal.nodes] == ["standardize", "transpose"]


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("axis", [-1, 2, 1, -2])
def test_every_opset_and_axis(opset: int, mean: str, axis: int) -> None:
    spelling = Spelling((2, 5, 8), axis=axis, opset=opset)
    output = written(spelling, MEANS[mean], SQUARES["pow"], DIVIDES["div"], epsilon_first=True)
    normal = check(spelling, output)
    norm = next(node for node in normal.nodes if node.op == "standardize")
    assert norm.attributes["axis"] == axis % 3
    assert norm.attributes["epsilon"] == pytest.approx(EPSILON)


@pytest.mark.parametrize("opset", [11, 13, 17, 18, 20])
@pytest.mark.parametrize("whole", WHOLE)
def test_every_whole_spelling(whole: str, opset: int) -> None:
    spelling = Spelling((3, 4, 6), opset=opset)
    check(spelling, WHOLE[whole](spelling))


def test_source_is_every_node_that_went_in() -> None:
    spelling = Spelling((2, 8))
    output = written(spelling, MEANS["mean"], SQUARES["pow"], DIVIDES["reciprocal"])
    proto, inputs = spelling.build(output)
    normal = normal_form(read(proto, inputs))
    norm = next(node for node in normal.nodes if node.op == "standardize")
    assert set(norm.source) == {node.name for node in proto.graph.node if node.op_type != "Identity"}


def test_casts_of_half_precision_do_not_hide_a_norm() -> None:
    spelling = Spelling((2, 5, 8), dtype=np.float16)
    proto, inputs = spelling.build(casts_between(spelling))
    search = find_chains(normal_form(read(proto, inputs)))
    assert (len(search.chains), search.left) == (1, ())
    assert {operand.dtype for operand in search.chains[0].operands} == {"float16"}
    assert max(chain_errors(load(proto), inputs, search.chains)) < 2e-3


@cache
def _known_spellings() -> tuple[Graph, ...]:
    """A graph for each spelling, enough of them to need every rule."""
    graphs = []
    for mean, square, divide in PARTS:
        spelling = Spelling((2, 3, 4))
        output = written(spelling, MEANS[mean], SQUARES[square], DIVIDES[divide], epsilon_first=True)
        graphs.append(read(*spelling.build(output)))
    for whole in WHOLE.values():
        spelling = Spelling((2, 3, 4))
        graphs.append(read(*spelling.build(whole(spelling))))
    return tuple(graphs)


def _missed() -> int:
    return sum(all(node.op != "standardize" for node in normal_form(graph).nodes) for graph in _known_spellings())


FOR_NORMS = sorted({rule for rules in RULES.values() for rule in rules}, key=lambda rule: rule.__name__)
NOT_FOR_NORMS = {"_cube"}  # the tanh GELU: see test_search


@pytest.mark.parametrize("removed", FOR_NORMS, ids=lambda rule: rule.__name__)
def test_every_rule_is_needed(removed: Callable[..., bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a rule some spelling is missed: a rule that can go, goes."""
    assert _missed() == 0
    for op, rules in RULES.items():
        monkeypatch.setitem(RULES, op, [rule for rule in rules if rule is not removed])
    assert _missed() > 0 or removed.__name__ in NOT_FOR_NORMS


def normalised(s: Spelling, *, epsilon: str | None = None, mean_axis: int = -1, root: str = "Sqrt") -> str:
    """The plain spelling with room for a fault."""
    centred = s.op("Sub", "x", s.reduce("ReduceMean", "x", axis=mean_axis))
    variance = s.reduce("ReduceMean", s.op("Mul", centred, centred))
    return s.op("Div", centred, s.op(root, s.op("Add", variance, epsilon or s.number(EPSILON))))


def mean_is_used(s: Spelling) -> str:
    mean = s.reduce("ReduceMean", "x")
    centred = s.op("Sub", "x", mean)
    variance = s.reduce("ReduceMean", s.op("Mul", centred, centred))
    normal = s.op("Div", centred, s.op("Sqrt", s.op("Add", variance, s.number(EPSILON))))
    return s.op("Add", normal, mean)


def centred_is_used(s: Spelling) -> str:
    centred = s.op("Sub", "x", s.reduce("ReduceMean", "x"))
    variance = s.reduce("ReduceMean", s.op("Mul", centred, centred))
    normal = s.op("Div", centred, s.op("Sqrt", s.op("Add", variance, s.number(EPSILON))))
    return s.op("Mul", normal, s.op("Tanh", centred))


def variance_of_another_value(s: Spelling) -> str:
    centred = s.op("Sub", "x", s.reduce("ReduceMean", "x"))
    other = s.op("Tanh", centred)
    variance = s.reduce("ReduceMean", s.op("Mul", other, other))
    return s.op("Div", centred, s.op("Sqrt", s.op("Add", variance, s.number(EPSILON))))


def mean_of_another_value(s: Spelling) -> str:
    centred = s.op("Sub", "x", s.reduce("ReduceMean", s.op("Tanh", "x")))
    variance = s.reduce("ReduceMean", s.op("Mul", centred, centred))
    inverse = s.op("Reciprocal", s.op("Sqrt", s.op("Add", variance, s.number(EPSILON))))
    return s.op("Mul", centred, inverse)


def several_axes(s: Spelling) -> str:
    axes = {"axes": [1, 2]}
    centred = s.op("Sub", "x", s.op("ReduceMean", "x", **axes))
    variance = s.op("ReduceMean", s.op("Mul", centred, centred), **axes)
    return s.op("Div", centred, s.op("Sqrt", s.op("Add", variance, s.number(EPSILON))))


def no_mean(s: Spelling) -> str:
    power = s.reduce("ReduceMean", s.op("Mul", "x", "x"))
    return s.op("Div", "x", s.op("Sqrt", s.op("Add", power, s.number(EPSILON))))


def no_mean_by_inverse(s: Spelling) -> str:
    power = s.reduce("ReduceMean", s.op("Mul", "x", "x"))
    return s.op("Mul", "x", s.op("Reciprocal", s.op("Sqrt", s.op("Add", power, s.number(EPSILON)))))


def epsilon_after_root(s: Spelling) -> str:
    centred = s.op("Sub", "x", s.reduce("ReduceMean", "x"))
    root = s.op("Sqrt", s.reduce("ReduceMean", s.op("Mul", centred, centred)))
    return s.op("Div", centred, s.op("Add", root, s.number(EPSILON)))


def epsilon_is_a_floor(s: Spelling) -> str:
    centred = s.op("Sub", "x", s.reduce("ReduceMean", "x"))
    variance = s.reduce("ReduceMean", s.op("Mul", centred, centred))
    return s.op("Div", centred, s.op("Sqrt", s.op("Max", variance, s.number(EPSILON))))


def computed_epsilon(s: Spelling) -> str:
    return normalised(s, epsilon=s.op("Exp", s.op("ReduceMax", "x", keepdims=0)))


def negative_epsilon(s: Spelling) -> str:
    return normalised(s, epsilon=s.number(-1e-5))


def epsilon_of_more_axes(s: Spelling) -> str:
    return normalised(s, epsilon=s.array(np.full((1, 1, 1, 1), EPSILON, np.float32)))


def wrong_axis_pairing(s: Spelling) -> str:
    return normalised(s, mean_axis=1)


FAULTS = {
    mean_is_used: "the mean 'reducemean_0' is also used by",
    centred_is_used: "the centred value 'sub_1' is also used by 'n_tanh_7'",
    variance_of_another_value: "not that of the value it scales",
    mean_of_another_value: "the subtracted value is not the mean of the same input",
    several_axes: "several axes",
    no_mean: "no mean is subtracted",
    no_mean_by_inverse: "no mean is subtracted",
    epsilon_after_root: "epsilon is added after the square root",
    epsilon_is_a_floor: "epsilon is a floor",
    computed_epsilon: "epsilon is not a constant",
    negative_epsilon: "epsilon is negative (-1e-05)",
    epsilon_of_more_axes: "more axes than its input",
    wrong_axis_pairing: "the mean is over axes [1], the variance over axes [2]",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_what_is_no_norm_is_left_with_its_reason(fault: Callable[[Spelling], str]) -> None:
    spelling = Spelling((2, 5, 8))
    proto, inputs = spelling.build(fault(spelling))
    normal = normal_form(read(proto, inputs))
    search = find_chains(normal)
    assert search.chains == ()
    assert [FAULTS[fault] in left.reason for left in search.left] == [True]
    assert set(search.left[0].source) <= {node.name for node in proto.graph.node}
    (after,) = interpreter.run(normal, inputs).values() if fault is not computed_epsilon else [None]
    assert after is None or relative_error(run_onnx(proto, inputs, ["y"])["y"], after) < 1e-5


def test_an_intermediate_that_the_model_returns_is_kept() -> None:
    spelling = Spelling((2, 8))
    output = normalised(spelling)
    proto, inputs = spelling.build(output, "sub_1")
    search = find_chains(normal_form(read(proto, inputs)))
    assert search.chains == ()
    assert "'sub_1' is an output of the model" in search.left[0].reason


@pytest.mark.parametrize("op", ["Pow", "Div", "Mul"])
@pytest.mark.parametrize("number", [2.0, 3.0, 0.5, -0.5, 1.0, 0.125, 8.0])
def test_a_constant_of_more_axes_adds_axes(op: str, number: float) -> None:
    """No rule may drop them."""
    spelling = Spelling((2, 8))
    x = spelling.op("ReduceSum", spelling.op("Exp", "x"), spelling.array(np.asarray([-1], np.int64)))
    constant = spelling.array(np.full((1, 1, 1), number, np.float32))
    proto, inputs = spelling.build(spelling.op(op, x, constant))
    (after,) = interpreter.run(normal_form(read(proto, inputs)), inputs).values()
    assert relative_error(run_onnx(proto, inputs, ["y"])["y"], after) < 1e-5


def test_twice_written_norms_in_a_row_are_compared_in_linear_time() -> None:
    """Each level reads the one below twice; comparing both readings anew at each level would take 2^60 steps."""
    one, other, nodes = "x", "x", []
    for level in range(60):
        for side, below in (("a", one), ("b", other)):
            mean, centred = f"mean_{side}{level}", f"centred_{side}{level}"
            nodes.append(Node("reduce_mean", (below,), (mean,), {"axes": (1,), "keepdims": True}))
            nodes.append(Node("sub", (below, mean), (centred,)))
        one, other = f"centred_a{level}", f"centred_b{level}"
    names = ["x", *(name for node in nodes for name in node.outputs)]
    values = {name: Value(name, "float32", (2, 1 if "mean" in name else 8)) for name in names}
    draft = Draft(Graph(tuple(nodes), values, ("x",), (one, other)))
    assert equal(draft, one, other)
    assert not equal(draft, one, "x")
