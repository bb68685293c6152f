"""The story on one page: numbers, then speed, then footprint, then the verdict."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from onekernel.verify.footprint import Tally
from onekernel.verify.footprint import measure as measure_footprint
from onekernel.verify.limits import LIMITS, Limit
from onekernel.verify.numbers import Metric, Sides, judge
from onekernel.verify.place import place_of_sides
from onekernel.verify.plan import Plan
from onekernel.verify.speed import measure as measure_speed
from onekernel.verify.subject import Inputs, Subject, check_inputs, subject_of
from onekernel.verify.verdict import Verdict

log = logging.getLogger("onekernel")


def verify(
    before: Callable[..., Any] | Subject,
    after: Callable[..., Any] | Subject,
    inputs: Inputs,
    *,
    limits: Sequence[Limit] = LIMITS,
    metrics: Sequence[Metric] = (),
    plan: Plan | None = None,
) -> Verdict:
    """Prove that `after` computes what `before` does, faster, and at what cost.

    Each side is a callable (positional inputs as `f(*inputs)`, a mapping as `f(**inputs)`), a torch module in
    evaluation mode, or a Subject. `limits` overrides rows of LIMITS; `metrics` are numbers of the caller's own. What is
    wrong is not timed. Raises InvalidInput for sides or inputs that cannot be used.
    """
    plan, inputs = plan or Plan(), check_inputs(inputs)
    table = (*limits, *LIMITS)
    sides = {"before": subject_of(before, "before"), "after": subject_of(after, "after")}
    place = place_of_sides(sides["before"], sides["after"], inputs)
    tallies = {name: Tally(side) for name, side in sides.items()}
    log.info("comparing numbers")
    numbers = judge(Sides(tallies["before"].subject, tallies["after"].subject, inputs, plan, table, metrics))
    verdict = Verdict(
        numbers.comparisons, None, None, numbers.doubts, numbers.notes, numbers.divergence, plan.expect, table
    )
    if verdict.decision != "keep" or not plan.seconds:
        return verdict
    log.info("timing both in turn")
    speed = measure_speed(sides["before"], sides["after"], inputs, plan, table, place)
    log.info("measuring memory and energy")
    footprint = measure_footprint(sides, inputs, plan, place, tallies)
    notes = (*numbers.notes, *speed.notes, *footprint.notes)
    return Verdict(numbers.comparisons, speed, footprint, (), notes, None, plan.expect, table)
