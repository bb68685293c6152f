"""Tokens from launches, one for each phase: for GPUs on which the blocks of one kernel cannot wait for each other."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from onekernel.device import Device
from onekernel.megakernel.decoder import DecoderShape
from onekernel.megakernel.launches.run import Launches
from onekernel.megakernel.layout import Layout
from onekernel.text.tokens import PackedDecoder, TokenMemory
from onekernel.text.weights import TextWeights


class TokenLaunches(PackedDecoder):
    """The engine: the program of `TokenKernel`, every phase a launch."""

    name = "launches"

    def __init__(self, shape: DecoderShape, layout: Layout, weights: TextWeights, on: Device) -> None:
        """Build the kernels and pack all weights, on the device where they are. Raises CompileError."""
        super().__init__(shape, layout, weights)
        self.launches = Launches(self.layout, on)

    def begin(self, prompt: Sequence[int], positions: int) -> TokenSteps:
        """Begin behind a prompt, with room for `positions`."""
        return TokenSteps(self, prompt, positions)


class TokenSteps(TokenMemory):
    """A request to `TokenLaunches`. Its prompt and what it said lie where its launches look for them."""

    def __init__(self, tokens: TokenLaunches, prompt: Sequence[int], positions: int) -> None:
        super().__init__(tokens, prompt, positions)
        self._prompt, self._said = (torch.zeros(positions, dtype=torch.int32, device=self.device) for _ in range(2))
        weights, vectors = tokens.weights
        operands = {
            "weights": weights, "vectors": vectors, "rotation": self._rotation, "cache": self.cache,
            "exchanged": self.mailbox.words, "said": self._said, "capacity": positions, "table": tokens.table,
            "prompt": self._prompt,
        }  # fmt: skip
        self._steps = tokens.launches.steps(operands, self.device)

    def launch(self, count: int) -> torch.Tensor:
        """Enqueue the steps of some tokens on torch's stream; returns the tokens that they will say, int32 [count]."""
        length = len(self._given)
        steps = length - 1 + count
        self._prompt[:length].copy_(self._given)
        self._steps.run(self.position, length, steps, stream=self._stream() or 0)
        self.position += steps
        self._given = self._said[steps - 1 : steps].clone()  # the next launches begin with it
        return self._said[length - 1 : steps].clone()
