"""The tensors of a codec file by the names that they have there, and what can be folded before the first frame."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

LEAST_USAGE = 1e-5  # a code that was never used in training has no mean


@dataclass(frozen=True)
class Part:
    """The tensors under a prefix, read in one dtype; they stay on their device."""

    tensors: Mapping[str, Tensor]
    dtype: torch.dtype
    prefix: str = ""

    @property
    def name(self) -> str:
        """The name of this part."""
        return self.prefix.removesuffix(".")

    def at(self, name: str | int) -> Part:
        """Go to a part by its name or its place in a list."""
        return replace(self, prefix=f"{self.prefix}{name}.")

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[self.prefix + name].detach().to(self.dtype)

    def get(self, name: str) -> Tensor | None:
        """Read a tensor that only some layers have."""
        return self[name] if self.prefix + name in self.tensors else None

    def codebook(self, total: str) -> Tensor:
        """Return the mean vector of each code, [codes, width], from the sum `total` of all vectors and their number."""
        return self[total] / self["cluster_usage"].clamp(min=LEAST_USAGE)[:, None]
