"""A prompt that is read by one launch leaves what it leaves when it is read position by position, bit by bit."""

from __future__ import annotations

import pytest
import torch

from decoders import SPEECH
from many_sessions import CAPACITY, EQUAL, NEAR, WIDER, alone, same, twin, weights
from onekernel.device.emulated import EmulatedDevice, Order
from onekernel.errors import InvalidInput
from onekernel.jit import Kernel
from onekernel.megakernel.decoder import SpeechShape, speech_decoder
from onekernel.megakernel.layout import Schedule
from onekernel.megakernel.schedule import schedule_for
from onekernel.megakernel.sessions.check import faults
from onekernel.megakernel.sessions.prompt import POSITIONS, PromptLayout, for_prompts, prompt_layout
from onekernel.megakernel.sessions.prompt_text import prompt_request
from onekernel.speech.lm.frames import FrameKernel
from onekernel.speech.lm.prompts import PromptKernel
from onekernel.speech.request import Sampling


def reader(one: FrameKernel, positions: int, on: EmulatedDevice) -> PromptKernel:
    schedule = Schedule(one.layout.schedule.blocks, slots=5)
    layout = prompt_layout(speech_decoder(one.shape, NEAR), schedule, positions, on.arch)
    kernel = PromptKernel(Kernel(prompt_request(layout, on.arch), on), layout, one)
    kernel.load(weights(one.shape))
    return kernel


@pytest.mark.parametrize(
    ("shape", "positions", "arch", "order"),
    [
        (EQUAL, 8, "sm_90", Order.RANDOM),
        (EQUAL, 16, "sm_80", Order.LAGGING),
        (WIDER, 8, "sm_80", Order.ASCENDING),
    ],
    ids=["a step of eight", "two octets, without a ring", "a wider talker"],
)
def test_a_prompt_is_read_as_if_position_by_position(
    shape: SpeechShape, positions: int, arch: str, order: Order
) -> None:
    """Two launches, the second of a step and a part of one; near positions and far ones; then a frame is said."""
    one = alone(shape, EmulatedDevice(arch), blocks=16)
    kernel = reader(one, positions, EmulatedDevice(arch, order=order, seed=5))
    prompt, text = (weights(shape).draw(name, (size, shape.talker.hidden)) for name, size in (("p", 24), ("t", 2)))
    slow = one.request(Sampling(), 3)
    fast = twin(slow)
    kernel.read(fast, prompt[:3])
    kernel.read(fast, prompt[3:-1])
    assert fast.position == len(prompt) - 1 > NEAR + positions
    said = fast.say(prompt[-1:], text, 1)
    assert said.tolist() == slow.say(prompt, text, 1).tolist()
    assert same(fast, slow)
    assert fast.position == slow.position


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("shape", SPEECH, ids=["0.6B", "1.7B"])
def test_released_sizes_have_a_layout_that_is_safe(shape: SpeechShape, positions: int) -> None:
    program = speech_decoder(shape)
    layout = prompt_layout(program, schedule_for(program, 132, "sm_90"), positions, "sm_90")
    assert list(faults(layout)) == []
    assert layout.schedule.slots >= layout.fewest_slots


def test_what_cannot_be_read_is_refused() -> None:
    one = alone(EQUAL, EmulatedDevice())
    with pytest.raises(InvalidInput, match="8, 16, 32, 64"):
        PromptLayout(for_prompts(speech_decoder(EQUAL, NEAR)), Schedule(8), 3)
    kernel = reader(one, 8, EmulatedDevice())
    request = one.request(Sampling(), 1)
    for length in (0, CAPACITY):
        with pytest.raises(InvalidInput, match="1 to 47 rows"):
            kernel.read(request, torch.zeros(length, EQUAL.talker.hidden))
