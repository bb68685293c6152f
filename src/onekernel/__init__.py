"""OneKernel finds the wall of small kernels in a GPU inference pipeline and melts it into one launch.

Importing this package loads nothing: each public name is loaded at its first use.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from onekernel._version import __version__

if TYPE_CHECKING:
    from onekernel.doctor import Health, doctor
    from onekernel.jit.kernel import kernel
    from onekernel.optimize import Optimization, optimize
    from onekernel.proof import verify
    from onekernel.speech.model import SpeechModel, load_speech
    from onekernel.speech.request import SpeechRequest
    from onekernel.splice import FusedModel, load
    from onekernel.text.model import TextModel, load_text
    from onekernel.verify import LIMITS, Metric, Plan, Subject, Verdict

__all__ = [
    "LIMITS",
    "FusedModel",
    "Health",
    "Metric",
    "Optimization",
    "Plan",
    "SpeechModel",
    "SpeechRequest",
    "Subject",
    "TextModel",
    "Verdict",
    "__version__",
    "doctor",
    "kernel",
    "load",
    "load_speech",
    "load_text",
    "optimize",
    "verify",
]

_HOMES = {
    "LIMITS": "verify",
    "FusedModel": "splice",
    "Health": "doctor",
    "Metric": "verify",
    "Optimization": "optimize",
    "Plan": "verify",
    "Subject": "verify",
    "Verdict": "verify",
    "doctor": "doctor",
    "kernel": "jit",
    "SpeechModel": "speech.model",
    "SpeechRequest": "speech.request",
    "load": "splice",
    "load_speech": "speech.model",
    "TextModel": "text.model",
    "load_text": "text.model",
    "optimize": "optimize",
    "verify": "proof",
}


class _Package(ModuleType):
    """The import system binds a room to its name in the package: a public name of the same spelling wins."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _HOMES or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
