"""How exact cuDNN is: by itself it convolves float32 in TF32, which hears other codes in a recording."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def full_precision() -> Iterator[None]:
    """Let convolutions be in float32, by an algorithm that does not change from run to run."""
    flags = torch.backends.cudnn.flags
    with flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        yield
