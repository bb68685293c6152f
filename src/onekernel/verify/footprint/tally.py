"""What OneKernel loaded and compiled while a side answered its first requests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from onekernel.device.counters import counts
from onekernel.verify.subject import Inputs, Subject


class Tally:
    """Counts modules and seconds of compiling during the calls of the subject that it hands out."""

    def __init__(self, subject: Subject) -> None:
        self.modules, self.compile_seconds = 0, 0.0
        self._call = subject.call
        self.subject = replace(subject, call=self._counted)

    def _counted(self, inputs: Inputs) -> Any:
        before = counts()
        try:
            return self._call(inputs)
        finally:
            after = counts()
            self.modules += after.modules - before.modules
            self.compile_seconds += after.compile_seconds - before.compile_seconds
