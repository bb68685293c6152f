"""The whole way: from an ONNX model to a proven, saved, faster one."""

from __future__ import annotations

from onekernel.optimize.outcome import Candidate, Optimization
from onekernel.optimize.story import optimize

__all__ = ["Candidate", "Optimization", "optimize"]
