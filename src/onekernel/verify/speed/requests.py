"""Requests that are never quite the same: who remembers an answer is not faster for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import cycle
from math import prod
from typing import Any

import numpy as np

from onekernel.verify.numbers.fresh import fresh_inputs
from onekernel.verify.numbers.values import copied, map_leaves
from onekernel.verify.plan import Plan
from onekernel.verify.sides.subject import Inputs

POOL = 4  # inputs in turn
Settle = Callable[[], object]  # waits until what was enqueued has ended


class Requests:
    """Hands out inputs; in each, two elements have changed places since it was last given.

    `change`: that costs time, which is not the side's: a count of requests per second goes without. Without rounds in
    the plan, only the user's own inputs are used, as they are.
    """

    def __init__(self, inputs: Inputs, plan: Plan, *, change: bool = True) -> None:
        self._random = np.random.default_rng(plan.seed)
        made_up = (fresh_inputs(inputs, plan, self._random) for _ in range(POOL - 1 if plan.rounds else 0))
        self._turn = cycle([copied(inputs), *made_up])
        self._change = change and plan.rounds > 0

    def next(self) -> Inputs:
        """Return the next inputs, to be used before another call of this."""
        inputs: Inputs = next(self._turn)
        if self._change:
            map_leaves(inputs, self._swap)
        return inputs

    def _swap(self, leaf: Any) -> Any:
        shape = tuple(leaf.shape)
        if prod(shape) > 1:
            places = self._random.integers(0, prod(shape), 2)
            one, two = (tuple(map(int, np.unravel_index(place, shape))) for place in places)
            kept = leaf[one].clone() if hasattr(leaf, "detach") else leaf[one]
            leaf[one] = leaf[two]
            leaf[two] = kept
        return leaf


def timed(call: Callable[[Inputs], Any], requests: Requests, settle: Settle) -> Callable[[], float]:
    """Return a function that answers one request and returns the seconds from its arrival to the end of its work."""

    def sample() -> float:
        inputs = requests.next()
        settle()
        start = time.perf_counter()
        result = call(inputs)
        settle()
        seconds = time.perf_counter() - start
        del result
        return seconds

    return sample
