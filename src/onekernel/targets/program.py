"""A command line as a Subject: a program that is started anew for each request, without a shell.

`{inputs}` in it becomes the path of an .npz file with the inputs, `{outputs}` a path where the program writes an .npz
or .npy file, as numpy.savez and numpy.save do. Without `{outputs}` the result is what it prints, byte by byte.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from onekernel.errors import InvalidInput
from onekernel.targets.inputs import read_numpy, write_arrays
from onekernel.verify.sides.subject import Inputs

INPUTS, OUTPUTS = "{inputs}", "{outputs}"
TIMEOUT = 600.0  # seconds
# Linux counts what the parent held when it started a program as the program's own peak: a small one starts it.
_PEAK = """
import os, sys
words = sys.argv[2:]
_, status, usage = os.wait4(os.fork() or os.execvp(words[0], words), 0)
open(sys.argv[1], "w").write(str(usage.ru_maxrss))
sys.exit(os.waitstatus_to_exitcode(status) & 255)
"""
_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes, of ru_maxrss


class Program:
    """Raises InvalidInput for a line that names no program, and at a call for one that fails."""

    def __init__(self, line: str) -> None:
        try:
            self._words = shlex.split(line)
        except ValueError as error:
            raise InvalidInput(expected="a command line", got=f"{line!r} ({error})", todo="close the quote") from error
        if not self._words or shutil.which(self._words[0]) is None:
            todo = "name a program on the PATH, or give its path"
            raise InvalidInput(expected="a command line", got=f"{line!r}, which starts no program", todo=todo)
        self.line = line
        self._last: Inputs = ()

    @property
    def takes_inputs(self) -> bool:
        """Whether the line has a place for inputs."""
        return INPUTS in self.line

    def __call__(self, inputs: Inputs) -> Any:
        """Run once. Returns the arrays that were written, or the bytes that were printed (None: there are none)."""
        self._last = inputs
        with tempfile.TemporaryDirectory(prefix="onekernel.") as folder:
            return self._answer(inputs, Path(folder))

    def peak(self) -> float:
        """Return the bytes of memory at the peak of the last call, which is run once more for it."""
        with tempfile.TemporaryDirectory(prefix="onekernel.") as folder:
            place = Path(folder, "peak")
            self._answer(self._last, Path(folder), (sys.executable, "-I", "-S", "-c", _PEAK, str(place)))
            return float(place.read_text()) * _UNIT

    def _answer(self, inputs: Inputs, folder: Path, prefix: Sequence[str] = ()) -> Any:
        given, wanted = folder / "inputs.npz", folder / "outputs"
        if self.takes_inputs:
            write_arrays(given, inputs)
        words = [word.replace(INPUTS, str(given)).replace(OUTPUTS, str(wanted)) for word in self._words]
        printed = self._run([*prefix, *words])
        if OUTPUTS not in self.line:
            return printed or None
        written = next(iter(sorted(folder.glob("outputs*"))), None)
        if written is None:
            todo = f"write an .npz or .npy file to the path that stands for {OUTPUTS}"
            raise InvalidInput(expected=f"results of {self.line!r}", got="no file", todo=todo)
        return read_numpy(written)

    def _run(self, words: Sequence[str]) -> bytes:
        pipe, start = subprocess.PIPE, time.monotonic()
        with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, process_group=0) as process:
            kill = partial(os.killpg, process.pid, signal.SIGKILL)
            alarm = threading.Timer(TIMEOUT, kill)  # communicate(timeout=...) polls, which shows in a program's time
            alarm.start()
            try:
                printed, errors = process.communicate()
            except BaseException:
                kill()
                raise
            finally:
                alarm.cancel()
        if process.returncode == -signal.SIGKILL and time.monotonic() - start >= TIMEOUT:
            raise self._failure(f"none after {TIMEOUT:g} s")
        if process.returncode:
            last = errors.decode(errors="replace").strip().splitlines()[-1:]
            raise self._failure(f"exit code {process.returncode}" + "".join(f" ({line})" for line in last))
        return printed

    def _failure(self, got: str) -> InvalidInput:
        return InvalidInput(expected=f"an answer of {self.line!r}", got=got, todo="run it by hand to see why")
