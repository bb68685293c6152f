"""Before against after in one process, in turn: requests from end to end, kernels alone, parts, first calls, load."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from onekernel.verify.limits import Limit, allowed
from onekernel.verify.numbers.values import copied
from onekernel.verify.plan import Plan
from onekernel.verify.sides.place import Place
from onekernel.verify.sides.subject import Inputs, Subject
from onekernel.verify.speed.load import Callers, open_loop
from onekernel.verify.speed.parts import parts
from onekernel.verify.speed.requests import Requests, timed
from onekernel.verify.speed.statistics import Array, Change, median_change, paired, tail_changes
from onekernel.verify.speed.timing import Timing, interleave

if TYPE_CHECKING:
    from onekernel.device.cuda.stopwatch import Stopwatch

_OPENINGS = 3  # of each side, for first calls
_LAPS = 400  # samples of a kernel's time
_FEWEST_TO_DRIFT = 8  # blocks at the start, and as many at the end
_DRIFT_CONFIDENCE = 0.999
_CALLS = 5  # in a lap with a warm L2


@dataclass(frozen=True)
class Speed:
    """What was measured; every Change is in seconds, less being better.

    whole: a request from end to end, P50, P95 and P99. noise: the same of the original against itself. kernels: the
    GPU's time alone. service: under load. floor: the relative change of the median below which nothing is claimed.
    """

    before: Timing
    after: Timing
    whole: tuple[Change, ...]
    noise: tuple[Change, ...]
    floor: float
    kernels: tuple[Change, ...] = ()
    first: Change | None = None
    service: tuple[Change, ...] = ()
    parts: tuple[Change, ...] = ()
    doubts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def gain(self) -> float:
        """How many times faster a request became."""
        return 1 / self.whole[0].ratio

    def unrest(self, change: Change) -> float:
        """How wide the original's own interval is at the quantile that a change of `whole` or `service` is of."""
        return max((item.high - item.low for item in self.noise if change.what.endswith(item.what)), default=0.0)


@dataclass(frozen=True)
class _Bench:
    before: Subject
    after: Subject
    inputs: Inputs
    plan: Plan
    limits: Sequence[Limit]
    place: Place

    @property
    def tails(self) -> dict[str, tuple[float, int]]:
        """Name the quantiles beyond the median, and the samples that each needs."""
        return {f"P{q}": (q / 100, int(allowed(self.limits, "evidence", f"requests for P{q}"))) for q in (95, 99)}

    def samples(self) -> dict[str, Array]:
        """Time whole requests; the original is there twice, for the noise."""
        sides = {"before": self.before, "again": self.before, "after": self.after}
        contenders = {name: self.sampler(side) for name, side in sides.items()}
        for sample in contenders.values():
            self.place.warm_up(sample)
        return interleave(contenders, self.plan.seconds, seed=self.plan.seed)

    def sampler(self, side: Subject, *, change: bool = True) -> Callable[[], float]:
        """Make requests to a side, timed until their work has ended."""
        return timed(side.call, self.requests(change=change), self.place.settle)

    def requests(self, *, change: bool = False) -> Requests:
        """Make inputs to ask for; see Requests."""
        return Requests(self.inputs, self.plan, change=change)

    def changes(self, what: str, one: Array, two: Array) -> tuple[Change, ...]:
        """Compare P50, P95 and P99."""
        tails = tail_changes(what, one, two, self.tails, self.plan.confidence)
        return (self.median(f"{what} P50".strip(), one, two), *tails)

    def median(self, what: str, one: Array, two: Array) -> Change:
        """Compare medians."""
        return median_change(what, one, two, self.plan.confidence, self.plan.seed)

    def kernels(self) -> tuple[Change, ...]:
        """Time what runs on the GPU, without the host's gaps; empty where a side waits for the GPU itself."""
        if (stopwatch := self.place.stopwatch) is None:
            return ()
        found = []
        for warm, name in ((True, "kernels, L2 warm"), (False, "kernels, L2 cold")):
            laps = self._laps(stopwatch, warm, _CALLS) or self._laps(stopwatch, warm, 1)
            if laps is None:
                return ()
            found.append(self.median(name, *laps))
        return tuple(found)

    def _laps(self, stopwatch: Stopwatch, warm: bool, calls: int) -> tuple[Array, Array] | None:
        """Time both sides' work on the GPU; None where the host cannot be ahead of it."""
        laps = {
            side: partial(stopwatch.lap, partial(subject.call, copied(self.inputs)), calls=calls, warm=warm)
            for side, subject in (("before", self.before), ("after", self.after))
        }
        if any(lap() is None for lap in laps.values()):
            return None
        sample = {side: partial(_or_nan, lap) for side, lap in laps.items()}
        rows = interleave(sample, self.plan.seconds / 4, seed=self.plan.seed, most=_LAPS, what="timing kernels alone")
        return None if any(np.isnan(side).any() for side in rows.values()) else (rows["before"], rows["after"])

    def first(self) -> Change | None:
        """Open both sides anew, in turn, and time their first calls; the interval is that of all pairs."""
        if self.before.reopen is None or self.after.reopen is None:
            return None
        taken: dict[str, list[float]] = {"before": [], "after": []}
        for number in range(_OPENINGS):
            sides = [("before", self.before.reopen), ("after", self.after.reopen)]
            for name, reopen in sides if number % 2 else sides[::-1]:
                call, inputs = reopen(), copied(self.inputs)
                start = time.perf_counter()
                call(inputs)
                self.place.settle()
                taken[name].append(time.perf_counter() - start)
        pairs = [after / before for after in taken["after"] for before in taken["before"]]
        one, two = (float(np.median(taken[name])) for name in ("before", "after"))
        return Change("first call", "s", one, two, min(pairs), max(pairs), _OPENINGS)

    def service(self) -> tuple[Change, ...]:
        """Time requests that arrive at random, and from several callers at a time, as far as the plan asks."""
        plan, found = self.plan, list[Change]()
        if plan.rate is not None:
            sides = {"before": self.before, "after": self.after}
            samplers = {name: self.sampler(side, change=False) for name, side in sides.items()}
            rows = open_loop(samplers, plan.rate, plan.seconds, plan.seed)
            found += self.changes(f"at {plan.rate:g} requests/s", rows["before"], rows["after"])
        for count in plan.streams:
            callers = Callers(self.place, self.requests, count)
            rows = callers.throughput({"before": self.before, "after": self.after}, plan.seconds)
            found.append(self.median(f"per request, {count} callers", rows["before"], rows["after"]))
        return tuple(found)


def measure(
    before: Subject, after: Subject, inputs: Inputs, plan: Plan, limits: Sequence[Limit], place: Place
) -> Speed:
    """Time both sides on requests that are never quite the same."""
    bench = _Bench(before, after, inputs, plan, limits, place)
    first = bench.first()
    rows = bench.samples()
    one, again, two = (rows[name] for name in ("before", "again", "after"))
    noise = bench.changes("", one, again)
    floor = max(allowed(limits, "change", "time"), noise[0].high - noise[0].low)  # twice half the interval
    clock = "host clock" if place.gpu is None else "host clock, until the GPU is done"
    whole = bench.changes("", one, two)
    speed = Speed(_timing(one, clock), _timing(two, clock), whole, noise, floor, bench.kernels(), first)
    return replace(
        speed,
        service=bench.service(),
        parts=tuple(parts(before, after, inputs, place, plan.confidence)),
        doubts=tuple(_doubts(noise[0], floor, rows, allowed(limits, "change", "drift"))),
        notes=(*_notes(whole, bench.tails), *_drift(one, allowed(limits, "change", "drift"))),
    )


def _or_nan(lap: Callable[[], float | None]) -> float:
    seconds = lap()
    return float("nan") if seconds is None else seconds


def _timing(rows: Array, clock: str) -> Timing:
    return Timing(tuple(rows.reshape(-1).tolist()), clock)


def _doubts(noise: Change, floor: float, rows: dict[str, Array], drift: float) -> list[str]:
    """Distrust a machine on which the original differs from itself, or the ratio at the end from that at the start."""
    doubts = []
    if noise.rose(floor) or noise.fell(floor):
        doubts.append(f"the original differs from itself: {noise}")
    if (quarter := len(rows["before"]) // 4) >= _FEWEST_TO_DRIFT:
        ends = (slice(quarter), slice(-quarter, None))
        (first, low1, high1), (last, low2, high2) = (
            paired(rows["before"][end], rows["after"][end], _DRIFT_CONFIDENCE) for end in ends
        )
        if (low1 > high2 or low2 > high1) and abs(last / first - 1) > drift:
            doubts.append(f"the ratio drifted from {first:.3f} to {last:.3f}")
    return doubts


def _drift(before: Array, drift: float) -> list[str]:
    """Tell how the original changed from the start to the end; both sides were timed in turn all the while."""
    quarter = max(1, len(before) // 4)
    change = float(np.median(before[-quarter:]) / np.median(before[:quarter])) - 1
    return [f"the machine drifted: the original took {change:+.0%} at the end"] if abs(change) > drift else []


def _notes(whole: Sequence[Change], needs: dict[str, tuple[float, int]]) -> list[str]:
    return [
        f"{change.what} rests on {change.samples} of the {needs[change.what][1]} requests that it needs: not judged"
        for change in whole
        if not change.enough
    ]
