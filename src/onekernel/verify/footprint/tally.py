"""What OneKernel loaded and compiled for a side: to open it, and while it answered its first requests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from onekernel.device.counters import counts, since
from onekernel.verify.sides.subject import Inputs, Subject


class Tally:
    """Counts modules and seconds of compiling during the calls of the subject that it hands out."""

    def __init__(self, subject: Subject) -> None:
        self.modules, self.compile_seconds = subject.opening.modules, subject.opening.compile_seconds
        self._call = subject.call
        self.subject = replace(subject, call=self._counted)

    def _counted(self, inputs: Inputs) -> Any:
        start = counts()
        try:
            return self._call(inputs)
        finally:
            spent = since(start)
            self.modules += spent.modules
            self.compile_seconds += spent.compile_seconds
