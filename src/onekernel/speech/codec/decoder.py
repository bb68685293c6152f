"""Codes -> samples, as a stream: the samples of a frame depend on its codes and on the frames before, and on no chunk.

Every chunk is decoded one frame and one stream at a time. Each library call then has the same shape for every frame, so
that its order of summation cannot depend on how the codes were cut or batched: any chunking gives the same bits, on one
device with one number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import prod

import torch
from torch import Tensor

from onekernel.errors import InvalidInput
from onekernel.speech import config as configs
from onekernel.speech.codec.layers import DILATIONS, CausalConv, ConvNeXt, Linear, ResidualUnit, Snake
from onekernel.speech.codec.part import Part
from onekernel.speech.codec.state import State, Stream
from onekernel.speech.codec.transformer import Transformer

Stage = Callable[[Tensor, Stream], Tensor]


class CodecDecoder:
    """The decoder half of the codec, with the tensors of a file under their own names; it runs where they are.

    `dtype` is that of all arithmetic: float32, as the model is meant, or float64 for a reference.
    """

    def __init__(
        self, config: configs.CodecDecoder, tensors: Mapping[str, Tensor], dtype: torch.dtype = torch.float32
    ) -> None:
        weights = Part(tensors, dtype).at("decoder")
        self.config, self.frame = config, prod((*config.upsample, *config.rates))
        first, rest = (weights.at("quantizer").at(name) for name in ("rvq_first", "rvq_rest"))
        books = [first.at("vq.layers.0"), *(rest.at("vq.layers").at(book) for book in range(config.codebooks - 1))]
        self.tables = torch.stack([book.at("_codebook").codebook("embedding_sum") for book in books])
        self.books = torch.arange(config.codebooks, device=self.tables.device)
        self.first, self.rest = (Linear.read(part.at("output_proj")) for part in (first, rest))
        self.stages = list(_stages(config, weights))

    def start(self, batch: int = 1) -> State:
        """Return the state of streams that have decoded nothing."""
        return State([Stream() for _ in range(batch)])

    def decode(self, codes: Tensor, state: State) -> Tensor:
        """Decode the next frames: codes [batch, frames, codebooks] -> samples [batch, frames * 1920] in [-1, 1].

        The state advances. Raises InvalidInput for codes of another shape or out of range.
        """
        codes = self._checked(codes, state)
        samples = self.tables.new_empty(*codes.shape[:2], self.frame)
        for row, stream in enumerate(state.streams):
            for place in range(codes.shape[1]):
                samples[row, place] = self._next(codes[row, place], stream)
        return samples.flatten(1)

    def prime(self, codes: Tensor, state: State) -> None:
        """Decode frames that came before the stream, such as those of a reference voice, for their state alone."""
        self.decode(codes, state)

    def _next(self, codes: Tensor, stream: Stream) -> Tensor:
        """Decode one frame of one stream, [codebooks] -> [1920]."""
        vectors = self.tables[self.books, codes]
        x = self.first(vectors[:1]) + self.rest(vectors[1:].sum(0, keepdim=True))
        for stage in self.stages:
            x = stage(x, stream)
        stream.frame += 1
        return x[:, 0].clamp(-1, 1)

    def _checked(self, codes: Tensor, state: State) -> Tensor:
        books, size = self.tables.shape[:2]
        expected = f"integer codes [{len(state.streams)}, frames, {books}] from 0 to {size - 1}"
        todo = "give the codes of one frame a row, and a state of as many streams"
        if codes.dim() != 3 or (codes.shape[0], codes.shape[2]) != (len(state.streams), books):
            raise InvalidInput(expected=expected, got=f"the shape {list(codes.shape)}", todo=todo)
        if codes.numel() and (codes.is_floating_point() or not 0 <= codes.min() <= codes.max() < size):
            raise InvalidInput(expected=expected, got=f"{codes.dtype} from {codes.min()} to {codes.max()}", todo=todo)
        return codes.to(self.tables.device, torch.int64)


def _stages(config: configs.CodecDecoder, weights: Part) -> Iterator[Stage]:
    """List what a frame goes through behind the codebooks, from 1 position to 1920."""
    yield CausalConv.read(weights.at("pre_conv.conv"))
    yield Transformer(config, weights.at("pre_transformer"))
    for place, factor in enumerate(config.upsample):
        part = weights.at("upsample").at(place)
        yield CausalConv.read_transposed(part.at("0.conv"), factor)
        yield ConvNeXt(part.at(1))
    layers = weights.at("decoder")
    yield CausalConv.read(layers.at("0.conv"))
    for place, rate in enumerate(config.rates, 1):
        block = layers.at(place).at("block")
        yield CausalConv.read_transposed(block.at("1.conv"), rate, Snake(block.at(0)))
        for unit, dilation in enumerate(DILATIONS, 2):
            yield ResidualUnit(block.at(unit), dilation)
    last = len(config.rates) + 1
    yield CausalConv.read(layers.at(f"{last + 1}.conv"), Snake(layers.at(last)))
