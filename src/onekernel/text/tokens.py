"""Tokens from one launch: weights of `greedy_decoder` on a device, and requests that go on from launch to launch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch

from onekernel.device import Device
from onekernel.device.parts import arch_number
from onekernel.errors import DoesNotFit
from onekernel.jit import Kernel
from onekernel.megakernel.decoder import DecoderShape, greedy_decoder
from onekernel.megakernel.generate import kernel_request
from onekernel.megakernel.interpret import rotations
from onekernel.megakernel.layout import Layout
from onekernel.megakernel.pack import pack
from onekernel.megakernel.schedule import schedule_for
from onekernel.text.weights import TextWeights

OLDEST = 75  # sm_75: the tensor cores that the kernels multiply with
EMULATED_BLOCKS = 8  # the emulated device has no multiprocessors to count


def layout_for(shape: DecoderShape, on: Device, *, launches: bool = False) -> Layout:
    """Lay out a decoder for a device. Raises DoesNotFit where the device is too old, or there is no schedule."""
    if arch_number(on.arch) < OLDEST:
        raise DoesNotFit(expected=f"a GPU from sm_{OLDEST} on", got=on.arch, todo="use the engine reference")
    program, blocks = greedy_decoder(shape), getattr(on, "multiprocessors", EMULATED_BLOCKS)
    return Layout(program, schedule_for(program, blocks, on.arch, launches=launches))


class PackedDecoder:
    """A decoder with its weights packed for the blocks of a device; requests share it."""

    def __init__(self, shape: DecoderShape, layout: Layout, weights: TextWeights) -> None:
        """Pack all weights, on the device where they are."""
        self.shape, self.layout = shape, layout
        self.table = weights.table()
        self.device = self.table.device
        self.weights = pack(layout, weights)
        self._rotation = torch.empty(0, shape.head_dim, device=self.device)

    def rotation(self, positions: int) -> torch.Tensor:
        """Return cos and sin for at least so many positions, float32 [.., head_dim]; kept for the next request."""
        if len(found := self._rotation) < positions:
            larger = rotations(max(positions, 2 * len(found)), self.shape.head_dim, self.shape.theta)
            self._rotation = found = torch.from_numpy(larger).to(self.device)
        return found


class TokenKernel(PackedDecoder):
    """The engine: a decoder as one kernel."""

    name = "megakernel"

    def __init__(self, shape: DecoderShape, layout: Layout, weights: TextWeights, on: Device) -> None:
        """Build the kernel and pack all weights, on the device where they are.

        Raises CompileError, and DoesNotFit, before anything is packed, where not all blocks can be there at once.
        """
        self.kernel = Kernel(kernel_request(layout, on.arch), on)
        self.kernel.prepare(layout.schedule.blocks)
        super().__init__(shape, layout, weights)

    def begin(self, prompt: Sequence[int], positions: int) -> TokenRequest:
        """Begin behind a prompt, with room for `positions`."""
        return TokenRequest(self, prompt, positions)


class TokenMemory(ABC):
    """The memory of a request on its way: its keys and values, and what blocks give to each other."""

    def __init__(self, decoder: PackedDecoder, prompt: Sequence[int], positions: int) -> None:
        self.device, self._positions = decoder.device, positions
        self._rotation, kept = decoder.rotation(positions), decoder.layout.cached(positions)
        self.cache = torch.full((kept,), torch.nan, dtype=getattr(torch, decoder.shape.kept), device=self.device)
        self.mailbox = decoder.layout.mailbox(self.device)
        self._given = torch.tensor(list(prompt), dtype=torch.int32, device=self.device)
        self.position = 0

    def say(self, most: int) -> list[int]:
        """Return the next `most` tokens; there must be room for them. Raises DeviceError if blocks waited in vain."""
        said = [int(token) for token in self.launch(most).tolist()]
        self.mailbox.check()
        return said

    @abstractmethod
    def launch(self, count: int) -> torch.Tensor:
        """Enqueue what says `count` tokens on torch's stream; returns them, int32 [count]."""

    def _stream(self) -> Any:
        """Return the handle of torch's stream, None where there are no streams."""
        return torch.cuda.current_stream(self.device).cuda_stream if self.device.type == "cuda" else None


class TokenRequest(TokenMemory):
    """A request to `TokenKernel`."""

    def __init__(self, tokens: TokenKernel, prompt: Sequence[int], positions: int) -> None:
        super().__init__(tokens, prompt, positions)
        self._tokens = tokens

    def launch(self, count: int) -> torch.Tensor:
        """Enqueue one launch on torch's stream; returns the tokens that it will say, int32 [count]."""
        tokens, length = self._tokens, len(self._given)
        steps = length - 1 + count
        said = torch.empty(steps, dtype=torch.int32, device=tokens.device)
        tokens.kernel.launch(
            *tokens.weights, self._rotation, self.cache, self.mailbox.words, said, length, self.position, steps,
            self._positions, tokens.table, self._given, grid=tokens.layout.schedule.blocks, stream=self._stream(),
        )  # fmt: skip
        self.position += steps
        self._given = said[-1:]  # the next launch begins with it
        return said[length - 1 :]
