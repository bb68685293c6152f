"""One launch on a GPU: blocks that are late change nothing, a block that never comes is named, and nobody hangs."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from decoders import SHAPES, Model, Run
from onekernel import device
from onekernel.errors import DeviceError
from onekernel.megakernel.layout import Schedule
from onekernel.megakernel.schedule import schedule_for

pytestmark = pytest.mark.gpu

PROMPT, STEPS = [5, 17, 70], 40
RING = Schedule(6, slots=3)
LATE = "let_pass(clock_ticks(), (clock_ticks() ^ blockIdx.x * 2654435761u ^ threadIdx.x / 32 * 40503u) & 16383u);"
# Rows of a block that are not published in one step.
FORGETFUL = """struct Forgetful {
  const Exchange& exchange;
  bool forgets;
  ONEKERNEL_DEVICE void operator()(bool inside, int row, float value) const {
    if (inside && !(forgets && blockIdx.x == 1)) exchange.publish(row, value);
  }
};
"""


@cache
def model(name: str) -> Model:
    return Model(SHAPES[name])


def run_of(name: str, change: Callable[[str], str] = str, schedule: Schedule = RING) -> Run:
    """Build the kernel of a model for the GPU."""
    return Run(model(name), schedule, on=device.get("cuda"), change=change)


def late(line: str) -> str:
    """Let warps pass some random time before each phase."""
    return line.replace("forget(mail.words);", f"forget(mail.words); {LATE}")


def forgetful(line: str) -> str:
    """Let a block not publish what it made, in the third step."""
    line = line.replace("auto& memory = *dynamic_storage", f"{FORGETFUL}auto& memory = *dynamic_storage")
    return line.replace("Publish{attended}", "Forgetful{attended, step == 2}")


@pytest.mark.parametrize("name", SHAPES)
def test_a_gpu_says_what_the_interpreter_says(name: str) -> None:
    on: Any = device.get("cuda")
    right = model(name).interpret(PROMPT, STEPS).said
    for schedule in (RING, schedule_for(model(name).program, on.multiprocessors, on.arch)):
        run = run_of(name, schedule=schedule)
        assert run.run(PROMPT, STEPS) == right
        run.mailbox.check()


@pytest.mark.parametrize("name", SHAPES)
def test_blocks_that_are_late_change_nothing(name: str) -> None:
    in_time, delayed = run_of(name), run_of(name, late)
    assert delayed.run(PROMPT, STEPS) == in_time.run(PROMPT, STEPS)
    assert (delayed.mail == in_time.mail).all()


def test_who_waits_in_vain_says_for_what_and_nobody_hangs() -> None:
    run = run_of("qwen3", forgetful)
    run.run(PROMPT, STEPS)
    with pytest.raises(DeviceError) as failure:
        run.mailbox.check()
    found = re.search(r"block \d+ for value (\d+) of attended, which block 1, output, makes", str(failure.value))
    assert found is not None, failure.value
    assert 16 <= int(found[1]) < 32
    again = run_of("qwen3")  # the GPU works on
    assert again.run(PROMPT, STEPS) == model("qwen3").interpret(PROMPT, STEPS).said
