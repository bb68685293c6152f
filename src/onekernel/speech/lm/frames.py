"""Frames of speech from one launch: weights of a program on a device, and requests that go on from launch to launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from onekernel.errors import InvalidInput
from onekernel.jit import Kernel
from onekernel.megakernel.decoder import DecoderShape, SpeechShape
from onekernel.megakernel.interpret import rotations
from onekernel.megakernel.layout import Layout
from onekernel.megakernel.pack import pack
from onekernel.speech.request import Sampling

Weights = Callable[[str, tuple[int, ...]], torch.Tensor]  # by the names of the program
Tables = Callable[[int], torch.Tensor]  # of the codes of a place


class PackedSpeech:
    """A speech program with its weights, packed for the blocks of a device; requests share it."""

    def __init__(self, layout: Layout, shape: SpeechShape, positions: int) -> None:
        """Make room for `positions` of a request. The weights come with `load`."""
        self.layout, self.shape, self.positions = layout, shape, positions
        self.operands: tuple[Any, ...] = ()
        self.tables: tuple[Any, ...] = ()

    def load(self, weights: Weights, table: Tables, sub_table: Tables) -> None:
        """Pack all weights, on the device where they are."""
        talker, places = self.shape.talker, range(self.shape.places)
        self.operands = packed(self.layout, weights, talker, self.positions)
        tables = torch.cat([table(place) for place in places]).to(getattr(torch, talker.weights)).contiguous()
        self.tables = tables, torch.cat([sub_table(place) for place in places[:-1]]).float().contiguous()


def packed(layout: Layout, weights: Weights, talker: DecoderShape, positions: int) -> tuple[torch.Tensor, ...]:
    """Return the first operands of a kernel: the streams of all blocks, vectors, the rotations of positions."""
    stream, vectors = pack(layout, weights)
    rotation = torch.from_numpy(rotations(positions, talker.head_dim, talker.theta)).to(stream.device)
    return stream, vectors, rotation


class FrameKernel(PackedSpeech):
    """A speech program as one kernel."""

    def __init__(self, kernel: Kernel, layout: Layout, shape: SpeechShape, positions: int) -> None:
        """Make room for `positions` of a request. The weights come with `load`."""
        super().__init__(layout, shape, positions)
        self.kernel = kernel

    def request(self, asked: Sampling, seed: int) -> FrameRequest:
        """Begin a request. Raises InvalidInput for a way to draw that the kernel does not have."""
        return FrameRequest(self, asked, seed)


def remembered(speech: PackedSpeech, asked: Sampling, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return how a request draws, and the memory of one that begins."""
    device = speech.tables[0].device
    words = np.zeros(speech.layout.request_ints, np.uint32)
    words[:2] = seed & 0xFFFFFFFF, seed >> 32
    options = torch.tensor(_options(asked), dtype=torch.float32, device=device)
    return options, torch.from_numpy(words.view(np.int32)).to(device)


class FrameMemory:
    """The memory of a request on its way: its keys and values, and what is remembered of it."""

    def __init__(self, speech: PackedSpeech, asked: Sampling, seed: int) -> None:
        shape = speech.shape
        device = speech.tables[0].device
        kept = speech.layout.cached(speech.positions)
        self.cache = torch.full((kept,), torch.nan, dtype=getattr(torch, shape.talker.kept), device=device)
        self.mailbox = speech.layout.mailbox(device)
        self.options, self.memory = remembered(speech, asked, seed)
        self.position = 0


class FrameRequest(FrameMemory):
    """A request to `FrameKernel`."""

    def __init__(self, speech: FrameKernel, asked: Sampling, seed: int) -> None:
        super().__init__(speech, asked, seed)
        self._speech = speech

    def say(self, prompt: torch.Tensor | None, text: torch.Tensor, frames: int, stream: Any = None) -> torch.Tensor:
        """Say frames in one launch: int32 [frames, places], behind `prompt` [P, hidden], if it is the first one.

        `text` [n, hidden] has a row for each frame so far and to come, the last again and again. What follows an end of
        speech has no meaning.
        """
        speech = self._speech
        length = 0 if prompt is None else len(prompt)
        steps = max(length - 1, 0) + frames
        said = torch.empty((frames, speech.shape.places), dtype=torch.int32, device=self.cache.device)
        rows = text if prompt is None else prompt
        speech.kernel.launch(
            *speech.operands, self.cache, self.mailbox.words, said, length, self.position, steps, speech.positions,
            *speech.tables, rows.float().contiguous(), text.float().contiguous(), len(text), self.options,
            self.memory, grid=speech.layout.schedule.blocks, stream=stream,
        )  # fmt: skip
        self.position += steps
        return said


def _options(asked: Sampling) -> list[float]:
    """Lay out how codes are drawn as the kernel reads it: the first of a frame, then the others."""
    if min(asked.top_p, asked.sub_top_p) < 1:
        got = f"top_p {asked.top_p:g}, sub_top_p {asked.sub_top_p:g}"
        raise InvalidInput(expected="top_p and sub_top_p of 1", got=got, todo="bound the draw by top_k")
    first = asked.do_sample, asked.temperature, asked.top_k, asked.repetition_penalty
    return [float(number) for number in (*first, asked.sub_do_sample, asked.sub_temperature, asked.sub_top_k, 0)]
