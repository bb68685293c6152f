"""Many sessions in one launch say what each of them says alone, bit by bit."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from functools import cache, partial
from typing import Any

import pytest
import torch

from decoders import SPEECH
from onekernel.device.emulated import EmulatedDevice, Order
from onekernel.errors import InvalidInput
from onekernel.jit import Kernel
from onekernel.megakernel.decoder import DecoderShape, SpeechShape, speech_decoder
from onekernel.megakernel.generate import kernel_request
from onekernel.megakernel.layout import Layout, Schedule
from onekernel.megakernel.program import Item, Project, Repeat, When
from onekernel.megakernel.schedule import schedule_for
from onekernel.megakernel.sessions.check import faults
from onekernel.megakernel.sessions.layout import SESSIONS, Chunks, SessionsLayout, for_sessions, sessions_layout
from onekernel.megakernel.sessions.text import sessions_request
from onekernel.speech.lm.frames import FrameKernel, FrameRequest
from onekernel.speech.lm.sessions import SessionsKernel
from onekernel.speech.request import Sampling

BLOCKS, NEAR, CAPACITY = 8, 4, 32
PREDICTOR = DecoderShape(1, 256, 256, 4, 2, 64, 104, head_norms=True)
EQUAL = SpeechShape(DecoderShape(2, 256, 512, 4, 2, 64, 264, head_norms=True), PREDICTOR, 16, 100, 250)
WIDER = SpeechShape(DecoderShape(1, 512, 768, 8, 2, 64, 264), PREDICTOR, 16, 100, 250)
GREEDY = Sampling(do_sample=False, sub_do_sample=False)


class Weights:
    """Random weights of a shape, the same each time."""

    def __init__(self, shape: SpeechShape) -> None:
        self.shape, layout = shape, Layout(speech_decoder(shape, NEAR), Schedule(BLOCKS))
        self.sizes: dict[str, tuple[int, ...]] = {one.name: (one.rows, one.columns) for one in layout.matrices}
        self.sizes |= {one.name: (one.width,) for one in layout.vectors}

    @cache  # noqa: B019 (as long as the tests)
    def __call__(self, name: str, index: tuple[int, ...]) -> torch.Tensor:
        drawn = self.draw(f"{name} {index}", self.sizes[name])
        return (1 + 0.1 * drawn if "norm" in name else drawn * self.sizes[name][-1] ** -0.5).bfloat16()

    def table(self, place: int) -> torch.Tensor:
        talker, predictor = self.shape.talker, self.shape.predictor
        return self.draw(f"table {place}", (talker.vocab if place == 0 else predictor.vocab, talker.hidden)).bfloat16()

    def sub_table(self, place: int) -> torch.Tensor:
        rows = self.table(place)
        return rows[:, : self.shape.predictor.hidden].float()

    def draw(self, name: str, size: tuple[int, ...]) -> torch.Tensor:
        key = int.from_bytes(name.encode(), "little") % 2**63
        return torch.randn(size, generator=torch.Generator().manual_seed(key))


@cache
def weights(shape: SpeechShape) -> Weights:
    return Weights(shape)


def alone(shape: SpeechShape) -> FrameKernel:
    """Return the kernel of one session."""
    layout = Layout(speech_decoder(shape, NEAR), Schedule(BLOCKS, slots=4))
    kernel = FrameKernel(Kernel(kernel_request(layout, "sm_90"), EmulatedDevice()), layout, shape, CAPACITY)
    kernel.load(weights(shape), weights(shape).table, weights(shape).sub_table)
    return kernel


def many(one: FrameKernel, sessions: int, arch: str = "sm_90", **machine: Any) -> SessionsKernel:
    """Return the kernel of many."""
    layout = sessions_layout(speech_decoder(one.shape, NEAR, paired=False), Schedule(BLOCKS, slots=5), sessions, arch)
    device = EmulatedDevice(arch, **machine)
    kernel = SessionsKernel(Kernel(sessions_request(layout, device.arch), device), layout, one)
    kernel.load(weights(one.shape), weights(one.shape).table, weights(one.shape).sub_table)
    return kernel


def begun(one: FrameKernel, count: int) -> tuple[list[Any], list[torch.Tensor]]:
    """Begin requests of different lengths, seeds and ways to draw, each with a first frame."""
    requests, texts = [], []
    for number in range(count):
        request = one.request(GREEDY if number == 1 else Sampling(), 7 + number)
        rows = partial(weights(one.shape).draw, size=(1 + 3 * number, one.shape.talker.hidden))
        request.say(rows(f"prompt {number}"), rows(f"text {number}"), 1)
        requests.append(request)
        texts.append(rows(f"text {number}"))
    return requests, texts


def twin(request: FrameRequest) -> FrameRequest:
    """Return a request that has said the same."""
    other = copy(request)
    other.cache, other.memory = request.cache.clone(), request.memory.clone()
    return other


@pytest.mark.parametrize(
    ("shape", "sessions", "present", "arch", "order"),
    [
        (EQUAL, 2, 2, "sm_90", Order.ASCENDING),
        (EQUAL, 8, 2, "sm_90", Order.RANDOM),
        (WIDER, 4, 3, "sm_80", Order.LAGGING),
    ],
    ids=["two", "two of eight", "a wider talker, without a ring"],
)
def test_sessions_say_what_each_says_alone(
    shape: SpeechShape, sessions: int, present: int, arch: str, order: Order
) -> None:
    """Codes, keys and values, and what is remembered: all bits, launch by launch, near positions and far ones."""
    one = alone(shape)
    apart, texts = begun(one, present)
    together = list(map(twin, apart))
    kernel = many(one, sessions, arch, order=order, seed=3)
    for frames in (1, 2):
        said = kernel.say(together, texts, frames)
        expected = [request.say(None, text, frames) for request, text in zip(apart, texts, strict=True)]
        assert said.tolist() == [frames.tolist() for frames in expected]
    assert max(request.position for request in apart) > NEAR
    for its, other in zip(apart, together, strict=True):
        assert torch.equal(its.memory, other.memory)
        assert torch.equal(its.cache.view(torch.int16), other.cache.view(torch.int16))


@pytest.mark.parametrize("sessions", SESSIONS)
@pytest.mark.parametrize("shape", SPEECH, ids=["0.6B", "1.7B"])
def test_released_sizes_have_a_layout_that_is_safe(shape: SpeechShape, sessions: int) -> None:
    layout = released(shape, sessions)
    assert list(faults(layout)) == []
    assert layout.schedule.slots >= layout.fewest_slots


@cache
def released(shape: SpeechShape, sessions: int) -> SessionsLayout:
    schedule = schedule_for(speech_decoder(shape), 132, "sm_90")
    return sessions_layout(speech_decoder(shape, paired=False), schedule, sessions, "sm_90")


def test_a_value_that_may_be_overwritten_is_found() -> None:
    """If the last layer's result of the first place, which nobody needs, were published, a slow block could miss it."""
    layout = released(SPEECH[0], 8)
    loud = replace(layout.program, body=spoken(layout.program.body))
    (fault, *_) = faults(SessionsLayout(loud, layout.schedule, 8))
    assert fault == "sub_fed published twice before it is awaited"


def spoken(body: tuple[Item, ...]) -> tuple[Item, ...]:
    """Take back what makes a phase silent."""
    return tuple(
        replace(item, body=spoken(item.body))
        if isinstance(item, Repeat | When)
        else replace(item, silent=())
        if isinstance(item, Project)
        else item
        for item in body
    )


@pytest.mark.parametrize("columns", [256, 512, 768, 1024, 2048, 3072, 6144])
@pytest.mark.parametrize("sessions", SESSIONS)
def test_chunks_hold_all_columns(columns: int, sessions: int) -> None:
    cut = Chunks(columns, sessions)
    assert cut.part % cut.chain == 0
    assert 4 * cut.words <= 32768
    assert cut.words * (8 // cut.sets // cut.together) * (cut.steps // cut.part) == columns * sessions


def test_what_sessions_cannot_have_is_refused() -> None:
    one = alone(EQUAL)
    kernel = many(one, 2)
    with pytest.raises(InvalidInput, match="1 to 2 requests"):
        kernel.say([], [], 1)
    program = for_sessions(speech_decoder(EQUAL, NEAR, paired=False))
    with pytest.raises(InvalidInput, match="leave places empty"):
        SessionsLayout(program, Schedule(BLOCKS), 3)
    narrow = replace(EQUAL, talker=replace(EQUAL.talker, inner=96))
    with pytest.raises(InvalidInput, match="whole spans"):
        SessionsLayout(for_sessions(speech_decoder(narrow, NEAR, paired=False)), Schedule(BLOCKS), 2)
    other = FrameKernel(one.kernel, Layout(speech_decoder(EQUAL, NEAR), Schedule(4)), EQUAL, CAPACITY)
    with pytest.raises(InvalidInput, match="use as many blocks"):
        SessionsKernel(kernel.kernel, kernel.layout, other)
