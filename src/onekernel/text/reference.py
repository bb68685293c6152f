"""The reference engine: a decoder in plain torch, from the same weights as the kernel.

Activations are float32, and so are products and sums. Keys and values are kept as the kernel keeps them: in bfloat16,
the newest are rounded before the first query sees them. So the two engines differ only by the order of their sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F  # noqa: N812 (the field's name for it)
from torch import Tensor

from onekernel.megakernel.decoder import DecoderShape
from onekernel.megakernel.interpret import rotations
from onekernel.text.config import TextConfig
from onekernel.text.weights import HEAD, NORM, TABLE


class Context:
    """What a decoder knows of one sequence: keys and values of `length` positions, and the rotation of every one.

    Keys and values are [layers, 2, kv_heads, capacity, head_dim], kept as the shape says; cos and sin are
    [capacity, head_dim / 2].
    """

    def __init__(self, shape: DecoderShape, capacity: int, like: Tensor) -> None:
        """Make room for `capacity` positions, on the device of activations `like`, with their dtype for rotations."""
        sizes = shape.layers, 2, shape.kv_heads, capacity, shape.head_dim
        self.kept = torch.zeros(sizes, dtype=getattr(torch, shape.kept), device=like.device)
        table = torch.from_numpy(rotations(capacity, shape.head_dim, shape.theta)).to(like)
        self.cos, self.sin = (part.contiguous() for part in table.chunk(2, dim=-1))
        self.length = 0

    def rotation(self, count: int) -> tuple[Tensor, Tensor]:
        """Return cos and sin of the next `count` positions."""
        end = self.length + count
        return self.cos[self.length : end], self.sin[self.length : end]

    def write(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Put keys and values [kv_heads, T, head_dim] behind `length`; return all of the layer's, in their dtype."""
        end = self.length + key.shape[1]
        keys, values = self.kept[layer]
        keys[:, self.length : end], values[:, self.length : end] = key, value
        return keys[:, :end].to(key.dtype), values[:, :end].to(value.dtype)

    def mask(self, count: int) -> Tensor | None:
        """Let each of `count` new positions see those before it and itself; None where all see all."""
        if count == 1:
            return None
        return torch.ones(count, self.length + count, dtype=torch.bool, device=self.kept.device).tril(self.length)

    def advance(self, count: int) -> None:
        """Count positions that every layer has written."""
        self.length += count


class TextDecoder:
    """Tokens in, logits of the last one out; positions go on from the length of the context."""

    def __init__(
        self, config: TextConfig, tensors: Mapping[str, Tensor], device: str | torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> None:  # fmt: skip
        """Take the tensors by their names in the file, rounded to the shape's kind, then widened to `dtype`.

        That is the dtype of activations. At float32 a parameter takes 4 bytes of the device.
        """
        self.shape, self.dtype = config.shape, dtype
        kind = getattr(torch, config.shape.weights)
        self.weights = {name: tensor.to(device).to(kind).to(dtype) for name, tensor in tensors.items()}
        self.table, self.head = self.weights[TABLE], self.weights[TABLE if config.tied else HEAD]

    def context(self, capacity: int) -> Context:
        """Begin a sequence."""
        return Context(self.shape, capacity, self.table)

    def __call__(self, tokens: Tensor, context: Context) -> Tensor:
        """Run tokens [T] behind those of the context; returns float32 [vocab], the logits of what follows the last."""
        x = F.embedding(tokens, self.table)
        count = len(tokens)
        around = context.rotation(count), context.mask(count)
        for layer in range(self.shape.layers):
            x = self._layer(layer, x, around, context)
        context.advance(count)
        return F.linear(self._norm(x[-1], NORM), self.head).float()

    def _layer(self, layer: int, x: Tensor, around: _Around, context: Context) -> Tensor:
        names = f"model.layers.{layer}"
        x = x + self._attend(layer, self._norm(x, f"{names}.input_layernorm.weight"), around, context)
        y = self._norm(x, f"{names}.post_attention_layernorm.weight")
        gate, up = (F.linear(y, self.weights[f"{names}.mlp.{part}_proj.weight"]) for part in ("gate", "up"))
        return x + F.linear(F.silu(gate) * up, self.weights[f"{names}.mlp.down_proj.weight"])

    def _attend(self, layer: int, x: Tensor, around: _Around, context: Context) -> Tensor:
        names, (rotation, mask) = f"model.layers.{layer}.self_attn", around
        query, key, value = (
            F.linear(x, self.weights[f"{names}.{part}_proj.weight"]).view(len(x), -1, self.shape.head_dim)
            for part in ("q", "k", "v")
        )
        if self.shape.head_norms:
            query, key = self._norm(query, f"{names}.q_norm.weight"), self._norm(key, f"{names}.k_norm.weight")
        query, key = rotate(query.transpose(0, 1), rotation), rotate(key.transpose(0, 1), rotation)
        keys, values = context.write(layer, key, value.transpose(0, 1))
        out = F.scaled_dot_product_attention(
            query[None], keys[None], values[None], mask, scale=self.shape.head_dim**-0.5,
            enable_gqa=self.shape.heads != self.shape.kv_heads,
        )  # fmt: skip
        return F.linear(out[0].transpose(0, 1).reshape(len(x), -1), self.weights[f"{names}.o_proj.weight"])

    def _norm(self, x: Tensor, weight: str) -> Tensor:
        """Divide by the root of the mean square over the last axis, in float32; times the weight."""
        wide = x.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.shape.epsilon)
        return self.weights[weight] * normed.to(self.dtype)


_Around = tuple[tuple[Tensor, Tensor], Tensor | None]  # the rotation of positions, and what they see


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Turn the pairs (i, i + half) of the last axis of x [heads, T, head_dim] by cos and sin [T, half]."""
    cos, sin = rotation
    one, two = x.chunk(2, dim=-1)
    return torch.cat((one * cos - two * sin, two * cos + one * sin), dim=-1)


class Reference:
    """The engine: requests share the decoder."""

    name = "reference"

    def __init__(self, decoder: TextDecoder) -> None:
        self.decoder = decoder

    def begin(self, prompt: Sequence[int], positions: int) -> ReferenceRequest:
        """Begin behind a prompt, with room for `positions`."""
        return ReferenceRequest(self.decoder, prompt, positions)


class ReferenceRequest:
    """A request on its way; `logits` are those of the token that was said last."""

    def __init__(self, decoder: TextDecoder, prompt: Sequence[int], positions: int) -> None:
        self._decoder, self._context = decoder, decoder.context(positions)
        self._next = torch.tensor(prompt, device=decoder.table.device)
        self.logits = torch.empty(0)

    @torch.inference_mode()
    def say(self, most: int) -> list[int]:
        """Return the next tokens: one, however many are asked for."""
        del most
        self.logits = self._decoder(self._next, self._context)
        self._next = self.logits.argmax()[None]
        return [int(self._next)]
