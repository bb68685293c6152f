"""Prompts of speech, read by one launch: many positions share each reading of the weights."""

from __future__ import annotations

from typing import Any

import torch

from onekernel.errors import InvalidInput
from onekernel.jit import Kernel
from onekernel.megakernel.sessions.layout import SessionsLayout
from onekernel.speech.lm.frames import FrameKernel, FrameMemory, Weights, packed


class PromptKernel:
    """The talker's layers as one kernel that fills the caches of requests to a `FrameKernel`."""

    def __init__(self, kernel: Kernel, layout: SessionsLayout, alone: FrameKernel) -> None:
        """Take requests of `alone`, by a layout of `prompt_layout`. The weights come with `load`.

        Raises InvalidInput if attention is shared out otherwise there: caches would have another order.
        """
        layout.expect_heads_of(alone.layout)
        self.kernel, self.layout, self.positions = kernel, layout, alone.positions
        self.operands: tuple[Any, ...] = ()
        self._talker = alone.shape.talker

    def load(self, weights: Weights) -> None:
        """Pack the weights of the talker's layers, on the device where they are."""
        self.operands = packed(self.layout, weights, self._talker, self.positions)
        self._mailbox = self.layout.mailbox(self.operands[0].device)

    def read(self, request: FrameMemory, rows: torch.Tensor, stream: Any = None) -> None:
        """Read rows [n, hidden] of a prompt in one launch, all but its last: `FrameRequest.say` takes that one.

        The cache of the request gets the bits that it would have if they were read one by one. Raises InvalidInput if
        they do not fit into it.
        """
        length = len(rows)
        if not 1 <= length < self.positions - request.position:
            expected = f"1 to {self.positions - request.position - 1} rows, one less than there is room for"
            raise InvalidInput(expected=expected, got=str(length), todo="make room for more positions")
        steps = -(-length // self.layout.sessions)
        self.kernel.launch(
            *self.operands, self._mailbox.words, rows.float().contiguous(), request.position, length, steps,
            self.positions, request.cache, grid=self.layout.schedule.blocks, stream=stream,
        )  # fmt: skip
        request.position += length

    def check(self) -> None:
        """Raise DeviceError if a block of the last launches waited in vain."""
        self._mailbox.check()
