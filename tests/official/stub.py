"""What the official package imports and this use of it does not need."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def without_torchaudio() -> None:
    """Put empty modules in the place of torchaudio, whose wheels do not fit every torch; the 25 Hz codec uses it."""
    parent: Any = None
    for name in ("torchaudio", "torchaudio.compliance", "torchaudio.compliance.kaldi"):
        module: Any = ModuleType(name)
        module.__spec__, module.__path__, module.__version__ = ModuleSpec(name, None, is_package=True), [], "0"
        if parent is not None:
            setattr(parent, name.rpartition(".")[2], module)
        sys.modules[name] = parent = module
