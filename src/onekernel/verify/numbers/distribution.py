"""Random results: not whether two are equal, but whether they are drawn from one distribution.

The energy distance of two samples (Szekely and Rizzo, Energy statistics, 2013), against what it is when the same
answers are dealt to the two sides at random: a permutation test, exact for any distribution and dimension.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from onekernel.errors import InvalidInput
from onekernel.verify.compare import Comparison
from onekernel.verify.limits import Limit
from onekernel.verify.numbers.values import Array, arrays_of, copied
from onekernel.verify.plan import Plan
from onekernel.verify.sides.subject import Inputs, Subject

DRAWS = 64  # answers of each side


def compare_distributions(before: Subject, after: Subject, inputs: Inputs, plan: Plan) -> Iterator[Comparison]:
    """Compare each result by DRAWS answers of each side to the same input. Raises InvalidInput for random shapes."""
    ours, theirs = (_draw(side, inputs) for side in (before, after))
    random = np.random.default_rng(plan.seed)
    for name, sample in ours.items():
        if name not in theirs or theirs[name].shape != sample.shape:
            limit = Limit("model", "distribution", 0.0, "the same results")
            got = list(theirs[name].shape[1:]) if name in theirs else "nothing"
            yield Comparison(name, float("inf"), limit, "shape", f"expected {list(sample.shape[1:])}, got {got}")
        else:
            yield _compare(name, sample, theirs[name], plan.confidence, random)


def _draw(side: Subject, inputs: Inputs) -> dict[str, Array]:
    answers = [arrays_of(side.call(copied(inputs))) for _ in range(DRAWS)]
    try:
        return {name: np.stack([answer[name] for answer in answers]) for name in answers[0]}
    except (KeyError, ValueError) as error:
        todo = "wrap both sides in callables that return a summary of one shape"
        got = "results whose names or shapes are random too"
        raise InvalidInput(expected="random results of one shape", got=got, todo=todo) from error


def _compare(name: str, one: Array, two: Array, confidence: float, random: np.random.Generator) -> Comparison:
    together = np.concatenate([one, two]).reshape(2 * DRAWS, -1).astype(np.float64)
    if not np.isfinite(together).all():
        limit = Limit("model", "distribution", 0.0, "random results are numbers")
        return Comparison(name, float("inf"), limit, "nonfinite", "a NaN or an infinity among the answers")
    distances = _distances(together)
    first = np.arange(2 * DRAWS) < DRAWS
    times = int(4 / (1 - confidence)) + 1
    dealt = np.array([random.permutation(first) for _ in range(times)])
    critical = float(np.quantile(_energy(distances, dealt), confidence))
    energy = float(_energy(distances, first[None])[0])
    limit = Limit("model", "distribution", critical, f"{confidence:.1%} of the deals at random lie below")
    detail = f"energy distance of {DRAWS} answers each"
    return Comparison(name, energy, limit, "" if energy <= critical else "distribution", detail)


def _distances(points: Array) -> Array:
    return np.array([np.sqrt(np.square(points - point).sum(axis=1)) for point in points])


def _energy(distances: Array, first: Array) -> Array:
    """Return 2 E|x - y| - E|x - x'| - E|y - y'| over 2 E|x - y| for each row of `first`, which marks the x."""
    x = first.astype(np.float64)
    y = 1 - x
    across = ((x @ distances) * y).sum(axis=1)
    within = ((x @ distances) * x).sum(axis=1) + ((y @ distances) * y).sum(axis=1)
    energy: Array = np.divide(2 * across - within, 2 * across, out=np.zeros(len(x)), where=across > 0)
    return energy
