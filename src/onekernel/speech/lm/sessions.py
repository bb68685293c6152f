"""Frames of speech of many requests from one launch: they share each reading of the weights.

What a request says does not depend on those beside it: it has the same bits as in a launch of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from onekernel.errors import InvalidInput
from onekernel.jit import Kernel
from onekernel.megakernel.sessions.layout import SessionsLayout
from onekernel.speech.lm.frames import FrameKernel, FrameMemory, PackedSpeech
from onekernel.speech.request import Sampling


class SessionsKernel(PackedSpeech):
    """A speech program as one kernel for up to `layout.sessions` requests to a `FrameKernel`."""

    layout: SessionsLayout

    def __init__(self, kernel: Kernel, layout: SessionsLayout, alone: FrameKernel) -> None:
        """Take requests of `alone`, whose cache they share. The weights come with `load`.

        Raises InvalidInput if attention is shared out otherwise there: sums would have another order.
        """
        super().__init__(layout, alone.shape, alone.positions)
        self.kernel = kernel
        if not layout.shares_heads_as(alone.layout):
            got = f"{layout.schedule.blocks} blocks, {alone.layout.schedule.blocks} for single requests"
            raise InvalidInput(expected="heads shared out as for single requests", got=got, todo="use as many blocks")
        self._mailbox: Any = None
        self._idle: list[FrameMemory] = []

    def _begin(self) -> None:
        device = self.tables[0].device
        self._mailbox = self.layout.mailbox(device)
        self._few = torch.empty(self.layout.few_of_all, dtype=torch.uint8, device=device)
        self._idle = [FrameMemory(self, Sampling(), 0) for _ in range(self.layout.sessions)]
        for memory in self._idle:
            memory.cache.zero_()

    def say(
        self, requests: Sequence[FrameMemory], texts: Sequence[torch.Tensor], frames: int, stream: Any = None
    ) -> torch.Tensor:
        """Say frames of each request in one launch: int32 [requests, frames, places].

        Each has said a frame before, alone; `texts` has rows for them as `FrameRequest.say` does. Raises InvalidInput
        for too many requests.
        """
        said = self.prepare(requests, texts, frames)(stream)
        for request in requests:
            request.position += frames
        return said

    def prepare(
        self,
        requests: Sequence[FrameMemory],
        texts: Sequence[torch.Tensor],
        frames: int,
        *,
        position: int | None = None,
    ) -> Callable[[Any], torch.Tensor]:
        """Return a function that launches this on a stream, again and again: from `position` on, or where they are."""
        if not 1 <= len(requests) <= self.layout.sessions or len(texts) != len(requests):
            expected = f"1 to {self.layout.sessions} requests with a text each"
            got = f"{len(requests)} requests and {len(texts)} texts"
            raise InvalidInput(expected=expected, got=got, todo="split them")
        if self._mailbox is None:
            self._begin()
        device = self.tables[0].device
        said = torch.empty((self.layout.sessions, frames, self.shape.places), dtype=torch.int32, device=device)
        rows = [text.float().contiguous() for text in texts]
        spare = torch.zeros((1, self.shape.talker.hidden), device=device)
        table = []  # `Session` of kernels/phases/sessions/rows.cuh
        for place, (request, idle) in enumerate(zip(_padded(requests, self.layout.sessions), self._idle, strict=True)):
            memory, text = (idle, spare) if request is None else (request, rows[place])
            row = memory.cache, said[place], text, memory.options, memory.memory
            its = memory.position if position is None or request is None else position
            table.append([*(tensor.data_ptr() for tensor in row), its, len(text), int(request is not None)])
        operands = (
            *self.operands, self._mailbox.words, *self.tables, self._few, torch.tensor(table, device=device), frames,
            self.positions,
        )  # fmt: skip
        kept = rows, spare

        def launch(stream: Any = None) -> torch.Tensor:
            assert kept  # until the launch has read it
            self.kernel.launch(*operands, grid=self.layout.schedule.blocks, stream=stream)
            return said[: len(requests)]

        return launch

    def check(self) -> None:
        """Raise DeviceError if a block of the last launches waited in vain."""
        if self._mailbox is not None:
            self._mailbox.check()


def _padded(requests: Sequence[FrameMemory], count: int) -> list[FrameMemory | None]:
    return [*requests, *(None for _ in range(count - len(requests)))]
