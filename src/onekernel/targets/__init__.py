"""What the user named: a model and one call's inputs, or one side of a verification.

It opens files, starts programs and makes up inputs; it decides nothing.
"""

from __future__ import annotations

from onekernel.targets.inputs import make_up, read_arrays
from onekernel.targets.onnx_model import Target, open_target
from onekernel.targets.opened import Opened, inputs_for
from onekernel.targets.subjects import open_subject

__all__ = ["Opened", "Target", "inputs_for", "make_up", "open_subject", "open_target", "read_arrays"]
