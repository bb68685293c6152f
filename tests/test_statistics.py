"""Intervals that hold what they promise, and samples taken as they should be."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onekernel.verify import Plan, Subject
from onekernel.verify.sides.place import Place
from onekernel.verify.speed.load import Callers, open_loop
from onekernel.verify.speed.requests import Requests
from onekernel.verify.speed.statistics import median_change, paired, ratios, tail_changes
from onekernel.verify.speed.timing import MOST, interleave
from simulated import Clock, simulated


@pytest.fixture
def clock() -> Iterator[Clock]:
    with simulated() as clock:
        yield clock


def spells(random: np.random.Generator, blocks: int, samples: int) -> tuple[Any, Any]:
    """Sample two equal sides on a machine that wanders: each block is like the one before."""
    wander = np.exp(np.cumsum(0.05 * random.standard_normal(blocks)))[:, None]
    one, two = (wander * random.lognormal(0, 0.2, (blocks, samples)) for _ in range(2))
    return one, two


def test_intervals_of_the_median_cover_the_truth() -> None:
    """Of 300 intervals of 95 %, between 91 and 99 % hold a ratio of 1; drift and all."""
    random = np.random.default_rng(0)
    hits = sum(low <= 1 <= high for _, low, high in (paired(*spells(random, 60, 10), 0.95) for _ in range(300)))
    assert 0.91 * 300 <= hits <= 0.99 * 300


def test_intervals_of_a_tail_cover_the_truth() -> None:
    random = np.random.default_rng(1)
    sides = (tuple(random.lognormal(0, 0.3, (40, 10)) for _ in range(2)) for _ in range(60))
    hits = sum(low <= 1 <= high for ((low, high),) in (ratios(*side, [0.95], 0.95, 0) for side in sides))
    assert hits >= 53


@given(st.floats(0.1, 10), st.integers(8, 40), st.integers(1, 9), st.integers(0, 1000))
def test_a_known_ratio_is_found_exactly(ratio: float, blocks: int, samples: int, seed: int) -> None:
    before = np.random.default_rng(seed).lognormal(0, 1, (blocks, samples))
    found = median_change("request", before, before * ratio, 0.99)
    assert (found.ratio, found.low, found.high) == pytest.approx((ratio,) * 3)
    (tail,) = tail_changes("request", before, before * ratio, {"P95": (0.95, 1000)}, 0.99)
    assert (tail.low, tail.high) == pytest.approx((ratio, ratio))
    assert not tail.enough
    assert tail.what == "request P95"


def test_more_confidence_is_a_wider_interval_and_more_blocks_a_narrower_one() -> None:
    few, many = (spells(np.random.default_rng(3), blocks, 10) for blocks in (40, 640))
    widths = [high - low for _, low, high in (paired(*few, 0.9), paired(*few, 0.999), paired(*many, 0.999))]
    assert widths[0] < widths[1]
    assert widths[2] < widths[1] / 2


def test_contenders_take_turns_in_a_random_order(clock: Clock) -> None:
    asked: list[str] = []

    def contender(name: str) -> Callable[[], float]:
        def sample() -> float:
            asked.append(name)
            clock.spend(1e-4, noise=0)
            return 1e-4

        return sample

    rows = interleave({name: contender(name) for name in "abc"}, 0.3)
    (blocks, samples), *others = (side.shape for side in rows.values())
    assert others == [(blocks, samples)] * 2
    turn = samples + 1  # the first of a turn is not counted
    turns = ["".join(asked[6:][start : start + 3 * turn : turn]) for start in range(0, 3 * turn * blocks, 3 * turn)]
    assert set(map("".join, map(sorted, turns))) == {"abc"}
    assert len(Counter(turns)) == 6


@pytest.mark.parametrize(("seconds", "blocks"), [(0.0, 8), (1e3, MOST // 20)])
def test_sampling_ends(clock: Clock, seconds: float, blocks: int) -> None:
    rows = interleave({"a": lambda: (clock.spend(1e-4, noise=0), 1e-4)[1]}, seconds)
    assert rows["a"].shape == (blocks, 20)


@pytest.mark.parametrize("load", [0.3, 0.7])
def test_an_open_loop_waits_as_queueing_theory_says(clock: Clock, load: float) -> None:
    """Poisson arrivals, equal times: a request waits load / (2 (1 - load)) of one time (Pollaczek, Khinchine)."""
    service = 1e-3

    def sample() -> float:
        clock.spend(service, noise=0)
        return service

    latencies = open_loop({"one": sample}, load / service, 60.0, seed=0)["one"]
    waited = latencies.mean() / service - 1
    assert waited == pytest.approx(load / (2 * (1 - load)), rel=0.1)


def test_callers_ask_at_the_same_time_and_a_failure_is_raised() -> None:
    inside, most, lock = [0], [0], threading.Lock()

    def call(inputs: Any) -> Any:
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        time.sleep(2e-3)
        with lock:
            inside[0] -= 1
        return inputs

    asked = Subject(call)
    callers = Callers(Place(), lambda: Requests([np.zeros(2)], Plan()), 3)
    rows = callers.throughput({"before": asked, "after": asked}, 0.05)
    assert rows["before"].shape == (10, 1)
    assert (rows["before"] > 0).all()
    assert (inside, most) == ([0], [3])
    with pytest.raises(ZeroDivisionError):
        Callers(Place(), lambda: Requests([], Plan()), 2).throughput({"before": Subject(lambda _: 1 / 0)}, 0.05)


def test_requests_are_never_the_same_and_hold_what_the_user_gave() -> None:
    sample = np.arange(50.0)
    requests = Requests([sample], Plan())
    first = [requests.next()[0].copy() for _ in range(40)]
    assert len({item.tobytes() for item in first}) > 35
    assert all(np.isin(item, sample).all() for item in first)
    assert (sample == np.arange(50.0)).all()
    fixed = Requests([sample], Plan(rounds=0))
    assert all((fixed.next()[0] == sample).all() for _ in range(5))
