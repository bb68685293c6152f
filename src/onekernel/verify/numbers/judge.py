"""Ask both sides the same, on the user's inputs and on inputs made up for the occasion, and compare every answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from onekernel.errors import InvalidInput
from onekernel.verify.compare import Comparison, compare
from onekernel.verify.limits import Limit, find_for_model
from onekernel.verify.numbers.answers import Answers, fault
from onekernel.verify.numbers.distribution import compare_distributions
from onekernel.verify.numbers.fresh import can_be_fresh, fresh_inputs
from onekernel.verify.numbers.parts import first_divergence
from onekernel.verify.numbers.values import Array, arrays_of, copied
from onekernel.verify.plan import Plan
from onekernel.verify.progress import Progress
from onekernel.verify.sides.subject import Inputs, Subject

Named = Mapping[str, Array]


@dataclass(frozen=True)
class Metric:
    """A number of the user's own, 0 being perfect: `measure(expected, got)` is given both results by name."""

    name: str
    measure: Callable[[Named, Named], float]
    limit: float
    reason: str = "given by the caller"


@dataclass(frozen=True)
class Sides:
    """What is compared, on what, and by which table."""

    before: Subject
    after: Subject
    inputs: Inputs
    plan: Plan
    limits: Sequence[Limit]
    metrics: Sequence[Metric] = ()


@dataclass(frozen=True)
class Numbers:
    """What the comparisons say, each output by its worst round; `divergence` is the first part that is off."""

    comparisons: tuple[Comparison, ...] = ()
    divergence: Comparison | None = None
    doubts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    fresh_works: bool = True  # inputs can be made up, and the original answers them


def judge(sides: Sides) -> Numbers:
    """Compare numbers. Raises InvalidInput when `before` cannot answer the user's inputs."""
    with Answers(sides.before) as before, Answers(sides.after) as after:
        return _Judge(sides, before, after).run()


class _Judge:
    """One comparison under way: what was found so far."""

    def __init__(self, sides: Sides, before: Answers, after: Answers) -> None:
        self.sides, self.before, self.after = sides, before, after
        self.oracle = sides.before.oracle
        self.random = np.random.default_rng(sides.plan.seed)
        self.worst: dict[str, Comparison] = {}
        self.answered: list[tuple[Inputs, Named, Named]] = []  # inputs, the reference, and the original's own answer
        self.fresh_works = can_be_fresh(sides.inputs, sides.plan)
        self.notes: list[str] = []
        self.doubts: list[str] = []

    def run(self) -> Numbers:
        """Find out if the original is a reference at all; then compare round by round, and run by run."""
        sides = self.sides
        steady = self._original_repeats_itself()
        if sides.plan.distribution:
            for item in compare_distributions(sides.before, sides.after, sides.inputs, sides.plan):
                self._keep(item)
        elif steady:
            self._rounds()
            if all(item.passed for item in self.worst.values()):
                self._repeats()
        failed = any(item.problem not in ("", "raised") for item in self.worst.values())  # who raises has no parts
        divergence = first_divergence(sides.before, sides.after, sides.inputs, sides.limits) if failed else None
        return Numbers(tuple(self.worst.values()), divergence, tuple(self.doubts), tuple(self.notes), self.fresh_works)

    def _original_repeats_itself(self) -> bool:
        """Ask the original the same twice. One that answers differently is no reference."""
        inputs = self.sides.inputs
        try:
            first, second = self.before.twice(inputs)
        except InvalidInput:
            raise
        except Exception as error:
            todo = "check that it runs on these inputs"
            got = f"{type(error).__name__}: {error}"
            raise InvalidInput(expected=f"inputs that {self.sides.before.name} answers", got=got, todo=todo) from error
        rows = (_compared(name, second[name], first[name], self._limit(first[name])) for name in first)
        if differs := next((item for item in rows if not item.passed), None):
            if not self.sides.plan.distribution:
                advice = "fix its seed, or ask for distributions to be compared"
                self.doubts.append(f"the original answers the same input differently ({differs}): {advice}")
            return False
        if any(first[name].tobytes() != second[name].tobytes() for name in first):
            self.notes.append("the original is not bit-equal from run to run, within the limit")
        if self.sides.plan.distribution:
            self.notes.append("the original answers the same input equally: no distribution was needed")
        return True

    def _rounds(self) -> None:
        plan = self.sides.plan
        try:
            self.after.twice(self.sides.inputs)
        except Exception as error:
            self._keep(_raised(error, "the user's inputs"))
            return
        self._round(self.sides.inputs, "the user's inputs")
        for number in range(plan.rounds if self.fresh_works else 0):
            fresh = fresh_inputs(self.sides.inputs, plan, self.random)
            self._round(fresh, f"fresh inputs {number + 1}")
            if plan.fresh is None and self.fresh_works and not number:
                self._round(fresh, "inputs changed in place", in_place=True)

    def _round(self, inputs: Inputs, where: str, *, in_place: bool = False) -> None:
        """Compare one answer; `in_place`: these inputs lie where others were before."""
        try:
            reference, original = self._reference(inputs)
        except Exception as error:
            if self.sides.plan.fresh is not None or inputs is self.sides.inputs:
                raise
            self.notes.append(f"{where}: the original refuses them ({type(error).__name__}); give Plan.fresh")
            self.fresh_works = False
            return
        faults: list[Comparison] = []
        try:
            got = self.after.ask_in_place(self.sides.inputs, inputs) if in_place else self.after.ask(inputs, faults)
        except Exception as error:
            self._keep(_raised(error, where))
            return
        for item in [*faults, *self._compare(got, reference, original)]:
            self._keep(item if item.passed else replace(item, detail=_join(item.detail, where)))
        self.answered.append((inputs, reference, original))

    def _reference(self, inputs: Inputs) -> tuple[Named, Named]:
        """Return the answer to compare with, and the original's own, whose dtypes are demanded."""
        original = self.before.ask(inputs)
        if self.oracle is None:
            return original, original
        try:
            reference = arrays_of(self.oracle(copied(inputs)))
        except Exception as error:
            self.notes.append(f"no float64 oracle ({type(error).__name__}: {error}): compared with the original itself")
            self.oracle = None
            return original, original
        own = [_compared(name, original[name], reference[name], self._limit(original[name])) for name in original]
        if not self.doubts and (off := next((item for item in own if not item.passed), None)):
            self.doubts.append(f"the original itself is off from its float64 oracle: {off}")
        return reference, original

    def _compare(self, got: Named, reference: Named, original: Named) -> list[Comparison]:
        names = ", ".join(original)
        faults = [fault(name, "missing", f"not among the results ({', '.join(got)})") for name in original.keys() - got]
        faults += [fault(name, "missing", f"the original gives only {names}") for name in got.keys() - original.keys()]
        common = [name for name in original if name in got]
        rows = [_compared(n, got[n], reference[n], self._limit(original[n]), original[n].dtype.name) for n in common]
        for metric in self.sides.metrics:
            value = float(metric.measure(reference, got))
            limit = Limit("model", metric.name, metric.limit, metric.reason)
            rows.append(Comparison(metric.name, value, limit, "" if value <= metric.limit else "error"))
        return faults + rows

    def _limit(self, original: Array) -> Limit:
        return find_for_model(self.sides.limits, original.dtype.name, self.sides.before.inside)

    def _keep(self, item: Comparison) -> None:
        known = self.worst.get(item.name)
        if known is None or (known.passed and (not item.passed or item.error > known.error)):
            self.worst[item.name] = item

    def _repeats(self) -> None:
        """Run `after` on one or two inputs in turn, until the time is up: a race shows once in many runs."""
        plan, inputs = self.sides.plan, self.answered[:2]
        deadline = time.monotonic() + max(plan.seconds, 1.0)
        known: dict[int, Named] = {}
        done = unequal = 0
        progress = Progress("running again and again")
        while done < plan.repeats and time.monotonic() < deadline:
            turn = done % len(inputs)
            asked, reference, original = inputs[turn]
            done += 1
            progress.tell(done, plan.repeats)
            try:
                got = self.after.ask(asked)
            except Exception as error:
                self._keep(_raised(error, f"in run {done}"))
                return
            if _bit_equal(got, known.setdefault(turn, got)):
                continue
            unequal += 1
            if wrong := next((item for item in self._compare(got, reference, original) if not item.passed), None):
                where = _join(wrong.detail, f"in run {done} of the same input")
                self._keep(replace(wrong, problem="unstable", detail=where))
                return
        if done < plan.repeats:
            self.notes.append(f"{done} of {plan.repeats} repeated runs fitted in {plan.seconds:g} s")
        if unequal:
            self.notes.append(f"{unequal} of {done} repeated runs were not bit-equal, within the limit")


def _compared(name: str, got: Array, reference: Array, limit: Limit, dtype: str | None = None) -> Comparison:
    return compare(name, got, reference, limit, dtype or got.dtype.name)


def _raised(error: Exception, where: str) -> Comparison:
    return fault("call", "raised", f"{type(error).__name__}: {error} ({where})")


def _bit_equal(got: Named, known: Named) -> bool:
    return got is known or (
        got.keys() == known.keys()
        and all(got[n].shape == known[n].shape and got[n].tobytes() == known[n].tobytes() for n in known)
    )


def _join(*words: str) -> str:
    return ", ".join(word for word in words if word)
