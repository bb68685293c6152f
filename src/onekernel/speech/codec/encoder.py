"""Samples -> codes, as a whole: a causal convolutional encoder, a transformer, and residual vector quantisation.

This is the encoder of Mimi (Défossez 2024, arXiv:2410.00037). It runs once for a reference voice and does not stream.
Activations are [1, channels, positions], those of the transformer [1, positions, channels].
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from onekernel.errors import InvalidInput
from onekernel.speech.codec.part import Part
from onekernel.speech.config import CodecConfig, Decoder
from onekernel.speech.precision import full_precision


class CodecEncoder:
    """The encoder half of the codec, with the tensors of a file under their own names; it runs where they are."""

    def __init__(self, config: CodecConfig, tensors: Mapping[str, Tensor], dtype: torch.dtype = torch.float32) -> None:
        self.config = config
        self.weights = Part(tensors, dtype).at("encoder")
        part = self.weights.at("quantizer")
        self.semantic = Quantizer(part.at("semantic_residual_vector_quantizer"), 1)
        self.acoustic = Quantizer(part.at("acoustic_residual_vector_quantizer"), config.used_codebooks - 1)

    @full_precision()
    def encode(self, samples: Tensor) -> Tensor:
        """Encode samples [n] at 24 kHz -> codes [ceil(n / 1920), codebooks], int64."""
        if samples.dim() != 1 or not len(samples):
            got = f"the shape {list(samples.shape)}"
            raise InvalidInput(expected="samples [n] of one channel, n > 0", got=got, todo="give one channel")
        config, layers = self.config.encoder, self.weights.at("encoder.layers")
        x = _conv(samples.to(layers["0.conv.weight"])[None, None], layers.at("0.conv"))
        for place, stride in enumerate(config.strides):
            block, shrink = layers.at(3 * place + 1).at("block"), layers.at(3 * place + 3).at("conv")
            inner = _conv(functional.elu(x), block.at("1.conv"))
            x = x + _conv(functional.elu(inner), block.at("3.conv"))
            x = _conv(functional.elu(x), shrink, stride)
        x = _conv(functional.elu(x), layers.at(3 * len(config.strides) + 2).at("conv"))
        x = _transform(x.transpose(1, 2), config.transformer, self.weights.at("encoder_transformer.layers"))
        x = _conv(x.transpose(1, 2), self.weights.at("downsample.conv"), 2, "replicate")
        return torch.stack([*self.semantic(x), *self.acoustic(x)], 1)


class Quantizer:
    """Residual vector quantisation: each codebook takes the vector nearest to what the ones before it left."""

    def __init__(self, weights: Part, books: int) -> None:
        self.project = weights["input_proj.weight"]
        self.books = [weights.at("layers").at(book).at("codebook").codebook("embed_sum") for book in range(books)]

    def __call__(self, x: Tensor) -> Iterator[Tensor]:
        """Yield the codes [frames] of each codebook for x [1, hidden, frames]."""
        left = functional.conv1d(x, self.project)[0].T.contiguous()
        for book in self.books:
            codes = torch.cdist(left[None], book[None])[0].argmin(-1)
            left = left - book[codes]
            yield codes


def _conv(x: Tensor, weights: Part, stride: int = 1, pad: Literal["constant", "replicate"] = "constant") -> Tensor:
    """Convolve looking back only; the end is filled up to a whole stride."""
    weight = weights["weight"]
    x = functional.pad(x, (weight.shape[2] - stride, -x.shape[2] % stride), pad)
    return functional.conv1d(x, weight, weights.get("bias"), stride)


def _transform(x: Tensor, config: Decoder, layers: Part) -> Tensor:
    """Run the transformer: causal attention over everything before, whatever window the config names."""
    powers = torch.arange(0, config.head_dim, 2, device=x.device, dtype=x.dtype) / config.head_dim
    angles = torch.arange(x.shape[1], device=x.device, dtype=x.dtype)[:, None] * (1 / config.theta**powers)
    rotation = angles.cos(), angles.sin()
    for place in range(config.layers):
        layer = layers.at(place)
        y = _layer_norm(x, layer.at("input_layernorm"), config.eps)
        x = x + layer["self_attn_layer_scale.scale"] * _attend(y, layer.at("self_attn"), config, rotation)
        y = _layer_norm(x, layer.at("post_attention_layernorm"), config.eps)
        y = functional.linear(functional.gelu(functional.linear(y, layer["mlp.fc1.weight"])), layer["mlp.fc2.weight"])
        x = x + layer["mlp_layer_scale.scale"] * y
    return x


def _attend(y: Tensor, part: Part, config: Decoder, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Attend with heads of their own keys, the first half of each rotated with the second."""
    cos, sin = rotation

    def heads(name: str) -> Tensor:
        wide = functional.linear(y, part[f"{name}_proj.weight"])
        return wide.view(1, y.shape[1], config.heads, config.head_dim).transpose(1, 2)

    def rotate(x: Tensor) -> Tensor:
        one, two = x.chunk(2, -1)
        return torch.cat([one * cos - two * sin, two * cos + one * sin], -1)

    mixed = functional.scaled_dot_product_attention(rotate(heads("q")), rotate(heads("k")), heads("v"), is_causal=True)
    return functional.linear(mixed.transpose(1, 2).flatten(2), part["o_proj.weight"])


def _layer_norm(x: Tensor, part: Part, eps: float) -> Tensor:
    return functional.layer_norm(x, x.shape[2:], part["weight"], part["bias"], eps)
