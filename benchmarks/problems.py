"""The normalisation chains that are timed, and what each contender calls: one definition for all of them.

rows     [rows, hidden]           LayerNorm as exported models spell it, nine operators
columns  [batch, channels, time]  the same between two transposes, then GELU: a layer of a VITS voice
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (the field's name for it)

from onekernel.fusion.chain import Chain, Operand, Result, Step

EPSILON = 1e-5
ROWS = [(4096, 64), (4096, 256), (1024, 1024), (8192, 1024), (32768, 4096)]
COLUMNS = [(1, 192, 109), (1, 192, 400), (1, 512, 300), (8, 192, 512), (1, 192, 16000)]


@dataclass(frozen=True)
class Problem:
    """A full tensor, [rows, hidden] or [batch, channels, time], of one dtype."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def columns(self) -> bool:
        return len(self.shape) == 3

    @property
    def hidden(self) -> int:
        return self.shape[1]

    @property
    def inner(self) -> int:
        return self.shape[2] if self.columns else 1

    @property
    def bytes(self) -> int:
        """Each element read once and written once."""
        return 2 * prod(self.shape) * (2 if self.dtype == "float16" else 4)

    def tensors(self) -> tuple[Any, Any, Any]:
        """Return x, weight and bias, random."""
        dtype = getattr(torch, self.dtype)
        weight, bias = (torch.randn(self.hidden, device="cuda", dtype=dtype) for _ in range(2))
        return torch.randn(self.shape, device="cuda", dtype=dtype), weight, bias

    def chain(self) -> Chain:
        """What the search finds in the decomposed graph."""
        dtype = self.dtype
        steps = [Step("mul", ("n", "in1"), "v0", ()), Step("add", ("v0", "in2"), "v1", ())]
        if self.columns:
            steps.append(Step("gelu", ("v1",), "v2", ()))
        operands = (Operand("in0", "full", dtype), Operand("in1", "channel", dtype), Operand("in2", "channel", dtype))
        results = (Result("out0", steps[-1].output, dtype),)
        return Chain(
            "layer_norm", 1, len(self.shape), self.hidden, EPSILON, operands, results, (), "in0", "n", (), tuple(steps),
            ("op",) * (16 if self.columns else 9), self.shape,
        )  # fmt: skip

    def decomposed(self, x: Any, weight: Any, bias: Any) -> Any:
        """Compute with the operators of the exported model."""
        if not self.columns:
            return nine(x, weight, bias)
        y = nine(x.transpose(1, 2), weight, bias).transpose(1, 2)
        return y * (torch.erf(y / 1.4142135623730951) + 1.0) * 0.5

    def library(self, x: Any, weight: Any, bias: Any) -> Any:
        """Compute with the framework's own normalisation."""
        if not self.columns:
            return F.layer_norm(x, (self.hidden,), weight, bias, EPSILON)
        return (
            F.gelu(F.layer_norm(x.transpose(1, 2), (self.hidden,), weight, bias, EPSILON)).transpose(1, 2).contiguous()
        )


def nine(x: Any, weight: Any, bias: Any) -> Any:
    """Normalise the last axis by nine operators."""
    mean = x.mean(-1, keepdim=True)
    centred = x - mean
    variance = centred.pow(2).mean(-1, keepdim=True)
    return centred / (variance + EPSILON).sqrt() * weight + bias
