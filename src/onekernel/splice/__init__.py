"""Back into a runtime: a model is cut at its chains, and the pieces run as sessions and kernels in a loop."""

from __future__ import annotations

from onekernel.splice.folder import load
from onekernel.splice.model import FusedModel

__all__ = ["FusedModel", "load"]
