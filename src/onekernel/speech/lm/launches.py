"""Frames of speech from launches, one for each phase: for GPUs on which the blocks of one kernel cannot wait."""

from __future__ import annotations

from typing import Any

import torch

from onekernel.device import Device
from onekernel.megakernel.decoder import SpeechShape
from onekernel.megakernel.launches.run import Launches
from onekernel.megakernel.layout import Layout
from onekernel.speech.lm.frames import FrameMemory, PackedSpeech
from onekernel.speech.request import Sampling


class FrameLaunches(PackedSpeech):
    """The program of `FrameKernel`, every phase a launch."""

    def __init__(self, layout: Layout, on: Device, shape: SpeechShape, positions: int) -> None:
        """Build the kernels, with room for `positions` of a request. The weights come with `load`."""
        super().__init__(layout, shape, positions)
        self.launches = Launches(layout, on)

    def request(self, asked: Sampling, seed: int) -> FrameSteps:
        """Begin a request. Raises InvalidInput for a way to draw that the kernels do not have."""
        return FrameSteps(self, asked, seed)


class FrameSteps(FrameMemory):
    """A request to `FrameLaunches`. Its rows and what it said lie where its launches look for them."""

    def __init__(self, speech: FrameLaunches, asked: Sampling, seed: int) -> None:
        super().__init__(speech, asked, seed)
        device, shape, positions = self.cache.device, speech.shape, speech.positions
        self._prompt, self._text = (torch.zeros(positions, shape.talker.hidden, device=device) for _ in range(2))
        self._said = torch.zeros(positions, shape.places, dtype=torch.int32, device=device)
        weights, vectors, rotation = speech.operands
        tables, sub_tables = speech.tables
        operands = {
            "weights": weights, "vectors": vectors, "rotation": rotation, "cache": self.cache,
            "exchanged": self.mailbox.words, "said": self._said, "capacity": positions, "tables": tables,
            "sub_tables": sub_tables, "prompt": self._prompt, "text": self._text, "options": self.options,
            "request": self.memory,
        }  # fmt: skip
        self._steps = speech.launches.steps(operands, device)

    def say(self, prompt: torch.Tensor | None, text: torch.Tensor, frames: int, stream: Any = None) -> torch.Tensor:
        """Say frames as FrameRequest.say does: int32 [frames, places]."""
        length, rows = 0 if prompt is None else len(prompt), min(len(text), len(self._text))
        steps, handle = max(length - 1, 0) + frames, stream or 0
        with self._steps.on(handle):
            if prompt is not None:
                self._prompt[:length].copy_(prompt)
            self._text[:rows].copy_(text[:rows])
        self._steps.run(self.position, length, steps, rows, handle)
        self.position += steps
        with self._steps.on(handle):
            return self._said[:frames].clone()
