"""Sound through the loudspeakers while it is made, by whichever player is on this machine."""

from __future__ import annotations

import logging
import shutil
import subprocess
from queue import SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Any, Self

from onekernel.errors import InvalidInput

log = logging.getLogger("onekernel")
COMMANDS = (
    ("ffplay", "-loglevel", "error", "-nodisp", "-autoexit", "-"), ("play", "-q", "-t", "wav", "-"),
    ("paplay",), ("aplay", "-q"),
)  # fmt: skip


class Player:
    """Plays what is written to it, in a thread: who makes sound faster than it is heard does not wait.

    A player that its user closes is told once, and nothing more is played. Leaving the context waits until all is
    heard; with an error in flight, it stops at once.
    """

    def __init__(self, rate: int) -> None:
        """Start the first player that is here. Raises InvalidInput if none is."""
        command = next((line for line in COMMANDS if shutil.which(line[0])), None)
        if command is None:
            names = ", ".join(line[0] for line in COMMANDS)
            raise InvalidInput(
                expected=f"a player: {names}", got="none of them", todo="install one, or leave --play out"
            )
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE)
        self._queue: SimpleQueue[Any] = SimpleQueue()  # samples, then None
        self._thread = Thread(target=self._play, args=(rate,), name="player", daemon=True)
        self._thread.start()

    def write(self, samples: Any) -> None:
        """Play float32 [n] behind what was written before."""
        self._queue.put(samples)

    def _play(self, rate: int) -> None:
        from onekernel.speech.voice.writer import AudioWriter

        try:
            with self._process.stdin as pipe, AudioWriter(pipe, rate, "wav") as writer:  # type: ignore[union-attr, arg-type]
                while (samples := self._queue.get()) is not None:
                    writer.write(samples)
        except BrokenPipeError:
            log.warning("%s does not play any more; the rest is only written", self._process.args[0])  # type: ignore[index]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._queue.put(None)
        try:
            if error is None:
                self._thread.join()
                self._process.wait()
        finally:  # the wait may be interrupted, too
            self._process.terminate()
            self._process.wait()
