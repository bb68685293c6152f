"""Joules per request, from a counter that is updated now and then, on a simulated clock."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from onekernel.verify.footprint.energy import energy
from simulated import Clock, simulated

IDLE, BUSY = 100.0, 600.0  # W


class Meter:
    """A GPU that draws BUSY while it works; its counter moves every `step` seconds, and knows the last step only."""

    def __init__(self, clock: Clock, step: float) -> None:
        self.clock, self.step, self.spent, self.shown, self.last = clock, step, 1000.0, 1000.0, clock.now

    def work(self, seconds: float) -> None:
        self.clock.now += seconds
        self.spent += (BUSY - IDLE) * seconds

    def joules(self) -> float:
        self.clock.now += 1e-5
        if self.clock.now - self.last >= self.step:
            self.last = self.clock.now
            self.shown = self.spent + IDLE * self.clock.now
        return self.shown

    def state(self) -> dict[str, Any]:
        return {"sm_mhz": 1980}


@pytest.fixture
def clock() -> Iterator[Clock]:
    with simulated() as clock:
        yield clock


@pytest.mark.parametrize("step", [0.001, 0.1])
def test_energy_does_not_depend_on_when_the_counter_moves(clock: Clock, step: float) -> None:
    meter: Any = Meter(clock, step)
    calls = {"before": lambda: meter.work(2e-3), "after": lambda: meter.work(1e-3)}
    (request, power), states = energy(meter, calls, 5.0)
    assert request.before == pytest.approx(2e-3 * BUSY, rel=0.01)
    assert request.after == pytest.approx(1e-3 * BUSY, rel=0.01)
    assert (request.what, request.unit, request.samples) == ("energy per request", "J", 2)
    assert 0.49 < request.low <= request.ratio <= request.high < 0.51
    assert power.before == pytest.approx(BUSY, rel=0.01)
    assert states.keys() == {"before", "after"}


def test_a_counter_that_never_moves_ends_the_waiting(clock: Clock) -> None:
    meter: Any = Meter(clock, 1e9)
    calls = {"before": lambda: meter.work(1e-3), "after": lambda: meter.work(1e-3)}
    (request, _), _ = energy(meter, calls, 0.1)
    assert request.before == 0
    assert not request.rose(0.05)
