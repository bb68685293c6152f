"""Every way to write a normalisation that the rules know, as a function that appends ONNX nodes.

A spelling writes `y`, the standardized `x`, over one axis. Its parts are chosen independently: how the mean
is taken, how the square is, how the root divides, which opset.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import ModelProto

from onnx_models import Array, model, node

EPSILON = 1e-3


@dataclass
class Spelling:
    """Collects the nodes of one model on input `x` of a given shape."""

    shape: tuple[int, ...]
    axis: int = -1
    opset: int = 17
    dtype: Any = np.float32
    nodes: list[Any] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    inputs: dict[str, Array] = field(default_factory=dict)

    def op(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Append a node; returns the name of its output."""
        name = f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(node(op, inputs, name, **attributes))
        return name

    def number(self, value: float, dtype: Any = None) -> str:
        """Add a constant of no axes."""
        return self.array(np.asarray(value, dtype or self.dtype))

    def array(self, value: Array) -> str:
        """Add a constant."""
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name

    def random(self, *shape: int) -> Array:
        """Numbers with a mean, the same for every test that asks in the same order."""
        seed = len(self.constants) + len(self.inputs)
        return (np.random.default_rng(seed).standard_normal(shape) * 2 + 1).astype(self.dtype)

    def given(self, *shape: int) -> str:
        """Add an input of the model."""
        name = f"in{len(self.inputs)}"
        self.inputs[name] = self.random(*shape)
        return name

    def reduce(self, op: str, x: str, keepdims: int = 1, axis: int | None = None) -> str:
        """A reduction with its axes where the opset wants them."""
        axes = [self.axis if axis is None else axis]
        since = {"ReduceMean": 18, "ReduceSum": 13}[op]
        if self.opset < since:
            return self.op(op, x, axes=axes, keepdims=keepdims)
        return self.op(op, x, self.array(np.asarray(axes, np.int64)), keepdims=keepdims)

    def unsqueeze(self, x: str) -> str:
        """Put the reduced axis back."""
        axes = [self.axis % len(self.shape)]
        if self.opset < 13:
            return self.op("Unsqueeze", x, axes=axes)
        return self.op("Unsqueeze", x, self.array(np.asarray(axes, np.int64)))

    def build(self, output: str, *more: str) -> tuple[ModelProto, dict[str, Array]]:
        """The model and its sample inputs; `output` is returned as `y`."""
        inputs = {"x": self.random(*self.shape), **self.inputs}
        self.nodes.append(node("Identity", [output], "y"))
        return model(self.nodes, inputs, ["y", *more], self.constants, self.opset), inputs


Part = Callable[[Spelling, str], str]
Divide = Callable[[Spelling, str, str], str]


def _total_over_count(s: Spelling, x: str) -> str:
    return s.op("Div", s.reduce("ReduceSum", x), s.number(s.shape[s.axis]))


def _total_times_inverse(s: Spelling, x: str) -> str:
    return s.op("Mul", s.number(1.0 / s.shape[s.axis]), s.reduce("ReduceSum", x))


def _one_by_power(s: Spelling, c: str, v: str) -> str:
    return s.op("Mul", c, s.op("Pow", v, s.number(-0.5)))


def _inverse_of_product(s: Spelling, c: str, v: str) -> str:
    return s.op("Mul", s.op("Reciprocal", s.op("Sqrt", v)), c)


def _one_over(s: Spelling, c: str, v: str) -> str:
    return s.op("Mul", c, s.op("Div", s.number(1.0), s.op("Sqrt", v)))


def _root_of_inverse(s: Spelling, c: str, v: str) -> str:
    return s.op("Mul", c, s.op("Sqrt", s.op("Reciprocal", v)))


MEANS: dict[str, Part] = {
    "mean": lambda s, x: s.reduce("ReduceMean", x),
    "sum over count": _total_over_count,
    "sum times inverse": _total_times_inverse,
    "dropped axis": lambda s, x: s.unsqueeze(s.reduce("ReduceMean", x, keepdims=0)),
}
SQUARES: dict[str, Part] = {
    "pow": lambda s, x: s.op("Pow", x, s.number(2.0)),
    "integer pow": lambda s, x: s.op("Pow", x, s.number(2, np.int64)),
    "mul": lambda s, x: s.op("Mul", x, x),
}
DIVIDES: dict[str, Divide] = {
    "div": lambda s, c, v: s.op("Div", c, s.op("Sqrt", v)),
    "half power": lambda s, c, v: s.op("Div", c, s.op("Pow", v, s.number(0.5))),
    "power": _one_by_power,
    "reciprocal": _inverse_of_product,
    "one over": _one_over,
    "root of inverse": _root_of_inverse,
}


def written(s: Spelling, mean: Part, square: Part, divide: Divide, *, x: str = "x", epsilon_first: bool = False) -> str:
    """A normalisation of `x` from its parts."""
    centred = s.op("Sub", x, mean(s, x))
    terms = [mean(s, square(s, centred)), s.number(EPSILON)]
    return divide(s, centred, s.op("Add", *(terms[::-1] if epsilon_first else terms)))


def _root(s: Spelling, variance: str) -> str:
    return s.op("Sqrt", s.op("Add", variance, s.number(EPSILON)))


def moments(s: Spelling) -> str:
    """Var = E[x^2] - E[x]^2, floored at 0, as some exporters write it."""
    mean, power = s.reduce("ReduceMean", "x"), s.reduce("ReduceMean", s.op("Mul", "x", "x"))
    variance = s.op("Sub", power, s.op("Mul", mean, mean))
    floored = s.op("Max", variance, s.number(0.0))
    return s.op("Div", s.op("Sub", "x", mean), _root(s, floored))


def relu_moments(s: Spelling) -> str:
    """The same with a relu for the floor."""
    mean, power = s.reduce("ReduceMean", "x"), s.reduce("ReduceMean", s.op("Mul", "x", "x"))
    variance = s.op("Relu", s.op("Sub", power, s.op("Mul", mean, mean)))
    return s.op("Div", s.op("Sub", "x", mean), _root(s, variance))


def twins(s: Spelling) -> str:
    """The centred value is computed twice, from two means (tf.nn.moments)."""
    one, other = (s.op("Sub", "x", s.reduce("ReduceMean", "x")) for _ in range(2))
    return s.op("Div", one, _root(s, s.reduce("ReduceMean", s.op("Mul", other, other))))


def mean_first(s: Spelling) -> str:
    """mean - x, and the sign put right at the end."""
    away = s.op("Sub", s.reduce("ReduceMean", "x"), "x")
    return s.op("Neg", s.op("Div", away, _root(s, s.reduce("ReduceMean", s.op("Mul", away, away)))))


def mean_first_in_square(s: Spelling) -> str:
    """mean - x under the square only."""
    mean = s.reduce("ReduceMean", "x")
    away = s.op("Sub", mean, "x")
    variance = s.reduce("ReduceMean", s.op("Pow", away, s.number(2.0)))
    return s.op("Div", s.op("Sub", "x", mean), _root(s, variance))


def plus_negative(s: Spelling) -> str:
    """x + (-mean)."""
    centred = s.op("Add", s.op("Neg", s.reduce("ReduceMean", "x")), "x")
    return s.op("Div", centred, _root(s, s.reduce("ReduceMean", s.op("Mul", centred, centred))))


def scaled_root(s: Spelling) -> str:
    """centred * (gamma * rsqrt): the scale joins the root first."""
    centred = s.op("Sub", "x", s.reduce("ReduceMean", "x"))
    inverse = s.op("Reciprocal", _root(s, s.reduce("ReduceMean", s.op("Mul", centred, centred))))
    gamma = s.array(np.linspace(0.5, 2, s.shape[-1]).astype(s.dtype))
    return s.op("Mul", s.op("Mul", inverse, gamma), centred)


def dropped_until_root(s: Spelling) -> str:
    """The reduced axis comes back only after the square root."""
    centred = s.op("Sub", "x", MEANS["dropped axis"](s, "x"))
    variance = s.reduce("ReduceMean", s.op("Mul", centred, centred), keepdims=0)
    return s.op("Div", centred, s.unsqueeze(_root(s, variance)))


def casts_between(s: Spelling) -> str:
    """Half precision with the variance in single, as autocast exports it."""
    centred = s.op("Sub", "x", s.reduce("ReduceMean", "x"))
    wide = s.op("Cast", centred, to=1)
    variance = s.reduce("ReduceMean", s.op("Pow", wide, s.number(2.0, np.float32)))
    root = s.op("Sqrt", s.op("Add", variance, s.number(EPSILON, np.float32)))
    return s.op("Div", centred, s.op("Cast", root, to=10))


WHOLE: dict[str, Callable[[Spelling], str]] = {
    function.__name__: function
    for function in (
        moments, relu_moments, twins, mean_first, mean_first_in_square, plus_negative, scaled_root,
        dropped_until_root,
    )
}  # fmt: skip
