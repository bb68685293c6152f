"""Memory, launches, modules, compile time and energy of both sides, measured in turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from onekernel.errors import DeviceError, MissingExtra
from onekernel.verify.footprint.energy import energy
from onekernel.verify.footprint.launches import launches
from onekernel.verify.footprint.memory import Peaks, peaks, resident
from onekernel.verify.footprint.tally import Tally
from onekernel.verify.numbers.values import copied
from onekernel.verify.plan import Plan
from onekernel.verify.sides.place import Place
from onekernel.verify.sides.subject import Inputs, Subject
from onekernel.verify.speed.requests import Requests, timed
from onekernel.verify.speed.statistics import Change

_TURNS = 2  # of each side; the smaller number counts: what comes once is not the side's


@dataclass(frozen=True)
class Footprint:
    """What was measured. What could not be is said in `notes`; `state` is the GPU after each side's work."""

    costs: tuple[Change, ...] = ()
    notes: tuple[str, ...] = ()
    state: dict[str, Any] = field(default_factory=dict)

    def find(self, what: str) -> Change | None:
        """Return one cost; None where it was not measured."""
        return next((cost for cost in self.costs if cost.what == what), None)


Sides = dict[str, Subject]


def measure(sides: Sides, inputs: Inputs, plan: Plan, place: Place, tallies: dict[str, Tally]) -> Footprint:
    """Measure both sides, "before" and "after"; `tallies` counted what their first requests loaded and compiled."""
    costs, notes = list[Change](), list[str]()
    costs += _memory({name: partial(_peaks, side, copied(inputs), place) for name, side in sides.items()})
    opened = {name: partial(_held, side.reopen, copied(inputs), place) for name, side in sides.items() if side.reopen}
    costs += _memory(opened) if len(opened) == len(sides) else []
    modules, seconds = ([getattr(tallies[s], kind) for s in sides] for kind in ("modules", "compile_seconds"))
    costs += [_exact("modules loaded", "", *modules), _exact("compile time", "s", *seconds)]
    costs += _launches(sides, inputs, place, notes)
    state, spent = _energy(sides, inputs, plan, place, notes)
    return Footprint((*costs, *spent), tuple(notes), state)


def _launches(sides: Sides, inputs: Inputs, place: Place, notes: list[str]) -> list[Change]:
    """Count the launches of a request; says in the notes why not."""
    calls = [partial(side.call, copied(inputs)) for side in sides.values()]
    counted = [launches(call, place) for call in calls]
    known = [float(count) for count in counted if count is not None]
    if len(known) < len(calls):
        notes.append("launches: not measured (on a GPU, with torch imported)")
        return []
    return [_exact("launches", "", *known)]


def _peaks(side: Subject, inputs: Inputs, place: Place) -> Peaks:
    if side.peak is not None:
        side.call(inputs)
        return {"host memory": side.peak()}
    return peaks(partial(side.call, inputs), place)


def _held(reopen: Callable[[], Callable[[Inputs], Any]], inputs: Inputs, place: Place) -> Peaks:
    def opened() -> object:
        call = reopen()
        return call, call(inputs)

    return resident(opened, place)


def _memory(measured: Mapping[str, Callable[[], Peaks]]) -> list[Change]:
    taken: dict[str, list[Peaks]] = {name: [] for name in measured}
    for _ in range(_TURNS):
        for name, measure_once in measured.items():
            taken[name].append(measure_once())
    if not taken:
        return []
    least = [{kind: min(row[kind] for row in rows) for kind in rows[0]} for rows in taken.values()]
    return [_exact(kind, "B", least[0][kind], least[1][kind]) for kind in least[0] if kind in least[1]]


def _exact(what: str, unit: str, before: float, after: float) -> Change:
    """Compare two counts, which have no spread."""
    ratio = after / before if before else float("inf") if after else 1.0
    return Change(what, unit, before, after, ratio, ratio, 1)


def _energy(
    sides: Sides, inputs: Inputs, plan: Plan, place: Place, notes: list[str]
) -> tuple[dict[str, Any], list[Change]]:
    """Read the GPU's energy counter; says in the notes why not."""
    if place.gpu is None or not plan.energy:
        notes.append("energy: not measured (on a GPU, where the plan asks for it)")
        return {}, []
    from onekernel.device.cuda.nvml import open_meter

    calls = {name: timed(side.call, Requests(inputs, plan, change=False), place.settle) for name, side in sides.items()}
    try:
        found, states = energy(open_meter(place.gpu), calls, plan.energy)
        return states, found
    except (MissingExtra, DeviceError) as error:
        notes.append(f"energy: not measured ({error})")
        return {}, []
