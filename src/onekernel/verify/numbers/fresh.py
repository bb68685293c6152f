"""Inputs that nobody has seen: an answer that was remembered, or left in memory, is wrong for them."""

from __future__ import annotations

from typing import Any

import numpy as np

from onekernel.verify.numbers.values import Array, is_tensor, leaves, map_leaves, to_numpy
from onekernel.verify.plan import Plan


def fresh_inputs(inputs: Any, plan: Plan, random: np.random.Generator) -> Any:
    """Make one more call's inputs, of the same shapes and dtypes.

    Values are drawn from those of the user's inputs, one by one: they stay in a range that the model knows, indices
    stay indices. Floats that are all equal get spread by a tenth. Text and plain numbers stay.
    """
    if plan.fresh is not None:
        return plan.fresh(random)
    return map_leaves(inputs, lambda leaf: _like(leaf, _draw(to_numpy(leaf), random)))


def can_be_fresh(inputs: Any, plan: Plan) -> bool:
    """Say whether there is anything to make up."""
    return plan.fresh is not None or any(is_tensor(leaf) for _, leaf in leaves(inputs, "inputs"))


def _draw(array: Array, random: np.random.Generator) -> Array:
    if not array.size:
        return array
    drawn: Array = random.choice(array.reshape(-1), array.shape)
    if array.dtype.kind in "fV" and (array == array.reshape(-1)[0]).all():
        noise = 0.1 * random.standard_normal(array.shape)
        spread: Array = (drawn.astype(np.float64) * (1 + noise) + (drawn == 0) * noise).astype(array.dtype)
        return spread
    return drawn


def _like(leaf: Any, array: Array) -> Any:
    if isinstance(leaf, np.ndarray):
        return array.astype(leaf.dtype)
    return leaf.detach().new_tensor(array.astype(np.float32) if array.dtype.name == "bfloat16" else array)
