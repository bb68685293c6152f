"""A process that asks for kernels when it is told to: `python tests/cache_worker.py sleep|nvrtc`.

Each line on stdin is a folder. Sixteen threads ask the cache in it for one new key at once; the answer is a line of
JSON with what each of them got. A build leaves a line with the number of the process in the file `begun`, and another
in `ended`.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

from onekernel.jit.cache import KernelCache, Label, digest
from onekernel.jit.compile.binary import Binary, Resources

THREADS = 16
LABEL = Label(digest("new"), "k", "sm_90", "test")
TEXT = 'extern "C" __global__ void k(float* x) { x[0] = 1.0f; }\n'


def note(path: Path) -> None:
    """Append the number of this process to a file, in one write."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{os.getpid()}\n".encode())
    os.close(file)


def compiled(how: str) -> bytes:
    if how == "nvrtc":
        from onekernel.jit.compile import nvrtc

        return nvrtc.compile_cubin("k", TEXT, "sm_90").data
    time.sleep(0.05)
    return b"bytes"


def ask(folder: Path, how: str) -> list[list[str]]:
    """Return for each thread the hash of the binary that it got, and which process had built it."""

    def build() -> Binary:
        note(folder / "begun")
        binary = Binary(compiled(how), Resources(registers=7), 0.5, str(os.getpid()))
        note(folder / "ended")
        return binary

    def get() -> None:
        start.wait()
        binary = cache.get(LABEL, TEXT, build)
        got.append([digest(binary.data.hex()), binary.log])

    cache, got, start = KernelCache(folder / "cache"), list[list[str]](), threading.Barrier(THREADS)
    threads = [threading.Thread(target=get) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return got


def main() -> None:
    """Serve until stdin ends."""
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(ask(Path(line.strip()), sys.argv[1])), flush=True)


if __name__ == "__main__":
    main()
