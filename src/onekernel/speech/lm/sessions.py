"""Frames of speech of many requests from one launch: they share each reading of the weights.

What a request says does not depend on those beside it: it has the same bits as in a launch of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from onekernel.errors import InvalidInput
from onekernel.jit import Kernel
from onekernel.megakernel.sessions.layout import SessionsLayout
from onekernel.speech.lm.frames import FrameKernel, FrameMemory, PackedSpeech, remembered
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
        layout.expect_heads_of(alone.layout)
        self._mailbox: Any = None
        self._idle: list[tuple[torch.Tensor, torch.Tensor]] = []

    def _begin(self) -> None:
        device = self.tables[0].device
        self._mailbox = self.layout.mailbox(device)
        self._few = torch.empty(self.layout.few_of_all, dtype=torch.uint8, device=device)
        self._idle = [remembered(self, Sampling(), 0) for _ in range(self.layout.sessions)]

    def say(
        self, requests: Sequence[FrameMemory], texts: Sequence[torch.Tensor], frames: int, stream: Any = None
    ) -> torch.Tensor:
        """Say frames of each request in one launch: int32 [requests, frames, places].

        Each has said a frame before, alone; `texts` has rows for them as `FrameRequest.say` does. Raises InvalidInput
        for too many requests, and for one that has not.
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
        if new := [place for place, request in enumerate(requests) if request.position == 0]:
            got = f"none at places {new}"
            raise InvalidInput(expected="a first frame of each request", got=got, todo="let it say one alone, first")
        if self._mailbox is None:
            self._begin()
        device = self.tables[0].device
        said = torch.empty((self.layout.sessions, frames, self.shape.places), dtype=torch.int32, device=device)
        rows = [text.float().contiguous() for text in texts]
        spare = torch.zeros((1, self.shape.talker.hidden), device=device)
        table = torch.tensor(list(self._table(requests, rows, spare, said, position)), device=device)
        operands = (
            *self.operands, self._mailbox.words, *self.tables, self._few, table, frames, self.positions,
        )  # fmt: skip
        kept = rows, spare

        def launch(stream: Any = None) -> torch.Tensor:
            assert kept  # until the launch has read it
            self.kernel.launch(*operands, grid=self.layout.schedule.blocks, stream=stream)
            return said[: len(requests)]

        return launch

    def _table(
        self,
        requests: Sequence[FrameMemory],
        rows: Sequence[torch.Tensor],
        spare: torch.Tensor,
        said: torch.Tensor,
        position: int | None,
    ) -> Iterator[list[int]]:
        """Yield a `Session` of kernels/phases/sessions/rows.cuh for each place."""
        for place, (options, memory) in enumerate(self._idle):
            if place < len(requests):
                its = requests[place]
                begins = its.position if position is None else position
                tensors = its.cache, said[place], rows[place], its.options, its.memory
                yield [*(tensor.data_ptr() for tensor in tensors), begins, len(rows[place]), 1]
            else:
                yield [0, *(tensor.data_ptr() for tensor in (said[place], spare, options, memory)), 0, 1, 0]

    def check(self) -> None:
        """Raise DeviceError if a block of the last launches waited in vain."""
        if self._mailbox is not None:
            self._mailbox.check()
