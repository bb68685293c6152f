"""A Qwen3 decoder: RMSNorm, grouped-query attention with normed heads and RoPE, SwiGLU.

It rounds where the official one does. In bfloat16 every operation rounds its result, so the order of operations is part
of the model: the weight of a norm multiplies what was rounded, cos and sin are rounded tables, SiLU is rounded before
its product.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F  # noqa: N812 (the field's name for it)
from torch import Tensor

from onekernel.speech.config import Decoder


class KVCache:
    """Keys and values of one sequence, [layers, 2, kv_heads, capacity, head_dim]; `length` positions are filled."""

    def __init__(self, config: Decoder, capacity: int, like: Tensor, kept: torch.dtype | None = None) -> None:
        """Make room. It is on the device of `like`, and of its type if `kept` names no other."""
        shape = (config.layers, 2, config.kv_heads, capacity, config.head_dim)
        self._memory = torch.empty(shape, dtype=kept or like.dtype, device=like.device)
        self.length = 0

    @property
    def capacity(self) -> int:
        """How many positions fit."""
        return int(self._memory.shape[3])

    def write(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Put keys and values [kv_heads, T, head_dim] behind `length`; return all of the layer's up to there."""
        end = self.length + key.shape[1]
        keys, values = self._memory[layer]
        keys[:, self.length : end], values[:, self.length : end] = key, value
        return keys[:, :end].to(key.dtype), values[:, :end].to(value.dtype)

    def grow(self, capacity: int) -> None:
        """Make room for more positions; what is there stays."""
        larger = self._memory.new_empty((*self._memory.shape[:3], capacity, self._memory.shape[4]))
        larger[:, :, :, : self.length] = self._memory[:, :, :, : self.length]
        self._memory = larger

    def clone(self) -> KVCache:
        """Copy it: what a shared prefix is for."""
        copy = object.__new__(KVCache)
        copy._memory, copy.length = self._memory.clone(), self.length
        return copy


class Qwen3Decoder:
    """Hidden states in, hidden states after the final norm out; positions go on from the length of the cache."""

    def __init__(
        self, config: Decoder, tensors: Mapping[str, Tensor], prefix: str, kept: torch.dtype | None = None
    ) -> None:
        """Take the weights of `prefix`.layers.N and `prefix`.norm; caches hold `kept` (None: as the weights)."""
        self.config, self._kept = config, kept
        self._layers = [_Layer(config, tensors, f"{prefix}.layers.{i}", i) for i in range(config.layers)]
        self._norm = tensors[f"{prefix}.norm.weight"]
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device=self._norm.device) / config.head_dim
        self._frequencies = 1.0 / config.theta**exponents

    def cache(self, capacity: int) -> KVCache:
        """Return an empty cache."""
        return KVCache(self.config, capacity, self._norm, self._kept)

    def __call__(self, x: Tensor, cache: KVCache) -> Tensor:
        """Run T positions [T, hidden] behind those in the cache; returns [T, hidden]."""
        if (end := cache.length + len(x)) > cache.capacity:
            cache.grow(max(end, 2 * cache.capacity))
        rotation = self._rotation(cache.length, len(x), x.dtype)
        for layer in self._layers:
            x = layer(x, rotation, cache)
        cache.length += len(x)
        return rms_norm(x, self._norm, self.config.eps)

    def _rotation(self, start: int, count: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cos and sin [count, head_dim], computed in float32 and rounded."""
        positions = torch.arange(start, start + count, dtype=torch.float32, device=self._frequencies.device)
        angles = torch.outer(positions, self._frequencies)
        both = torch.cat((angles, angles), dim=-1)
        return both.cos().to(dtype), both.sin().to(dtype)


class _Layer:
    """One layer: attention, then the MLP, each on a norm of the residual stream."""

    def __init__(self, config: Decoder, tensors: Mapping[str, Tensor], prefix: str, number: int) -> None:
        self._config, self._number = config, number
        attention = {name: tensors[f"{prefix}.self_attn.{name}.weight"] for name in _ATTENTION}
        self._q, self._k, self._v, self._o, self._q_norm, self._k_norm = attention.values()
        self._gate, self._up, self._down = (tensors[f"{prefix}.mlp.{name}_proj.weight"] for name in _MLP)
        self._first = tensors[f"{prefix}.input_layernorm.weight"]
        self._second = tensors[f"{prefix}.post_attention_layernorm.weight"]

    def __call__(self, x: Tensor, rotation: tuple[Tensor, Tensor], cache: KVCache) -> Tensor:
        eps = self._config.eps
        x = x + self._attend(rms_norm(x, self._first, eps), rotation, cache)
        y = rms_norm(x, self._second, eps)
        return x + F.linear(F.silu(F.linear(y, self._gate)) * F.linear(y, self._up), self._down)

    def _attend(self, x: Tensor, rotation: tuple[Tensor, Tensor], cache: KVCache) -> Tensor:
        config, count = self._config, len(x)
        q, k, v = (F.linear(x, weight).view(count, -1, config.head_dim) for weight in (self._q, self._k, self._v))
        q, k = rms_norm(q, self._q_norm, config.eps), rms_norm(k, self._k_norm, config.eps)
        q, k = rotate(q.transpose(0, 1), rotation), rotate(k.transpose(0, 1), rotation)
        keys, values = cache.write(self._number, k, v.transpose(0, 1))
        seen = keys.shape[1] - count
        out = F.scaled_dot_product_attention(
            q[None], keys[None], values[None], _mask(count, seen, x.device) if seen and count > 1 else None,
            is_causal=count > 1 and not seen, scale=config.head_dim**-0.5, enable_gqa=config.heads != config.kv_heads,
        )  # fmt: skip
        return F.linear(out[0].transpose(0, 1).reshape(count, -1), self._o)


def _mask(count: int, seen: int, device: torch.device) -> Tensor:
    """Let each of `count` new positions see those before it and itself; returns booleans [count, seen + count]."""
    return torch.ones(count, seen + count, dtype=torch.bool, device=device).tril(seen)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Divide by the root of the mean square over the last axis, in float32; round; multiply by the weight; round."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Turn the pairs (i, i + half) of the last axis of x [heads, T, head_dim] (RoPE, the half-split form)."""
    cos, sin = rotation
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")
_MLP = ("gate", "up", "down")
