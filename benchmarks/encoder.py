"""A transformer encoder in torch whose normalisations are nine operators each, as exported models spell them.

`fused` splices our kernel in by hand: the same module with the same weights, and one launch in the place of the nine.
"""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (the field's name for it)
from torch import nn

from benchmarks.problems import Problem, nine
from onekernel import device
from onekernel.device.parts import part_of
from onekernel.fusion.kernel import compile_for
from onekernel.fusion.schedule import Schedule
from onekernel.jit import Kernel

HIDDEN, HEADS, LAYERS, TOKENS = 256, 4, 6, 128


class Norm(nn.Module):
    """Layer normalisation in nine operators."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(hidden))
        self.bias = nn.Parameter(0.1 * torch.randn(hidden))

    def forward(self, x: Any) -> Any:
        return nine(x, self.weight, self.bias)


class FusedNorm(nn.Module):
    """The same in one launch, for tensors of one dtype."""

    def __init__(self, norm: Norm, rows: int) -> None:
        super().__init__()
        self.weight, self.bias = norm.weight, norm.bias
        problem = Problem((rows, norm.weight.numel()), str(norm.weight.dtype).removeprefix("torch."))
        self._kernel, self._schedule = _built(problem)

    def forward(self, x: Any) -> Any:
        return self.launch(x, self.weight, self.bias)

    def launch(self, x: Any, weight: Any, bias: Any) -> Any:
        """Normalise by weights that need not be the module's own."""
        out, rows = torch.empty_like(x), x.numel() // x.shape[-1]
        grid, stream = self._schedule.grid(rows, 1), torch.cuda.current_stream()
        self._kernel.launch(x, weight, bias, out, rows, 1, grid=grid, stream=stream)
        return out


@cache
def _built(problem: Problem) -> tuple[Kernel, Schedule]:
    """Build a kernel once for all normalisations of one size."""
    place = device.get("cuda")
    build = compile_for(problem.chain(), part_of(place.name, place.arch))
    return Kernel(build.request, place), build.schedule


class Layer(nn.Module):
    """Pre-norm attention and feed-forward."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = Norm(HIDDEN), Norm(HIDDEN)
        self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(self.norm1(x)).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def encoder() -> nn.Module:
    """Make the model with random weights, in float32 on the GPU, and in evaluation mode."""
    torch.manual_seed(0)
    return nn.Sequential(*(Layer() for _ in range(LAYERS)), Norm(HIDDEN)).eval().cuda()


def plain() -> tuple[nn.Module, list[Any]]:
    """Return the model as it is, and one call's inputs: `onekernel verify benchmarks.encoder:plain ...:spliced`."""
    return encoder(), [torch.randn(1, TOKENS, HIDDEN, device="cuda")]


def spliced() -> nn.Module:
    """Return the same model with one launch for each normalisation."""
    return fused(encoder(), TOKENS)


def fused(model: nn.Module, rows: int) -> nn.Module:
    """Copy a model with every normalisation in one launch."""
    spliced = copy.deepcopy(model)
    for path, child in list(spliced.named_modules()):
        if isinstance(child, Norm):
            parent, _, name = path.rpartition(".")
            setattr(spliced.get_submodule(parent), name, FusedNorm(child, rows))
    return spliced.eval()
