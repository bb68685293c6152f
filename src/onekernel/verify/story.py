"""The story on one page: numbers, then speed, then footprint, then the verdict."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from onekernel.errors import InvalidInput
from onekernel.verify.compare import Comparison
from onekernel.verify.footprint import Tally
from onekernel.verify.footprint import measure as measure_footprint
from onekernel.verify.limits import LIMITS, Limit
from onekernel.verify.numbers import Metric, Sides, judge
from onekernel.verify.numbers.answers import fault
from onekernel.verify.plan import Plan
from onekernel.verify.sides.place import place_of_sides
from onekernel.verify.sides.subject import Inputs, Subject, check_inputs, subject_of
from onekernel.verify.speed import measure as measure_speed
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
    plan = plan if numbers.fresh_works else replace(plan, rounds=0)
    sides = {name: replace(side, call=_naming(name, side.call)) for name, side in sides.items()}
    try:
        log.info("timing both in turn")
        speed = measure_speed(sides["before"], sides["after"], inputs, plan, table, place)
        log.info("measuring memory and energy")
        footprint = measure_footprint(sides, inputs, plan, place, tallies)
    except _Failed as failed:
        return replace(verdict, numbers=(*verdict.numbers, failed.fault()))
    notes = (*numbers.notes, *speed.notes, *footprint.notes)
    return replace(verdict, speed=speed, footprint=footprint, notes=notes)


class _Failed(Exception):
    """A side failed while it was timed, after many right answers."""

    def __init__(self, name: str, error: Exception) -> None:
        super().__init__(name, error)
        self.name, self.error = name, error

    def fault(self) -> Comparison:
        """State it as a failed comparison. Raises InvalidInput when it was the original that failed."""
        said = f"{type(self.error).__name__}: {self.error}"
        if self.name == "before":
            todo = "check that it runs again and again, and from several threads where the plan asks for them"
            raise InvalidInput(expected="an original that answers while it is timed", got=said, todo=todo) from self
        return fault("call", "raised", f"{said} (while it was timed)")


def _naming(name: str, call: Callable[[Inputs], Any]) -> Callable[[Inputs], Any]:
    def named(inputs: Inputs) -> Any:
        try:
            return call(inputs)
        except Exception as error:
            raise _Failed(name, error) from error

    return named
