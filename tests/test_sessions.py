"""Many sessions in one launch say what each of them says alone, bit by bit."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from onekernel.device.emulated import EmulatedDevice, Order
from onekernel.jit import Kernel
from onekernel.megakernel.decoder import DecoderShape, SpeechShape, speech_decoder
from onekernel.megakernel.generate import kernel_request
from onekernel.megakernel.layout import Layout, Schedule
from onekernel.megakernel.sessions.layout import sessions_layout
from onekernel.megakernel.sessions.text import sessions_request
from onekernel.speech.lm.frames import FrameKernel
from onekernel.speech.lm.sessions import SessionsKernel
from onekernel.speech.request import Sampling

BLOCKS, NEAR, CAPACITY = 8, 4, 32
PREDICTOR = DecoderShape(2, 256, 256, 4, 2, 64, 200, head_norms=True)
EQUAL = SpeechShape(DecoderShape(2, 256, 512, 4, 2, 64, 264, head_norms=True), PREDICTOR, 16, 200, 250)
WIDER = SpeechShape(DecoderShape(1, 512, 768, 8, 2, 64, 264), PREDICTOR, 16, 200, 250)
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
        asked = GREEDY if number % 3 == 1 else Sampling()
        request = one.request(asked, 7 + number)
        hidden = one.shape.talker.hidden
        prompt = weights(one.shape).draw(f"prompt {number}", (1 + number % 5, hidden))
        text = weights(one.shape).draw(f"text {number}", (1 + number % 4, hidden))
        request.say(prompt, text, 1)
        requests.append(request)
        texts.append(text)
    return requests, texts


@pytest.mark.parametrize(
    ("shape", "sessions", "present"), [(EQUAL, 2, 2), (EQUAL, 8, 5), (WIDER, 4, 4)], ids=["2", "5 of 8", "wider"]
)
def test_sessions_say_what_each_says_alone(shape: SpeechShape, sessions: int, present: int) -> None:
    """Codes, keys and values, and what is remembered: all bits, launch by launch, near positions and far ones."""
    one = alone(shape)
    apart, texts = begun(one, present)
    together, _ = begun(one, present)
    kernel = many(one, sessions)
    for frames in (1, 2):
        said = kernel.say(together, texts, frames)
        expected = [request.say(None, text, frames) for request, text in zip(apart, texts, strict=True)]
        assert said.tolist() == [frames.tolist() for frames in expected]
    for one_, other in zip(apart, together, strict=True):
        assert torch.equal(one_.memory, other.memory)
        assert torch.equal(one_.cache.view(torch.int16), other.cache.view(torch.int16))
