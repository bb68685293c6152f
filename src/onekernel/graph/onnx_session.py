"""Opens sessions of ONNX Runtime on its CPU provider: one place for the options. It refuses to know what runs."""

from __future__ import annotations

import os
from typing import Any

from onekernel.errors import MissingExtra

# Many small sessions share few cores: waiting threads must not spin, and more threads than this do not help.
_THREADS = 8


def cpu_session(model: bytes, *, optimize: bool = True) -> Any:
    """Load a serialized model on the CPU provider, quietly; what its optimisations break is loaded without them.

    Raises MissingExtra without ONNX Runtime.
    """
    try:
        import onnxruntime
        from onnxruntime.capi.onnxruntime_pybind11_state import Fail
    except ModuleNotFoundError as error:
        raise MissingExtra("onnxruntime", "onnx") from error
    levels, options = onnxruntime.GraphOptimizationLevel, onnxruntime.SessionOptions()
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimize else levels.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = min(_THREADS, os.cpu_count() or 1)
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])
    except Fail:  # for one, LayerNormFusion of 1.2x makes an invalid node of a norm between two casts
        if not optimize:
            raise
        return cpu_session(model, optimize=False)
