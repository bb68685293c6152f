"""The transformer of the decoder: one position a frame, attention over a window of frames that slides."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from onekernel.speech.codec.layers import Linear
from onekernel.speech.codec.part import Part
from onekernel.speech.codec.state import Stream
from onekernel.speech.config import CodecDecoder, Decoder


@dataclass(frozen=True)
class Place:
    """Where a frame stands: its rotation, and which slots of the window lie before frame 0."""

    cos: Tensor  # [head_dim / 2]
    sin: Tensor
    missing: Tensor  # [window], True where there is no frame

    def rotate(self, heads: Tensor) -> Tensor:
        """Rotate [..., head_dim] by the frame number, the first half with the second (Su 2021, arXiv:2104.09864)."""
        one, two = heads.chunk(2, -1)
        return torch.cat([one * self.cos - two * self.sin, two * self.cos + one * self.sin], -1)


class Transformer:
    """[1, latent] -> [1, latent] for one frame: projection, layers, norm, projection."""

    def __init__(self, config: CodecDecoder, weights: Part) -> None:
        part = config.transformer
        self.input, self.output = Linear.read(weights.at("input_proj")), Linear.read(weights.at("output_proj"))
        self.layers = [Layer(part, config.window, weights.at("layers").at(i)) for i in range(part.layers)]
        self.norm = RMSNorm(weights.at("norm"), part.eps)
        like = self.norm.weight
        powers = torch.arange(0, part.head_dim, 2, device=like.device, dtype=like.dtype) / part.head_dim
        self.frequency = 1 / part.theta**powers
        self.age = torch.arange(config.window - 1, -1, -1, device=like.device)  # of the slots of the window, in frames

    def __call__(self, x: Tensor, stream: Stream) -> Tensor:
        angle = stream.frame * self.frequency
        place = Place(angle.cos(), angle.sin(), self.age > stream.frame)
        x = self.input(x)
        for layer in self.layers:
            x = layer(x, stream, place)
        return self.output(self.norm(x))


class RMSNorm:
    """x / sqrt(mean(x²) + eps), times a weight of each channel (Zhang 2019, arXiv:1910.07467)."""

    def __init__(self, weights: Part, eps: float) -> None:
        self.weight, self.eps = weights["weight"], eps

    def __call__(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps))


class Layer:
    """Attention and SwiGLU, each behind a norm and added after a scale of each channel (LayerScale, arXiv:2103.17239).

    Attention always spans the whole window, oldest frame first: a slot before frame 0 has weight 0 and value 0.
    """

    def __init__(self, config: Decoder, window: int, weights: Part) -> None:
        attention, mlp = weights.at("self_attn"), weights.at("mlp")
        self.name, self.reach = attention.name, window - 1
        self.heads, self.width = config.kv_heads, config.head_dim
        self.before = RMSNorm(weights.at("input_layernorm"), config.eps)
        self.query, self.key, self.value, self.mix = (Linear.read(attention.at(f"{part}_proj")) for part in "qkvo")
        self.attention_scale = weights["self_attn_layer_scale.scale"]
        self.between = RMSNorm(weights.at("post_attention_layernorm"), config.eps)
        self.gate, self.up, self.down = (Linear.read(mlp.at(f"{part}_proj")) for part in ("gate", "up", "down"))
        self.mlp_scale = weights["mlp_layer_scale.scale"]

    def __call__(self, x: Tensor, stream: Stream, place: Place) -> Tensor:
        x = x + self.attention_scale * self.mix(self._attend(self.before(x), stream, place))
        y = self.between(x)
        return x + self.mlp_scale * self.down(functional.silu(self.gate(y)) * self.up(y))

    def _attend(self, y: Tensor, stream: Stream, place: Place) -> Tensor:
        """[1, hidden] -> [1, heads * head_dim]; heads that share a key stand together, [kv_heads, group, head_dim]."""
        query = place.rotate(self.query(y).view(self.heads, -1, self.width))
        key = place.rotate(self.key(y).view(1, self.heads, self.width))
        keys = stream.slide(f"{self.name}.key", key, self.reach)
        values = stream.slide(f"{self.name}.value", self.value(y).view(1, self.heads, self.width), self.reach)
        scores = query @ keys.permute(1, 2, 0) * self.width**-0.5
        weights = scores.masked_fill(place.missing, -torch.inf).softmax(-1)
        mixed: Tensor = weights @ values.transpose(0, 1)
        return mixed.view(1, -1)
