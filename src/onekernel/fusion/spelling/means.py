"""Knows the spellings of means and variances: sums over counts, dropped axes, moments."""

from __future__ import annotations

import numpy as np

from onekernel.fusion.spelling.norm import equal
from onekernel.fusion.spelling.registry import keeps_shape, rule
from onekernel.graph.draft import Draft
from onekernel.graph.model import Node


@rule("div", "mul")
def _sum_over_count(draft: Draft, node: Node) -> bool:
    """div(reduce_sum(x), n) or mul(reduce_sum(x), 1/n) -> reduce_mean(x), n being what was summed."""
    total, number = draft.made_by(node.inputs[0], "reduce_sum"), draft.scalar(node.inputs[1])
    if total is None or not number or not keeps_shape(draft, node, total.outputs[0]):
        return False
    shape = draft.values[total.inputs[0]].shape
    count = np.prod([shape[axis] for axis in total.attributes["axes"]])
    if not np.isclose(number if node.op == "div" else 1.0 / number, count, rtol=1e-6):
        return False
    draft.replace(node, [Node("reduce_mean", total.inputs, node.outputs, total.attributes)], [total])
    return True


@rule("Unsqueeze", "Reshape")
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


@rule("Unsqueeze", "Reshape")
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


@rule("sub")
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


@rule("maximum", "relu", "abs")
def _variance_is_positive(draft: Draft, node: Node) -> bool:
    """maximum(mean of square, 0) -> mean of square; relu and abs alike."""
    mean = draft.made_by(node.inputs[0], "reduce_mean")
    square = mean and draft.made_by(mean.inputs[0], "square")
    floor = draft.scalar(node.inputs[1]) if node.op == "maximum" else 0.0
    if not mean or not square or not keeps_shape(draft, node, mean.outputs[0]):
        return False
    if floor is None or floor > 0.0:
        return False
    draft.replace(node, [Node("reduce_mean", mean.inputs, node.outputs, mean.attributes)], [mean])
    return True


def _kept_shape(draft: Draft, mean: Node) -> tuple[int, ...]:
    shape = draft.values[mean.inputs[0]].shape
    return tuple(1 if axis in mean.attributes["axes"] else size for axis, size in enumerate(shape))


def _dropped_mean_above(draft: Draft, name: str, kept: tuple[int, ...]) -> bool:
    while (node := draft.made_by(name, *_POINTWISE)) is not None:
        name = node.inputs[0]
    mean = draft.made_by(name, "reduce_mean")
    return mean is not None and not mean.attributes["keepdims"] and _kept_shape(draft, mean) == kept
