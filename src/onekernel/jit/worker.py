"""A process that builds kernels: requests come on stdin, binaries or errors go to stdout, pickled, until stdin ends."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from typing import Any

from onekernel.errors import OneKernelError
from onekernel.jit.build import compile_request


def main() -> None:
    """Serve one parent. What a compiler prints must not get between the answers: stdout becomes stderr for the rest.

    An interrupt at the terminal reaches the parent too, which then closes stdin.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while True:
        try:
            request, emulate, sanitize = pickle.load(requests)
        except EOFError:
            return
        answer: Any
        try:
            answer = compile_request(request, emulate=emulate, sanitize=sanitize)
        except OneKernelError as error:
            answer = error
        pickle.dump(answer, answers)
        answers.flush()
