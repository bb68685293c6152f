"""Text that is still being written: pauses are noticed, waiting can be stopped, and nothing is taken too early."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest

import onekernel
import speech_checkpoint
from onekernel.errors import InvalidInput
from onekernel.speech.lm.model import Generation
from onekernel.speech.model import SpeechModel
from onekernel.speech.prompt import sentences
from onekernel.speech.request import SpeechRequest
from onekernel.speech.text_feed import Cancelled, TextFeed

SOON, LONG = 0.05, 30.0  # seconds: a pause that is noticed, and one that no test waits for


class Writer(Iterator[str]):
    """Writes a piece when it is allowed to; knows how many were asked for."""

    def __init__(self, *pieces: str) -> None:
        self.pieces, self.asked, self.allowed = list(pieces), 0, threading.Semaphore(0)

    def __next__(self) -> str:
        self.asked += 1
        assert self.allowed.acquire(timeout=LONG)
        if not self.pieces:
            raise StopIteration
        return self.pieces.pop(0)


def test_pieces_come_as_they_are_and_then_the_end() -> None:
    assert list(TextFeed(["a", None, b"b", ""])) == ["a", None, b"b", ""]
    assert list(TextFeed([])) == []


def test_a_piece_is_taken_when_it_is_asked_for() -> None:
    writer = Writer("a", "b")
    writer.allowed.release(2)
    feed = TextFeed(writer)
    assert writer.asked == 0
    assert next(feed) == "a"
    assert writer.asked == 1


def test_a_pause_is_told_once_and_the_piece_behind_it_is_not_lost() -> None:
    writer = Writer("a", "b")
    feed = TextFeed(writer, idle=SOON)
    assert next(feed) is None
    threading.Timer(4 * SOON, writer.allowed.release).start()  # no second pause is told meanwhile
    assert next(feed) == "a"
    assert next(feed) is None
    assert writer.asked == 2


def test_without_a_limit_a_writer_is_waited_for() -> None:
    writer = Writer("a")
    threading.Timer(2 * SOON, writer.allowed.release).start()
    assert next(TextFeed(writer)) == "a"


def test_a_flush_is_a_pause_and_loses_nothing() -> None:
    writer = Writer("a")
    feed = TextFeed(writer)
    threading.Timer(SOON, feed.flush).start()
    assert next(feed) is None
    writer.allowed.release()
    assert next(feed) == "a"
    assert writer.asked == 1


def test_waiting_can_be_stopped() -> None:
    feed = TextFeed(Writer("a"))
    threading.Timer(SOON, feed.cancel).start()
    with pytest.raises(Cancelled):
        next(feed)


def test_what_the_writer_raises_is_raised_here() -> None:
    def broken() -> Iterator[str]:
        yield "a"
        raise OSError("the line is cut")

    feed = TextFeed(broken())
    assert next(feed) == "a"
    with pytest.raises(OSError, match="the line is cut"):
        next(feed)


def test_asynchronous_pieces_are_taken_in_their_loop() -> None:
    loops = set()

    async def written() -> AsyncIterator[str]:
        for piece in "abc":
            loops.add(asyncio.get_running_loop())
            await asyncio.sleep(0)
            yield piece

    async def read() -> list[Any]:
        feed = TextFeed(written())
        assert not loops
        found = await asyncio.to_thread(list, feed)
        assert loops == {asyncio.get_running_loop()}
        return found

    assert asyncio.run(read()) == ["a", "b", "c"]
    with pytest.raises(InvalidInput, match="got no running loop"):
        TextFeed(written())

    async def block() -> None:
        list(TextFeed(written()))

    with pytest.raises(InvalidInput, match="would block it"):
        asyncio.run(block())


# --- and as speech


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> SpeechModel:
    return onekernel.load_speech(speech_checkpoint.write(tmp_path_factory.mktemp("tiny") / "model"), device="cpu")


def sound(pieces: Any) -> Any:
    return np.concatenate(list(pieces))


def test_a_word_is_spoken_when_its_writer_pauses(model: SpeechModel) -> None:
    """As if the writer had said so; without the option it would be waited for."""
    writer = Writer("Hello")
    writer.allowed.release()
    speech = model.stream(writer, SpeechRequest(max_frames=4, chunk=1, idle_flush=SOON))
    first = next(speech)
    assert writer.asked == 2  # it is still writing
    writer.allowed.release()
    rest = list(speech)
    told = sound(model.stream(["Hello", None], SpeechRequest(max_frames=4, chunk=1)))
    assert (np.concatenate([first, *rest]) == told).all()


def test_a_flush_from_another_thread_speaks_the_word(model: SpeechModel) -> None:
    writer = Writer("Hello")
    writer.allowed.release()
    speech = model.stream(writer, SpeechRequest(max_frames=4, chunk=1))
    threading.Timer(SOON, speech.flush).start()
    assert len(next(speech)) == 1920
    speech.cancel()


def test_cancelling_ends_it_while_text_is_waited_for(model: SpeechModel) -> None:
    for heard in ((), ("Hello. ",)):
        writer = Writer(*heard)
        for _ in heard:
            writer.allowed.release()
        speech = model.stream(writer, SpeechRequest(max_frames=400, chunk=1))
        threading.Timer(4 * SOON, speech.cancel).start()
        start = time.monotonic()
        assert len(list(speech)) == len(speech.codes)
        assert speech.finish == "cancelled"
        assert time.monotonic() - start < LONG / 2  # it did not wait for the writer


def test_a_part_is_heard_to_its_end_while_the_next_is_waited_for(
    model: SpeechModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sentences, "ENDS", [(10, rule) for _, rule in sentences.ENDS[:1]])
    say = Generation.next_frame

    def ending(self: Generation) -> list[int] | None:
        self.finish = "eos" if self.frames == 20 else self.finish  # all of the text is heard by then
        return say(self)

    monkeypatch.setattr(Generation, "next_frame", ending)
    writer = Writer("Hello there, you. N")
    writer.allowed.release()
    speech = model.stream(writer, SpeechRequest(chunk=8))
    guard = threading.Timer(LONG, speech.cancel)
    guard.start()
    start = time.monotonic()
    assert sum(len(next(speech)) for _ in range(5)) == (1 + 2 + 4 + 8 + 5) * 1920
    assert time.monotonic() - start < LONG / 2
    assert speech.finish == ""
    guard.cancel()
    threading.Timer(SOON, speech.cancel).start()
    assert list(speech) == []
    assert speech.finish == "cancelled"


def test_asynchronous_text_sounds_as_the_whole(model: SpeechModel) -> None:
    asked = SpeechRequest(max_frames=8, text_mode="streaming")

    async def written() -> AsyncIterator[str]:
        for piece in "Hello there.":
            await asyncio.sleep(0)
            yield piece

    async def listen() -> list[Any]:
        return [samples async for samples in model.stream(written(), asked)]

    assert (np.concatenate(asyncio.run(listen())) == sound(model.stream("Hello there.", asked))).all()


def test_a_whole_text_has_nothing_to_flush(model: SpeechModel) -> None:
    speech = model.stream("Hello.", SpeechRequest(max_frames=2))
    speech.flush()
    assert len(sound(speech)) == 2 * 1920
