"""Small talkers and predictors with random weights, as the kernel of one session and of many."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from functools import cache
from typing import Any
from zlib import crc32

import torch

from onekernel.jit import Kernel
from onekernel.megakernel.decoder import DecoderShape, SpeechShape, speech_decoder
from onekernel.megakernel.generate import kernel_request
from onekernel.megakernel.layout import Layout, Schedule
from onekernel.megakernel.sessions.layout import sessions_layout
from onekernel.megakernel.sessions.text import sessions_request
from onekernel.speech.lm.frames import FrameKernel, FrameRequest
from onekernel.speech.lm.sessions import SessionsKernel
from onekernel.speech.request import Sampling

BLOCKS, NEAR, CAPACITY = 8, 4, 48
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
        return torch.randn(size, generator=torch.Generator().manual_seed(crc32(name.encode())))


@cache
def weights(shape: SpeechShape) -> Weights:
    return Weights(shape)


def loaded(kernel: Any, shape: SpeechShape, on: Any) -> Any:
    """Give a kernel its weights, where they belong."""
    its, place = weights(shape), "cpu" if on.emulated else "cuda"
    kernel.load(
        lambda *name: its(*name).to(place), lambda at: its.table(at).to(place), lambda at: its.sub_table(at).to(place)
    )
    return kernel


def alone(shape: SpeechShape, on: Any, blocks: int = BLOCKS) -> FrameKernel:
    """Return the kernel of one session."""
    layout = Layout(speech_decoder(shape, NEAR), Schedule(blocks, slots=4 if on.arch == "sm_90" else 0))
    return loaded(FrameKernel(Kernel(kernel_request(layout, on.arch), on), layout, shape, CAPACITY), shape, on)


def many(one: FrameKernel, sessions: int, on: Any, change: Callable[[str], str] = str) -> SessionsKernel:
    """Return the kernel of many; `change` is given each line of its text."""
    program = speech_decoder(one.shape, NEAR, paired=False)
    layout = sessions_layout(program, Schedule(one.layout.schedule.blocks, slots=5), sessions, on.arch)
    request = sessions_request(layout, on.arch)
    body = tuple(replace(line, text=change(line.text)) for line in request.body)
    return loaded(SessionsKernel(Kernel(replace(request, body=body), on), layout, one), one.shape, on)


def begun(one: FrameKernel, count: int) -> tuple[list[Any], list[torch.Tensor]]:
    """Begin requests of different lengths, seeds and ways to draw, each with a first frame."""
    requests, texts, place = [], [], one.tables[0].device
    for number in range(count):
        request = one.request(GREEDY if number == 1 else Sampling(), 7 + number)
        size = 1 + 3 * number, one.shape.talker.hidden
        prompt, text = (weights(one.shape).draw(f"{name} {number}", size).to(place) for name in ("prompt", "text"))
        request.say(prompt, text, 1)
        requests.append(request)
        texts.append(text)
    return requests, texts


def twin(request: FrameRequest) -> FrameRequest:
    """Return a request that has said the same."""
    other = copy(request)
    other.cache, other.memory = request.cache.clone(), request.memory.clone()
    return other


def same(one: FrameRequest, other: FrameRequest) -> bool:
    """Say whether two requests remember the same, bit by bit."""
    return torch.equal(one.memory, other.memory) and torch.equal(
        one.cache.view(torch.int16), other.cache.view(torch.int16)
    )
