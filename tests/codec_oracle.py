"""The codec's decoder as one formula over the whole sequence: padding for state, no chunks, library convolutions.

It shares no code with the product: written from the table of layers, channels first, [1, channels, positions].
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from onekernel.speech.config import CodecDecoder


def decode(config: CodecDecoder, tensors: Mapping[str, Tensor], codes: Tensor) -> Tensor:
    """Decode one stream in float64: codes [frames, codebooks] -> samples [frames * 1920]."""
    given = {name.removeprefix("decoder."): tensor.double() for name, tensor in tensors.items()}
    x = _conv(_vectors(given, codes)[None].mT, given, "pre_conv.conv")
    x = _transformer(config, given, x)
    for stage, rate in enumerate(config.upsample):
        x = _transposed(x, given, f"upsample.{stage}.0.conv", rate)
        x = _convnext(x, given, f"upsample.{stage}.1")
    x = _conv(x, given, "decoder.0.conv")
    for stage, rate in enumerate(config.rates, 1):
        block = f"decoder.{stage}.block"
        x = _transposed(_snake(x, given, f"{block}.0"), given, f"{block}.1.conv", rate)
        for unit, dilation in ((2, 1), (3, 3), (4, 9)):
            y = _conv(_snake(x, given, f"{block}.{unit}.act1"), given, f"{block}.{unit}.conv1.conv", dilation)
            x = x + _conv(_snake(y, given, f"{block}.{unit}.act2"), given, f"{block}.{unit}.conv2.conv")
    end = len(config.rates) + 1
    x = _conv(_snake(x, given, f"decoder.{end}"), given, f"decoder.{end + 1}.conv")
    return x.reshape(-1).clamp(-1, 1)


def _vectors(given: Mapping[str, Tensor], codes: Tensor) -> Tensor:
    """Sum what the codes of each frame mean, [frames, codebook_dim]."""
    total = torch.zeros(())
    for book in range(codes.shape[1]):
        part, layer = ("quantizer.rvq_rest", book - 1) if book else ("quantizer.rvq_first", 0)
        entry = f"{part}.vq.layers.{layer}._codebook"
        means = given[f"{entry}.embedding_sum"] / given[f"{entry}.cluster_usage"].clamp(min=1e-5).unsqueeze(1)
        total = total + means[codes[:, book]] @ given[f"{part}.output_proj.weight"].squeeze(2).mT
    return total


def _conv(x: Tensor, given: Mapping[str, Tensor], name: str, dilation: int = 1) -> Tensor:
    weight, bias = given[f"{name}.weight"], given[f"{name}.bias"]
    groups = x.shape[1] // weight.shape[1]
    padded = functional.pad(x, ((weight.shape[2] - 1) * dilation, 0))
    return functional.conv1d(padded, weight, bias, dilation=dilation, groups=groups)


def _transposed(x: Tensor, given: Mapping[str, Tensor], name: str, rate: int) -> Tensor:
    whole = functional.conv_transpose1d(x, given[f"{name}.weight"], given[f"{name}.bias"], stride=rate)
    return whole[:, :, : rate * x.shape[2]]


def _snake(x: Tensor, given: Mapping[str, Tensor], name: str) -> Tensor:
    frequency, size = (given[f"{name}.{part}"].exp()[:, None] for part in ("alpha", "beta"))
    return x + torch.sin(frequency * x) ** 2 / (size + 1e-9)


def _convnext(x: Tensor, given: Mapping[str, Tensor], name: str) -> Tensor:
    y = _conv(x, given, f"{name}.dwconv.conv").mT
    y = (y - y.mean(-1, keepdim=True)) / (y.var(-1, correction=0, keepdim=True) + 1e-6).sqrt()
    y = _linear(y * given[f"{name}.norm.weight"] + given[f"{name}.norm.bias"], given, f"{name}.pwconv1")
    y = _linear(y * (1 + torch.erf(y / 2**0.5)) / 2, given, f"{name}.pwconv2")
    return x + (given[f"{name}.gamma"] * y).mT


def _linear(x: Tensor, given: Mapping[str, Tensor], name: str) -> Tensor:
    return x @ given[f"{name}.weight"].mT + given.get(f"{name}.bias", 0)


def _transformer(config: CodecDecoder, given: Mapping[str, Tensor], x: Tensor) -> Tensor:
    part, prefix = config.transformer, "pre_transformer"
    x = _linear(x[0].mT, given, f"{prefix}.input_proj")
    for place in range(part.layers):
        layer = f"{prefix}.layers.{place}"
        y = _norm(x, given[f"{layer}.input_layernorm.weight"], part.eps)
        x = x + given[f"{layer}.self_attn_layer_scale.scale"] * _attend(config, given, f"{layer}.self_attn", y)
        y = _norm(x, given[f"{layer}.post_attention_layernorm.weight"], part.eps)
        gate, up = (_linear(y, given, f"{layer}.mlp.{name}_proj") for name in ("gate", "up"))
        y = _linear(gate * torch.sigmoid(gate) * up, given, f"{layer}.mlp.down_proj")
        x = x + given[f"{layer}.mlp_layer_scale.scale"] * y
    return _linear(_norm(x, given[f"{prefix}.norm.weight"], part.eps), given, f"{prefix}.output_proj").mT[None]


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return weight * x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()


def _attend(config: CodecDecoder, given: Mapping[str, Tensor], name: str, y: Tensor) -> Tensor:
    part, frames = config.transformer, torch.arange(len(y))
    half = part.head_dim // 2
    turns = frames.double()[:, None] * part.theta ** (-torch.arange(half).double() / half)
    rotation = torch.polar(torch.ones_like(turns), turns)  # [frames, half], as complex numbers

    def heads(which: str) -> Tensor:
        return _linear(y, given, f"{name}.{which}_proj").view(len(y), part.heads, part.head_dim).transpose(0, 1)

    def rotated(x: Tensor) -> Tensor:
        turned = torch.complex(x[..., :half], x[..., half:]) * rotation
        return torch.cat([turned.real, turned.imag], -1)

    scores = rotated(heads("q")) @ rotated(heads("k")).mT / part.head_dim**0.5
    back = frames[:, None] - frames
    scores = scores.masked_fill((back < 0) | (back >= config.window), -torch.inf)
    mixed = scores.softmax(-1) @ heads("v")
    return _linear(mixed.transpose(0, 1).reshape(len(y), -1), given, f"{name}.o_proj")
