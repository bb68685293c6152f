"""What the user named, as one side of a verification.

A text is understood as the first of these that it can be: the path of an .onnx file; a folder; `module:factory` or
`file.py:factory`; a command line, which has a space in it or is a program.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from onekernel.errors import InvalidInput
from onekernel.splice import FusedModel
from onekernel.targets import factory
from onekernel.targets.opened import Opened
from onekernel.targets.program import Program
from onekernel.targets.runtimes import open_folder, open_fused, open_onnx
from onekernel.verify import Subject
from onekernel.verify.sides.subject import subject_of

FORMS = (
    "MODEL.onnx, a folder of `onekernel optimize`, package.module:factory, file.py:factory, or a command line "
    "with {inputs} and {outputs} in it"
)


def open_subject(named: Any, side: str, *, random: bool = False) -> Opened:
    """Open one side: a path or text as above, an ONNX model, a FusedModel, a Subject, a torch module, a callable.

    `side` names a callable that has no name. `random`: draws of random numbers in models are left to chance; without
    it they give the same at every call. Raises InvalidInput for what cannot be used.
    """
    if isinstance(named, (str, Path)):
        return _open_text(str(named), random=random)
    if isinstance(named, FusedModel):
        return open_fused(named, random=random)
    if hasattr(named, "opset_import"):
        return open_onnx(named, random=random)
    return Opened(subject_of(named, side))


def _open_text(text: str, *, random: bool) -> Opened:
    path, word = Path(text), " " not in text
    if path.suffix == ".onnx" and (word or path.is_file()):
        return open_onnx(path, random=random)
    if path.is_dir():
        return open_folder(path, random=random)
    if named := factory.split(text):
        return _open_made(factory.factory_of(*named), text, random=random)
    if not word or shutil.which(text):
        return _open_program(text)
    raise InvalidInput(expected=FORMS, got=repr(text), todo="check the spelling")


def _open_made(make: Callable[[], Any], text: str, *, random: bool) -> Opened:
    def opened() -> Opened:
        made = make()
        made, inputs = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
        side = open_subject(made, text, random=random)
        return side if inputs is None else replace(side, inputs=inputs)

    first = opened()
    again = first.subject.reopen or (lambda: opened().subject.call)
    return replace(first, subject=replace(first.subject, reopen=again))


def _open_program(line: str) -> Opened:
    program = Program(line)
    subject = Subject(program, line, reopen=lambda: program, peak=program.peak)
    return Opened(subject, specs=None if program.takes_inputs else ())
