"""Knows the spellings of normalisations: short rules that rewrite a graph until one pattern fits them all.

Each rule is registered for the operators it starts from, looks upwards only, and returns whether it changed the
draft. Rules keep the meaning of every value that the original model names. It refuses to know chains.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from onekernel.fusion.norm import Norm, equal, is_centred, is_same, match, origin
from onekernel.graph.draft import Draft
from onekernel.graph.model import Graph, Node

Rule = Callable[[Draft, Node], bool]
RULES: dict[str, list[Rule]] = {}


def normal_form(graph: Graph) -> Graph:
    """Rewrite a graph to its fixed point; each normalisation that can be fused is one `standardize` node."""
    draft = Draft(graph)
    while sum(_rewrite_at(draft, key) for key in draft.keys()):
        pass
    return draft.freeze()


def _rewrite_at(draft: Draft, key: str) -> bool:
    node = draft.get(key)
    return node is not None and any(rule(draft, node) for rule in RULES.get(node.op, ()))


def _rule(*ops: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        for op in ops:
            RULES.setdefault(op, []).append(rule)
        return rule

    return register


def _put(draft: Draft, node: Node, op: str, *inputs: str, absorbed: tuple[Node | None, ...] = ()) -> bool:
    """Compute the output of `node` by one node of another spelling."""
    draft.replace(node, [Node(op, inputs, node.outputs)], [item for item in absorbed if item is not None])
    return True


_POWERS = {2.0: "square", 0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}


@_rule("pow")
def _named_power(draft: Draft, node: Node) -> bool:
    """pow(x, 2) -> square(x), and the other exponents that have a name."""
    exponent = draft.scalar(node.inputs[1])
    if exponent not in _POWERS:
        return False
    return _put(draft, node, _POWERS[exponent], node.inputs[0])


@_rule("pow")
def _cube(draft: Draft, node: Node) -> bool:
    """pow(x, 3) -> mul(square(x), x)."""
    if draft.scalar(node.inputs[1]) != 3.0:
        return False
    square = draft.between(node.outputs[0], "square")
    made = [
        Node("square", node.inputs[:1], (square,)),
        Node("mul", (square, node.inputs[0]), node.outputs),
    ]
    draft.replace(node, made)
    return True


@_rule("mul")
def _self_product(draft: Draft, node: Node) -> bool:
    """mul(x, x) -> square(x)."""
    one, other = node.inputs
    return one == other and _put(draft, node, "square", one)


@_rule("div")
def _one_over(draft: Draft, node: Node) -> bool:
    """div(1, x) -> reciprocal(x)."""
    one = draft.values[node.inputs[0]]
    same_shape = draft.values[node.outputs[0]].shape == draft.values[node.inputs[1]].shape
    if not same_shape or one.constant is None or draft.scalar(one.name) != 1.0:
        return False
    return _put(draft, node, "reciprocal", node.inputs[1])


@_rule("reciprocal")
def _inverse_root(draft: Draft, node: Node) -> bool:
    """reciprocal(sqrt(x)) -> rsqrt(x)."""
    root = draft.made_by(node.inputs[0], "sqrt")
    return root is not None and _put(draft, node, "rsqrt", root.inputs[0], absorbed=(root,))


@_rule("sqrt")
def _root_of_inverse(draft: Draft, node: Node) -> bool:
    """sqrt(reciprocal(x)) -> rsqrt(x)."""
    inverse = draft.made_by(node.inputs[0], "reciprocal")
    return inverse is not None and _put(draft, node, "rsqrt", inverse.inputs[0], absorbed=(inverse,))


@_rule("div")
def _divided_by_root(draft: Draft, node: Node) -> bool:
    """div(centred, sqrt(v)) -> mul(centred, rsqrt(v))."""
    numerator, denominator = node.inputs
    root = draft.made_by(origin(draft, denominator), "sqrt")
    if root is None or not is_centred(draft, numerator):
        return False
    inverse = draft.between(root.outputs[0], "inverse")
    made = [
        Node("rsqrt", root.inputs, (inverse,)),
        Node("mul", (numerator, inverse), node.outputs),
    ]
    draft.replace(node, made, [*_between(draft, denominator), root])
    return True


@_rule("mul", "add")
def _number_second(draft: Draft, node: Node) -> bool:
    """add(constant, x) -> add(x, constant), and mul alike."""
    first, second = node.inputs
    swap = draft.scalar(first) is not None and draft.scalar(second) is None
    return swap and _put(draft, node, node.op, second, first)


@_rule("add")
def _plus_negative(draft: Draft, node: Node) -> bool:
    """add(x, neg(mean)) -> sub(x, mean)."""
    for kept, other in (node.inputs, node.inputs[::-1]):
        negative = draft.made_by(other, "neg")
        if negative is not None and draft.made_by(negative.inputs[0], "reduce_mean"):
            return _put(draft, node, "sub", kept, negative.inputs[0], absorbed=(negative,))
    return False


@_rule("sub")
def _mean_first(draft: Draft, node: Node) -> bool:
    """sub(mean of x, x) -> neg(sub(x, mean of x))."""
    mean = draft.made_by(node.inputs[0], "reduce_mean")
    if mean is None or not equal(draft, mean.inputs[0], node.inputs[1]):
        return False
    centred = draft.between(node.outputs[0], "centred")
    made = [Node("sub", node.inputs[::-1], (centred,)), Node("neg", (centred,), node.outputs)]
    draft.replace(node, made)
    return True


@_rule("square")
def _sign_squared(draft: Draft, node: Node) -> bool:
    """square(neg(x)) -> square(x)."""
    negative = draft.made_by(node.inputs[0], "neg", "abs")
    return negative is not None and _put(draft, node, "square", *negative.inputs, absorbed=(negative,))


@_rule("mul", "div")
def _sign_outside(draft: Draft, node: Node) -> bool:
    """mul(neg(centred), y) -> neg(mul(centred, y)), and div alike."""
    for place in (0, 1) if node.op == "mul" else (0,):
        negative = draft.made_by(node.inputs[place], "neg")
        if negative is not None and is_centred(draft, negative.inputs[0]):
            product = draft.between(node.outputs[0], "positive")
            inputs = (negative.inputs[0], node.inputs[1 - place])
            made = [Node(node.op, inputs, (product,)), Node("neg", (product,), node.outputs)]
            draft.replace(node, made, [negative])
            return True
    return False


@_rule("mul")
def _scaled_root(draft: Draft, node: Node) -> bool:
    """mul(centred, mul(root, scale)) -> mul(mul(centred, root), scale)."""
    for centred, factor in (node.inputs, node.inputs[::-1]):
        inner = draft.made_by(factor, "mul")
        if inner is None or not is_centred(draft, centred):
            continue
        for root, scale in (inner.inputs, inner.inputs[::-1]):
            if draft.made_by(origin(draft, root), "rsqrt"):
                normal = draft.between(centred, "normal")
                made = [Node("mul", (centred, root), (normal,)), Node("mul", (normal, scale), node.outputs)]
                draft.replace(node, made, [inner])
                return True
    return False


@_rule("div", "mul")
def _sum_over_count(draft: Draft, node: Node) -> bool:
    """div(reduce_sum(x), n) or mul(reduce_sum(x), 1/n) -> reduce_mean(x), n being what was summed."""
    total, number = draft.made_by(node.inputs[0], "reduce_sum"), draft.scalar(node.inputs[1])
    if total is None or not number:
        return False
    shape = draft.values[total.inputs[0]].shape
    count = np.prod([shape[axis] for axis in total.attributes["axes"]])
    if not np.isclose(number if node.op == "div" else 1.0 / number, count, rtol=1e-6):
        return False
    draft.replace(node, [Node("reduce_mean", total.inputs, node.outputs, total.attributes)], [total])
    return True


@_rule("Unsqueeze", "Reshape")
def _axis_put_back(draft: Draft, node: Node) -> bool:
    """Unsqueeze(reduce_mean(x) that dropped its axes) -> reduce_mean(x) that keeps them."""
    mean = draft.made_by(node.inputs[0], "reduce_mean")
    if mean is None or mean.attributes["keepdims"]:
        return False
    if draft.values[node.outputs[0]].shape != _kept_shape(draft, mean):
        return False
    attributes = {**mean.attributes, "keepdims": True}
    draft.replace(node, [Node("reduce_mean", mean.inputs, node.outputs, attributes)], [mean])
    return True


_POINTWISE = ("add", "maximum", "sqrt", "rsqrt", "reciprocal", "cast")


@_rule("Unsqueeze", "Reshape")
def _axis_put_back_earlier(draft: Draft, node: Node) -> bool:
    """Unsqueeze(f(v, number)) -> f(Unsqueeze(v), number), on the way to a mean that dropped its axes."""
    inner = draft.made_by(node.inputs[0], *_POINTWISE)
    if inner is None or any(draft.scalar(name) is None for name in inner.inputs[1:]):
        return False
    if not _dropped_mean_above(draft, inner.inputs[0], draft.values[node.outputs[0]].shape):
        return False
    back = draft.between(inner.inputs[0], "kept", draft.values[node.outputs[0]].shape)
    made = [
        Node(node.op, (inner.inputs[0], *node.inputs[1:]), (back,)),
        Node(inner.op, (back, *inner.inputs[1:]), node.outputs, inner.attributes),
    ]
    draft.replace(node, made, [inner])
    return True


@_rule("sub")
def _mean_of_square(draft: Draft, node: Node) -> bool:
    """sub(mean of square(x), square(mean of x)) -> mean of square(sub(x, mean of x))."""
    moment, squared = draft.made_by(node.inputs[0], "reduce_mean"), draft.made_by(node.inputs[1], "square")
    power = moment and draft.made_by(moment.inputs[0], "square")
    mean = squared and draft.made_by(squared.inputs[0], "reduce_mean")
    if not moment or not power or not squared or not mean or not mean.attributes["keepdims"]:
        return False
    if not equal(draft, power.inputs[0], mean.inputs[0]) or dict(moment.attributes) != dict(mean.attributes):
        return False
    x = mean.inputs[0]
    centred, square = draft.between(x, "centred"), draft.between(x, "square")
    made = [
        Node("sub", (x, mean.outputs[0]), (centred,)),
        Node("square", (centred,), (square,)),
        Node("reduce_mean", (square,), node.outputs, moment.attributes),
    ]
    draft.replace(node, made, [moment, power, squared])
    return True


@_rule("maximum", "relu", "abs")
def _variance_is_positive(draft: Draft, node: Node) -> bool:
    """maximum(mean of square, 0) -> mean of square; relu and abs alike."""
    mean = draft.made_by(node.inputs[0], "reduce_mean")
    square = mean and draft.made_by(mean.inputs[0], "square")
    floor = draft.scalar(node.inputs[1]) if node.op == "maximum" else 0.0
    if not mean or not square or floor is None or floor > 0.0:
        return False
    draft.replace(node, [Node("reduce_mean", mean.inputs, node.outputs, mean.attributes)], [mean])
    return True


@_rule("mul")
def _standardize(draft: Draft, node: Node) -> bool:
    """The one pattern of `norm` -> standardize(x)."""
    norm = match(draft, node)
    if not isinstance(norm, Norm):
        return False
    made = Node("standardize", (norm.x,), node.outputs, {"axis": norm.axis, "epsilon": norm.epsilon})
    draft.replace(node, [made], norm.nodes)
    return True


def _between(draft: Draft, name: str) -> list[Node]:
    """The casts and idle transposes that stand over a value, readers first."""
    met: list[Node] = []
    while (node := draft.producer(name)) is not None and is_same(node):
        met.append(node)
        name = node.inputs[0]
    return met


def _kept_shape(draft: Draft, mean: Node) -> tuple[int, ...]:
    shape = draft.values[mean.inputs[0]].shape
    return tuple(1 if axis in mean.attributes["axes"] else size for axis, size in enumerate(shape))


def _dropped_mean_above(draft: Draft, name: str, kept: tuple[int, ...]) -> bool:
    while (node := draft.made_by(name, *_POINTWISE)) is not None:
        name = node.inputs[0]
    mean = draft.made_by(name, "reduce_mean")
    return mean is not None and not mean.attributes["keepdims"] and _kept_shape(draft, mean) == kept
