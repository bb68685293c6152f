"""A program as launches against the interpreter, and bit by bit against the same program as one kernel."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from decoders import CAPACITY, SHAPES, SMALL_TEXT, SPEECH, Model, Run
from onekernel.device.emulated import EmulatedDevice, Order
from onekernel.device.parts import find, shared_limit
from onekernel.errors import EmulationFault, InvalidInput
from onekernel.jit import Kernel, compile_request
from onekernel.megakernel.decoder import greedy_decoder, speech_decoder
from onekernel.megakernel.launches.plan import Launch, launches
from onekernel.megakernel.launches.run import Launches
from onekernel.megakernel.launches.text import piece_request
from onekernel.megakernel.layout import Layout, Schedule, divide_up
from onekernel.megakernel.program import Attend, Project, Repeat, Sample
from onekernel.megakernel.schedule import schedule_for

PROMPT, STEPS = [5, 17, 70], 8
SCHEDULE = Schedule(6, slots=0)


@cache
def model(name: str) -> Model:
    return Model(SHAPES[name])


def scheduled(arch: str = "sm_90") -> Schedule:
    """Return the schedule of one kernel, with a ring where there can be one."""
    return replace(SCHEDULE, slots=3 if arch == "sm_90" else 0)


class LaunchRun(Run):
    """The launches of a model on the emulated device, with the memory of one kernel."""

    def __init__(self, model: Model, arch: str = "sm_90", **machine: Any) -> None:
        super().__init__(model, scheduled(arch), arch)
        self.layout = Layout(model.program, SCHEDULE)
        self.launches = Launches(self.layout, EmulatedDevice(arch, **machine))
        self.prompt, self.said = np.zeros(CAPACITY, np.int32), np.full(CAPACITY, -1, np.int32)
        operands = {
            "weights": self.stream, "vectors": self.vectors, "rotation": self.rotation, "cache": self.cache,
            "exchanged": self.mail, "said": self.said, "capacity": CAPACITY, "table": self.table, "prompt": self.prompt,
        }  # fmt: skip
        self.steps = self.launches.steps(operands, torch.device("cpu"))

    def run(self, prompt: list[int], steps: int) -> list[int]:
        self.prompt[: len(prompt)] = prompt
        self.steps.run(self.done, len(prompt), steps)
        self.done += steps
        return [int(token) for token in self.said[max(len(prompt) - 1, 0) : steps]]


def same_memory(one: Run, other: Run) -> bool:
    """Say whether both exchanged the same values, and keep the same keys and values; tags apart.

    Of the best candidates, those of blocks with tokens: launches have no others.
    """
    kept = [run.cache.view(torch.int16) for run in (one, other)]
    head = next(matrix for matrix in one.layout.matrices if matrix.name == "head")
    most = {"best": 4 * divide_up(head.rows, one.layout.tiling(head).rows)}
    widths = {exchange.name: most.get(exchange.name) for exchange in one.layout.program.exchanges}
    return torch.equal(*kept) and all(
        np.array_equal(one.exchange(name)[:width], other.exchange(name)[:width]) for name, width in widths.items()
    )


@pytest.mark.parametrize(("name", "arch"), [*((name, "sm_90") for name in SHAPES), ("qwen3", "sm_75")])
def test_launches_say_what_one_kernel_says(name: str, arch: str) -> None:
    """Positions go from near to far; weights of the one kernel come through a ring on sm_90."""
    one, many = Run(model(name), scheduled(arch), arch), LaunchRun(model(name), arch)
    assert one.run(PROMPT, STEPS) == many.run(PROMPT, STEPS) == model(name).interpret(PROMPT, STEPS).said
    assert same_memory(one, many)


def test_steps_go_on_where_the_last_ones_ended() -> None:
    whole, parts = LaunchRun(model("qwen3")), LaunchRun(model("qwen3"))
    said = whole.run(PROMPT, STEPS)
    begun = parts.run(PROMPT, 3)
    assert begun + parts.run(begun[-1:], 1) + parts.run(said[1:2], 4) == said
    assert same_memory(whole, parts)


def test_both_builds_take_turns_on_one_request() -> None:
    """Their memory has one format."""
    one, many = Run(model("llama"), scheduled()), LaunchRun(model("llama"))
    said = Run(model("llama"), scheduled()).run(PROMPT, 9)
    begun = one.run(PROMPT, 5)
    many.cache.copy_(one.cache)
    many.done = one.done
    assert begun + many.run(begun[-1:], 4) == said


@pytest.mark.parametrize("order", [Order.DESCENDING, Order.RANDOM], ids=lambda order: order.name.lower())
def test_the_order_of_blocks_and_threads_changes_no_bit(order: Order) -> None:
    first, other = LaunchRun(model("qwen3")), LaunchRun(model("qwen3"), order=order, seed=4)
    assert first.run(PROMPT, STEPS) == other.run(PROMPT, STEPS)
    assert same_memory(first, other)
    assert torch.equal(first.steps.state, other.steps.state)


@pytest.mark.parametrize("name", ["qwen3", "llama"])
def test_they_keep_to_the_rules_of_the_machine(name: str) -> None:
    """Addresses, alignment, races on shared memory; before the wait nothing is read but what may be, or written."""
    run = LaunchRun(model(name), sanitize=True, order=Order.RANDOM, seed=1)
    assert run.run(PROMPT, STEPS) == model(name).interpret(PROMPT, STEPS).said


# ---- faults


def broken(launch: Launch, layout: Layout, old: str, new: str) -> Kernel:
    """Build the kernel of a launch with other text."""
    request = piece_request(layout, launch.piece, "sm_90")
    lines = tuple(replace(line, text=line.text.replace(old, new)) for line in request.body)
    assert lines != request.body
    return Kernel(replace(request, body=lines), EmulatedDevice())


def of(run: LaunchRun, kind: type, number: int = 0) -> Launch:
    """Return a launch of a step behind the prompt."""
    step = run.launches.kinds[run.launches.kind(0, speaks=True)]
    return [launch for launch in step if isinstance(launch.piece.phase, kind)][number]


def test_a_launch_that_does_not_wait_is_found() -> None:
    run = LaunchRun(model("qwen3"))
    launch = of(run, Project, 2)
    run.launches.kernels[launch.piece] = broken(launch, run.layout, "patience;", "patience0; Patience patience;")
    with pytest.raises(EmulationFault, match="before await_predecessor"):
        run.run(PROMPT, STEPS)


@pytest.mark.parametrize(
    ("old", "new"),
    [("put_down<1>", "(void)sizeof"), ("take_up<1>(hidden, streams + 0", "take_up<1>(hidden, streams + 96")],
)
def test_a_residual_stream_that_lies_elsewhere_changes_what_is_said(old: str, new: str) -> None:
    run = LaunchRun(model("qwen3"))
    number = 0 if old == "put_down<1>" else 2
    launch = of(run, Project, number)
    run.launches.kernels[launch.piece] = broken(launch, run.layout, old, new)
    assert run.run(PROMPT, STEPS) != model("qwen3").interpret(PROMPT, STEPS).said


def test_what_cannot_be_launches_is_refused() -> None:
    program = greedy_decoder(SHAPES["llama"])
    (steps,) = program.body
    assert isinstance(steps, Repeat)
    begin, layers, *rest = steps.body
    assert isinstance(layers, Repeat)
    cases = {
        "behind its beginning, got Begin": (begin, begin, layers, *rest),
        "reads nothing of the step, got Project": (begin, layers.body[0]),
        "reads nothing of the step, got Attend": (begin, *layers.body[:2]),
    }
    for words, body in cases.items():
        wrong = replace(program, body=(replace(steps, body=body),))
        with pytest.raises(InvalidInput, match=words):
            launches(Layout(wrong, SCHEDULE), 0, speaks=False)


# ---- released sizes

PROGRAMS = {
    "speech 0.6B": (speech_decoder(SPEECH[0]), 547, 575),
    "speech 1.7B": (speech_decoder(SPEECH[1]), 548, 576),
    "text 135M": (greedy_decoder(SMALL_TEXT), 152, 182),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_how_many_launches_a_step_has(name: str) -> None:
    program, near, far = PROGRAMS[name]
    layout = Layout(program, schedule_for(program, 132, "sm_90", launches=True))
    steps = [launches(layout, position, speaks=True) for position in (0, 1000)]
    assert [len(step) for step in steps] == [near, far]
    for step in steps:
        assert [launch.last for launch in step] == [False] * (len(step) - 1) + [True]
        for before, launch in pairwise(step):  # who reads what launches before its predecessor made
            phase = launch.piece.phase
            early = not phase.position if isinstance(phase, Attend) else isinstance(phase, Sample)
            assert before.piece.settles or not early


@pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
def test_nothing_spills(arch: str) -> None:
    """And on sm_90 a launch has room beside its predecessor."""
    program = greedy_decoder(SMALL_TEXT)
    layout = Layout(program, schedule_for(program, find(arch).multiprocessors, arch, launches=True))
    steps = [launches(layout, position, speaks=True) for position in (0, 1000)]
    for piece in dict.fromkeys(launch.piece for step in steps for launch in step):
        request = piece_request(layout, piece, arch)
        used = compile_request(request).resources
        assert (used.spill_bytes, used.stack_bytes) == (0, 0), (request.name, used)
        beside = 2 if arch == "sm_90" and not request.name.endswith("head") else 1
        assert 0 < beside * used.registers * request.threads <= 65536
        assert beside * (request.shared + 1024) <= shared_limit(arch) + 1024
