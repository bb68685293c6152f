"""One row per operator that may be part of a fused kernel.

A row's name is also the name of its device function in `kernels/elementwise.cuh`. Scalar attributes of
foreign formats (a LeakyRelu's alpha, a Clip's bounds) are ordinary trailing inputs here, so an operator is
always a function of its inputs alone. `meaning` is the float64 definition that every kernel is compared with.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
_erf = np.vectorize(math.erf, otypes=[np.float64])


@dataclass(frozen=True)
class Op:
    """An elementwise operator: `arity` inputs, broadcast against each other, give one output."""

    name: str
    arity: int
    meaning: Callable[..., Array]
    flops: int = 1


def _erf64(x: Array) -> Array:
    return _erf(x) if x.size else np.asarray(x, np.float64)


def _sigmoid(x: Array) -> Array:
    return 0.5 * (1.0 + np.tanh(0.5 * x))


def _gelu(x: Array) -> Array:
    return 0.5 * x * (1.0 + _erf64(x / math.sqrt(2.0)))


def _gelu_tanh(x: Array) -> Array:
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


_ROWS = (
    Op("add", 2, np.add),
    Op("sub", 2, np.subtract),
    Op("mul", 2, np.multiply),
    Op("div", 2, np.divide),
    Op("maximum", 2, np.maximum),
    Op("minimum", 2, np.minimum),
    Op("neg", 1, np.negative),
    Op("abs", 1, np.abs),
    Op("square", 1, np.square),
    Op("sqrt", 1, np.sqrt),
    Op("rsqrt", 1, lambda x: 1.0 / np.sqrt(x)),
    Op("reciprocal", 1, np.reciprocal),
    Op("exp", 1, np.exp, 4),
    Op("log", 1, np.log, 4),
    Op("sin", 1, np.sin, 4),
    Op("cos", 1, np.cos, 4),
    Op("tanh", 1, np.tanh, 8),
    Op("erf", 1, _erf64, 12),
    Op("sigmoid", 1, _sigmoid, 6),
    Op("silu", 1, lambda x: x * _sigmoid(x), 7),
    Op("relu", 1, lambda x: np.maximum(x, 0.0)),
    Op("leaky_relu", 2, lambda x, slope: np.where(x < 0, slope * x, x), 2),
    Op("clip", 3, lambda x, low, high: np.minimum(np.maximum(x, low), high), 2),
    Op("softplus", 1, lambda x: np.logaddexp(0.0, x), 8),
    Op("gelu", 1, _gelu, 16),
    Op("gelu_tanh", 1, _gelu_tanh, 14),
    Op("cast", 1, lambda x: x, 0),
)

ELEMENTWISE: dict[str, Op] = {row.name: row for row in _ROWS}


def standardize(x: Array, *, axis: int, epsilon: float) -> Array:
    """(x - mean) / sqrt(var + epsilon) over one axis, biased variance (Ba et al. 2016, eq. 3-4)."""
    centred = x - x.mean(axis=axis, keepdims=True)
    return np.asarray(centred / np.sqrt(np.square(centred).mean(axis=axis, keepdims=True) + epsilon))
