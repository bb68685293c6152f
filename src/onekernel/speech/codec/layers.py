"""Convolutional layers for one frame of one stream, as matrix products of a fixed shape.

Activations are [positions, channels]: the rate of a layer is its positions in a frame.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from onekernel.speech.codec.part import Part
from onekernel.speech.codec.state import Stream

DILATIONS = (1, 3, 9)  # of the residual units of a stage


@dataclass(frozen=True)
class Linear:
    """y = W x + b for W [out, in]; a file may hold it as a convolution with one tap, [out, in, 1]."""

    matrix: Tensor
    bias: Tensor | None

    @classmethod
    def read(cls, weights: Part) -> Linear:
        return cls(weights["weight"].flatten(1), weights.get("bias"))

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.matrix, self.bias)


class Snake:
    """SnakeBeta: x + sin²(a x) / b, where logarithms of a and b are stored (Ziyin 2020, arXiv:2006.08195)."""

    def __init__(self, weights: Part) -> None:
        self.frequency = weights["alpha"].exp()
        self.size = 1 / (weights["beta"].exp() + 1e-9)

    def __call__(self, x: Tensor) -> Tensor:
        return x + self.size * torch.sin(x * self.frequency).square()


@dataclass(frozen=True)
class CausalConv:
    """Convolution that looks back only, behind an activation: [positions, in] -> [rate * positions, out].

    The inputs of all taps, oldest first, lie side by side in one row, so that `linear` is [rate * out, taps * in].
    """

    name: str  # of its inputs in the state
    linear: Linear
    taps: int
    dilation: int = 1
    rate: int = 1
    activation: Snake | None = None

    @classmethod
    def read(cls, weights: Part, activation: Snake | None = None, dilation: int = 1) -> CausalConv:
        """y[t] = b + Σ_k W[:, :, k] x[t - (taps - 1 - k) dilation] for W [out, in, taps]."""
        weight = weights["weight"]
        linear = Linear(weight.transpose(1, 2).flatten(1).contiguous(), weights["bias"])
        return cls(weights.name, linear, weight.shape[2], dilation, activation=activation)

    @classmethod
    def read_transposed(cls, weights: Part, rate: int, activation: Snake | None = None) -> CausalConv:
        """y[rate t + j] = b + Σ_k W[:, :, j + rate k]ᵀ x[t - k] for W [in, out, taps * rate], 0 <= j < rate."""
        weight = weights["weight"]
        weight = weight.reshape(*weight.shape[:2], -1, rate)
        matrix = weight.flip(2).permute(3, 1, 2, 0).flatten(2).flatten(0, 1).contiguous()
        linear = Linear(matrix, weights["bias"].repeat(rate))
        return cls(weights.name, linear, weight.shape[2], rate=rate, activation=activation)

    def __call__(self, x: Tensor, stream: Stream) -> Tensor:
        x = self.activation(x) if self.activation else x
        if self.taps > 1:
            window = stream.slide(self.name, x, (self.taps - 1) * self.dilation)
            x = torch.cat([window[k * self.dilation :][: len(x)] for k in range(self.taps)], 1)
        return self.linear(x).reshape(self.rate * len(x), -1)


class ResidualUnit:
    """x + conv2(snake(conv1(snake(x)))): seven dilated taps, then one."""

    def __init__(self, weights: Part, dilation: int) -> None:
        self.wide = CausalConv.read(weights.at("conv1.conv"), Snake(weights.at("act1")), dilation)
        self.point = CausalConv.read(weights.at("conv2.conv"), Snake(weights.at("act2")))

    def __call__(self, x: Tensor, stream: Stream) -> Tensor:
        return x + self.point(self.wide(x, stream), stream)


class ConvNeXt:
    """x + gamma * narrow(gelu(widen(norm(depthwise convolution of x)))) (Liu 2022, arXiv:2201.03545)."""

    def __init__(self, weights: Part) -> None:
        depthwise, norm = weights.at("dwconv.conv"), weights.at("norm")
        self.name = depthwise.name
        self.taps, self.bias = depthwise["weight"][:, 0].T.contiguous(), depthwise["bias"]
        self.norm = norm["weight"], norm["bias"]
        self.widen, self.narrow = Linear.read(weights.at("pwconv1")), Linear.read(weights.at("pwconv2"))
        self.gamma = weights["gamma"]

    def __call__(self, x: Tensor, stream: Stream) -> Tensor:
        window = stream.slide(self.name, x, len(self.taps) - 1)
        y = self.bias
        for place, tap in enumerate(self.taps):
            y = y + tap * window[place:][: len(x)]
        y = functional.layer_norm(y, y.shape[1:], *self.norm, eps=1e-6)
        return x + self.gamma * self.narrow(functional.gelu(self.widen(y)))
