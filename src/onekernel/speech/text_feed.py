"""Text that is still being written: pieces from an iterator, awaited or not, taken one at a time and never too early.

A writer who takes long is said to pause, so that a word that is held back can be spoken; who listens can stop waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Iterable, Iterator
from queue import Empty, SimpleQueue
from threading import Thread

from onekernel.errors import InvalidInput

Piece = str | bytes | None  # None: the writer pauses, and no word is waited for
Pieces = Iterable[Piece] | AsyncIterable[Piece]


class Cancelled(Exception):
    """Nobody waits for the text any more."""


class TextFeed(Iterator[Piece]):
    """The pieces of a text; None after `idle` seconds without one (0: never), once for each pause.

    The writer's iterator runs in a thread of its own while a piece is waited for, an asynchronous one in its event
    loop: the loop that is running now. What it raises is raised here.
    """

    def __init__(self, pieces: Pieces, idle: float = 0.0) -> None:
        """Begin; nothing is taken yet. Raises InvalidInput for asynchronous pieces outside an event loop."""
        self._loop = _running_loop() if isinstance(pieces, AsyncIterable) else None
        self._take = _in_loop(self._loop, pieces) if isinstance(pieces, AsyncIterable) else iter(pieces).__next__
        self._idle = idle or None
        self._arrived: SimpleQueue[tuple[bool, Piece | Exception]] = SimpleQueue()  # whether from the writer, and what
        self._asked = self._paused = False

    def __next__(self) -> Piece:
        if self._loop is not None and _running_loop() is self._loop:
            raise _blocked("a plain `for` inside it, which would block it")
        if not self._asked:
            self._asked, self._paused = True, False
            Thread(target=self._ask, name="text", daemon=True).start()
        try:
            self._asked, piece = self._wait()
        except Empty:
            self._paused = True
            return None
        if isinstance(piece, Exception):
            raise piece
        return piece

    def flush(self) -> None:
        """Say, from any thread, that the writer pauses: a word that is held back is spoken now."""
        self._arrived.put((False, None))

    def cancel(self) -> None:
        """Let whoever waits for a piece, in any thread, have `Cancelled` instead."""
        self._arrived.put((False, Cancelled()))

    def _wait(self) -> tuple[bool, Piece | Exception]:
        """Return whether the writer is still being waited for, and what arrived."""
        from_writer, piece = self._arrived.get(timeout=None if self._paused else self._idle)
        return not from_writer, piece

    def _ask(self) -> None:
        try:
            piece: Piece | Exception = self._take()
        except (StopIteration, StopAsyncIteration):
            piece = StopIteration()
        except Exception as error:  # it is the caller's, and raised where the text is read
            piece = error
        self._arrived.put((True, piece))


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _in_loop(loop: asyncio.AbstractEventLoop | None, pieces: AsyncIterable[Piece]) -> Callable[[], Piece]:
    """Return a function that waits, in a thread, for the next piece of an event loop."""
    if loop is None:
        raise _blocked("no running loop")
    iterator = aiter(pieces)

    async def following() -> Piece:
        return await anext(iterator)

    return lambda: asyncio.run_coroutine_threadsafe(following(), loop).result()


def _blocked(got: str) -> InvalidInput:
    todo = "call stream in a coroutine and read it with `async for`"
    return InvalidInput(expected="asynchronous text that is read in its event loop", got=got, todo=todo)
