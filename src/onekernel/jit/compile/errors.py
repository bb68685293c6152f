"""A compiler log -> one error that names the first fault, its line, and the chain node it came from."""

from __future__ import annotations

import re

from onekernel.device.places import line_of
from onekernel.errors import CompileError

# NVRTC: name(12): error: words        g++: name:12:5: error: words
_NVRTC = re.compile(
    r"^(?P<file>.+)\((?P<line>\d+)\): (?:catastrophic )?error(?: #[\w-]+)?: (?P<words>.*)$", re.MULTILINE
)
_GXX = re.compile(r"^(?P<file>[^\n]+?):(?P<line>\d+):\d+: (?:fatal )?error: (?P<words>.*)$", re.MULTILINE)
_PTXAS = re.compile(r"^\s*ptxas (?:error|fatal)\s*: (?P<words>.*)$", re.MULTILINE)  # has no line


def explain(name: str, text: str, log: str) -> CompileError:
    """Make the error to raise for a failed compile."""
    found = _NVRTC.search(log) or _GXX.search(log)
    if found is None:
        refused = _PTXAS.search(log)
        words = refused["words"].strip() if refused else log.strip() or "no reason given"
        return CompileError(name, error=words, origin="the assembler", line="", log=log)
    file, number = found["file"].strip(), int(found["line"])
    return CompileError(
        name,
        error=found["words"].strip(),
        origin=f"{file}:{number}" if not file.startswith("chain:") else file,
        line=line_of(text, file, number),
        log=log,
    )
