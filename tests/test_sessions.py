"""Many sessions in one launch say what each of them says alone, bit by bit."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from decoders import SPEECH
from many_sessions import BLOCKS, CAPACITY, EQUAL, GREEDY, NEAR, WIDER, alone, begun, many, same, twin, weights
from onekernel.device.emulated import EmulatedDevice, Order
from onekernel.errors import InvalidInput
from onekernel.megakernel.decoder import SpeechShape, speech_decoder
from onekernel.megakernel.layout import Layout, Schedule
from onekernel.megakernel.pack import chained, chains_of
from onekernel.megakernel.program import Item, Project, Repeat, When
from onekernel.megakernel.schedule import schedule_for
from onekernel.megakernel.sessions.check import faults
from onekernel.megakernel.sessions.layout import SESSIONS, SessionsLayout, for_sessions, sessions_layout
from onekernel.megakernel.sessions.pack import in_chains, piece_of
from onekernel.speech.lm.frames import FrameKernel
from onekernel.speech.lm.sessions import SessionsKernel


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
    one = alone(shape, EmulatedDevice(arch))
    apart, texts = begun(one, present)
    together = list(map(twin, apart))
    kernel = many(one, sessions, EmulatedDevice(arch, order=order, seed=3))
    for frames in (1, 2):
        said = kernel.say(together, texts, frames)
        expected = [request.say(None, text, frames) for request, text in zip(apart, texts, strict=True)]
        assert said.tolist() == [frames.tolist() for frames in expected]
    assert max(request.position for request in apart) > NEAR
    assert all(same(*pair) for pair in zip(apart, together, strict=True))


def test_octets_take_turns() -> None:
    """More than eight sessions go through the tensor cores one octet after the other; requests are in both.

    Some say the same at several places.
    """
    one = alone(EQUAL, EmulatedDevice("sm_90"), blocks=16)
    apart, texts = begun(one, 3)
    places = [number % len(apart) for number in range(11)]
    together = [twin(apart[number]) for number in places]
    kernel = many(one, 16, EmulatedDevice("sm_90", order=Order.RANDOM, seed=3))
    said = kernel.say(together, [texts[number] for number in places], 1).tolist()
    right = [request.say(None, text, 1).tolist() for request, text in zip(apart, texts, strict=True)]
    assert said == [right[number] for number in places]
    assert all(same(apart[number], its) for number, its in zip(places, together, strict=True))


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


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 24])
def test_a_piece_has_steps_of_one_chain(steps: int) -> None:
    order, chain_of = in_chains(steps), {}
    assert sorted(order) == list(range(steps))
    for place, step in enumerate(chained(steps)):
        chain_of[step] = place % chains_of(steps)
    pieces = [order[first : first + piece_of(steps)] for first in range(0, steps, piece_of(steps))]
    assert all(len(piece) == piece_of(steps) and len({chain_of[step] for step in piece}) == 1 for piece in pieces)
    found = [chain_of[step] for step in order]
    assert found == sorted(found)


def test_what_sessions_cannot_have_is_refused() -> None:
    one = alone(EQUAL, EmulatedDevice())
    kernel = many(one, 2, EmulatedDevice())
    with pytest.raises(InvalidInput, match="1 to 2 requests"):
        kernel.say([], [], 1)
    with pytest.raises(InvalidInput, match=r"none at places \[0\]"):
        kernel.say([one.request(GREEDY, 1)], [weights(EQUAL).draw("text", (1, EQUAL.talker.hidden))], 1)
    program = for_sessions(speech_decoder(EQUAL, NEAR, paired=False))
    with pytest.raises(InvalidInput, match="leave places empty"):
        SessionsLayout(program, Schedule(BLOCKS), 3)
    narrow = replace(EQUAL, talker=replace(EQUAL.talker, inner=96))
    with pytest.raises(InvalidInput, match="whole spans"):
        SessionsLayout(for_sessions(speech_decoder(narrow, NEAR, paired=False)), Schedule(BLOCKS), 2)
    other = FrameKernel(one.kernel, Layout(speech_decoder(EQUAL, NEAR), Schedule(4)), EQUAL, CAPACITY)
    with pytest.raises(InvalidInput, match="use as many blocks"):
        SessionsKernel(kernel.kernel, kernel.layout, other)
