"""Knows the spellings of powers, signs and the order of operands. It refuses to know means and roots."""

from __future__ import annotations

from onekernel.fusion.spelling.norm import equal, is_centred
from onekernel.fusion.spelling.registry import keeps_shape, put, rule
from onekernel.graph.draft import Draft
from onekernel.graph.model import Node

_POWERS = {2.0: "square", 0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}


@rule("pow")
def _named_power(draft: Draft, node: Node) -> bool:
    """pow(x, 2) -> square(x), and the other exponents that have a name."""
    exponent = draft.scalar(node.inputs[1])
    if exponent not in _POWERS:
        return False
    return put(draft, node, _POWERS[exponent], node.inputs[0])


@rule("pow")
def _cube(draft: Draft, node: Node) -> bool:
    """pow(x, 3) -> mul(square(x), x)."""
    if draft.scalar(node.inputs[1]) != 3.0 or not keeps_shape(draft, node, node.inputs[0]):
        return False
    square = draft.between(node.outputs[0], "square")
    made = [
        Node("square", node.inputs[:1], (square,)),
        Node("mul", (square, node.inputs[0]), node.outputs),
    ]
    draft.replace(node, made)
    return True


@rule("mul")
def _self_product(draft: Draft, node: Node) -> bool:
    """mul(x, x) -> square(x)."""
    one, other = node.inputs
    return one == other and put(draft, node, "square", one)


@rule("div")
def _one_over(draft: Draft, node: Node) -> bool:
    """div(1, x) -> reciprocal(x)."""
    one = draft.values[node.inputs[0]]
    same_shape = draft.values[node.outputs[0]].shape == draft.values[node.inputs[1]].shape
    if not same_shape or one.constant is None or draft.scalar(one.name) != 1.0:
        return False
    return put(draft, node, "reciprocal", node.inputs[1])


@rule("mul", "add")
def _number_second(draft: Draft, node: Node) -> bool:
    """add(constant, x) -> add(x, constant), and mul alike."""
    first, second = node.inputs
    swap = draft.scalar(first) is not None and draft.scalar(second) is None
    return swap and put(draft, node, node.op, second, first)


@rule("add")
def _plus_negative(draft: Draft, node: Node) -> bool:
    """add(x, neg(mean)) -> sub(x, mean)."""
    for kept, other in (node.inputs, node.inputs[::-1]):
        negative = draft.made_by(other, "neg")
        if negative is not None and draft.made_by(negative.inputs[0], "reduce_mean"):
            return put(draft, node, "sub", kept, negative.inputs[0], absorbed=(negative,))
    return False


@rule("sub")
def _mean_first(draft: Draft, node: Node) -> bool:
    """sub(mean of x, x) -> neg(sub(x, mean of x))."""
    mean = draft.made_by(node.inputs[0], "reduce_mean")
    if mean is None or not equal(draft, mean.inputs[0], node.inputs[1]):
        return False
    centred = draft.between(node.outputs[0], "centred")
    made = [Node("sub", node.inputs[::-1], (centred,)), Node("neg", (centred,), node.outputs)]
    draft.replace(node, made)
    return True


@rule("square")
def _sign_squared(draft: Draft, node: Node) -> bool:
    """square(neg(x)) -> square(x)."""
    negative = draft.made_by(node.inputs[0], "neg", "abs")
    return negative is not None and put(draft, node, "square", *negative.inputs, absorbed=(negative,))


@rule("mul", "div")
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
