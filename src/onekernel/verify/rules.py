"""From evidence to a decision: one small rule after another, and the first that applies decides.

The order is the argument: what is wrong is rejected however fast it is; what is not faster as a whole is rejected or
open whatever its parts do; only then are tails, memory and energy guards of a gain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from onekernel.verify.compare import Comparison
from onekernel.verify.footprint import Footprint
from onekernel.verify.limits import Limit, allowed
from onekernel.verify.speed import Change, Speed

Decision = Literal["keep", "reject", "inconclusive"]
MEMORY = ("device memory", "torch's device memory", "onekernel's device memory", "host memory")
HELD = ("device memory held", "host memory held")


@dataclass(frozen=True)
class Evidence:
    """What the rules look at; `expect` is the part that was predicted to take less time."""

    numbers: tuple[Comparison, ...]
    speed: Speed | None
    footprint: Footprint | None
    doubts: tuple[str, ...]
    limits: Sequence[Limit]
    expect: str = ""

    def allowed(self, scope: Literal["change", "evidence"], what: str) -> float:
        return allowed(self.limits, scope, what)


@dataclass(frozen=True)
class Ruling:
    """The decision, the rule that made it, and why, in a sentence."""

    decision: Decision
    rule: str
    reason: str


Rule = Callable[[Evidence], Ruling | None]


def decide(evidence: Evidence) -> Ruling:
    """Apply the rules in their order."""
    return next(ruling for rule in RULES if (ruling := rule(evidence)) is not None)


def doubtful(evidence: Evidence) -> Ruling | None:
    """Nothing follows from a comparison that is none."""
    reason = "; ".join(evidence.doubts) or ("" if evidence.numbers else "nothing was compared")
    return Ruling("inconclusive", "no reference", reason) if reason else None


def wrong(evidence: Evidence) -> Ruling | None:
    """Another result is rejected at any speed."""
    failed = [item for item in evidence.numbers if not item.passed]
    return Ruling("reject", "wrong numbers", str(max(failed, key=closeness))) if failed else None


def numbers_only(evidence: Evidence) -> Ruling | None:
    """Without timing, equal numbers are all that was asked for."""
    if evidence.speed is not None:
        return None
    return Ruling("keep", "equal numbers", str(max(evidence.numbers, key=closeness)))


def unsteady(evidence: Evidence) -> Ruling | None:
    """A machine that changes by itself proves nothing."""
    speed = _speed(evidence)
    return Ruling("inconclusive", "unsteady machine", "; ".join(speed.doubts)) if speed.doubts else None


def slower(evidence: Evidence) -> Ruling | None:
    """A request takes longer: the parts that do are named."""
    speed = _speed(evidence)
    if not speed.whole[0].rose(speed.floor):
        return None
    return Ruling("reject", "slower", f"a request takes {_ratio(speed.whole[0])}{_blame(evidence)}")


def void(evidence: Evidence) -> Ruling | None:
    """Faster somewhere and not as a whole: locally good, globally void."""
    speed = _speed(evidence)
    if not speed.whole[0].stayed(evidence.allowed("change", "time")):
        return None
    local = [item for item in (*speed.kernels, *_weighty(evidence)) if item.fell(speed.floor)]
    if local:
        what = ", ".join(f"{item.what} takes {_ratio(item)}" for item in local)
        reason = f"locally good, globally void: {what}, but a request takes {_ratio(speed.whole[0])}"
        return Ruling("reject", "globally void", reason + _blame(evidence))
    if speed.first is not None and speed.first.fell(speed.floor):
        reason = f"only the first call is faster ({_ratio(speed.first)}); a later one takes {_ratio(speed.whole[0])}"
        return Ruling("reject", "first call only", reason)
    return None


def worse_tail(evidence: Evidence) -> Ruling | None:
    """The slowest requests became slower, alone or under load."""
    worse = [item for item, floor in _tails(evidence) if item.rose(floor)]
    return Ruling("reject", "worse tail", f"{worse[0].what} takes {_ratio(worse[0])}") if worse else None


def more_memory(evidence: Evidence) -> Ruling | None:
    """It pays with memory, at the peak of a request or between requests."""
    for name in (*MEMORY, *HELD):
        cost = evidence.footprint.find(name) if evidence.footprint else None
        if cost is None or cost.after - cost.before <= evidence.allowed("evidence", "bytes"):
            continue
        if cost.rose(evidence.allowed("change", "memory")):
            more = f"{cost.what}: {cost.before / 1e6:.1f} MB before, {cost.after / 1e6:.1f} MB after"
            return Ruling("reject", "more memory", more)
    return None


def more_energy(evidence: Evidence) -> Ruling | None:
    """It pays with energy."""
    cost = evidence.footprint.find("energy per request") if evidence.footprint else None
    if cost is None or not cost.rose(evidence.allowed("change", "energy")):
        return None
    return Ruling("reject", "more energy", f"a request costs {cost.after:.3g} J instead of {cost.before:.3g} J")


def elsewhere(evidence: Evidence) -> Ruling | None:
    """The part that was predicted to shrink did not: the gain is not understood."""
    speed, name = _speed(evidence), evidence.expect
    if not name or not speed.whole[0].fell(speed.floor):
        return None
    part = next((item for item in (*speed.parts, *speed.kernels) if item.what == name), None)
    if part is not None and part.fell(speed.floor):
        return None
    shrank = ", ".join(item.what for item in _weighty(evidence) if item.fell(speed.floor)) or "no part"
    reason = f"{name!r} was predicted to take less time, but {shrank} does"
    return Ruling("inconclusive", "unexplained gain", reason)


def faster(evidence: Evidence) -> Ruling | None:
    """A request takes less time, for certain, and no guard is open."""
    speed = _speed(evidence)
    whole = speed.whole[0]
    if not whole.fell(speed.floor):
        return None
    unsure = [item for item, floor in _tails(evidence) if item.high > 1 + floor]
    if unsure:
        return Ruling("inconclusive", "unsure tail", f"{unsure[0]}: it may have become slower")
    return Ruling("keep", "faster", f"a request takes {_ratio(whole)} ({speed.gain:.2f} times as fast)")


def no_difference(evidence: Evidence) -> Ruling:
    """Say what is missing for a decision."""
    speed = _speed(evidence)
    whole = speed.whole[0]
    if whole.stayed(small := evidence.allowed("change", "time")):
        reason = f"no difference beyond {small:.1%}: a request takes {_ratio(whole)}"
        return Ruling("inconclusive", "no difference", reason)
    between = f"({whole.low:.3g} to {whole.high:.3g})"
    reason = f"a request takes {_ratio(whole)} {between}, which {speed.floor:.1%} of noise does not decide"
    half, away = (whole.high - whole.low) / 2, abs(whole.ratio - 1) - speed.floor
    if away > 0:
        reason += f"; about {max(2, round((half / away) ** 2))} times as many requests would"
    return Ruling("inconclusive", "too noisy", reason)


RULES: tuple[Rule, ...] = (
    doubtful, wrong, numbers_only, unsteady, slower, void, worse_tail, more_memory, more_energy, elsewhere, faster,
    no_difference,
)  # fmt: skip


def closeness(item: Comparison) -> tuple[bool, float]:
    """Order comparisons by how close they are to their limit, or how far beyond it."""
    return (not item.passed, item.error / item.limit.limit if item.limit.limit else item.error)


def _speed(evidence: Evidence) -> Speed:
    assert evidence.speed is not None  # numbers_only comes before
    return evidence.speed


def _tails(evidence: Evidence) -> list[tuple[Change, float]]:
    """Return what guards a gain, where it rests on enough requests, with the rise that is allowed."""
    speed, tail = _speed(evidence), evidence.allowed("change", "tail")
    guards = [item for item in (*speed.whole[1:], *speed.service) if item.enough]
    return [(item, max(tail, speed.floor, speed.unrest(item))) for item in guards]


def _weighty(evidence: Evidence) -> list[Change]:
    """Return the parts that are large enough to matter."""
    speed = _speed(evidence)
    total = sum(item.before for item in speed.parts)
    share = evidence.allowed("evidence", "share")
    return [item for item in speed.parts if max(item.before, item.after) >= share * total > 0]


def _blame(evidence: Evidence) -> str:
    slow = [item for item in _weighty(evidence) if item.rose(_speed(evidence).floor)]
    return "; slower now: " + ", ".join(f"{item.what} ({_ratio(item)})" for item in slow) if slow else ""


def _ratio(change: Change) -> str:
    return f"{change.ratio:.3g}x as long"
