"""Text in, sound out, piece by piece: frames are decoded as soon as a piece of audio is full."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator

import numpy as np
import torch

from onekernel.speech.codec.state import State
from onekernel.speech.prompt.build import OpenPrompt, SpeechPrompt
from onekernel.speech.request import SpeechRequest
from onekernel.speech.text_feed import Cancelled, Piece, TextFeed
from onekernel.speech.utterance import Engine, Finish, Utterance
from onekernel.speech.voice.audio import Samples
from onekernel.speech.watchdog import FRAMES

Part = tuple[SpeechPrompt | OpenPrompt, str | Iterable[Piece]]  # a prompt, and its text
SILENCE = 1e-3  # root mean square of a frame, full scale being 1: -60 dB


class Speech(Iterator[Samples], AsyncIterator[Samples]):
    """Iterates over pieces of sound, float32 [n] at the model's rate. `finish` says why it ended, "" while it goes on.

    `codes` are those of all frames so far. Work is done in the thread that iterates, with `async for` in another;
    `cancel` and `flush` may come from any.
    """

    def __init__(
        self,
        engine: Engine,
        state: State,
        request: SpeechRequest,
        parts: Iterator[Part],
        feed: TextFeed | None = None,
    ) -> None:
        """Begin; the parts of a long text are spoken one behind the other. Raises what making the first one raises."""
        self.finish: Finish = ""
        self.codes: list[list[int]] = []
        self.notes: tuple[str, ...] = ()
        self._engine, self._state, self._request, self._parts, self._feed = engine, state, request, parts, feed
        self._chunks, self._cancelled, self._silent = request.chunks(), False, request.skip_silence
        self._quiet = 0  # silent frames at the end so far
        self._part = self._next_part()

    def cancel(self) -> None:
        """End within a frame, also while text is waited for; what is said up to there is still handed out."""
        self._cancelled = True
        if self._feed is not None:
            self._feed.cancel()

    def flush(self) -> None:
        """Say that the writer of a text in pieces pauses: the word that is held back, for it may go on, is spoken."""
        if self._feed is not None:
            self._feed.flush()

    def __next__(self) -> Samples:
        while self._silent and (frame := self._next_frame()) is not None:
            pcm = self._decode([frame])
            self._silent = _level(pcm) < SILENCE
            if not self._silent:
                return pcm
        size, codes = self._chunks.next(), list[list[int]]()
        while len(codes) < size and (frame := self._next_frame(begin=not codes)) is not None:
            codes.append(frame)
        if not codes:
            raise StopIteration
        return self._decode(codes)

    async def __anext__(self) -> Samples:
        samples = await asyncio.to_thread(next, self, None)
        if samples is None:
            raise StopAsyncIteration
        return samples

    def _next_part(self) -> Utterance | None:
        with torch.inference_mode():
            prompt, text = next(self._parts, (None, ""))
        if prompt is None:
            return None
        self.notes = prompt.notes
        return Utterance(self._engine, prompt, self._request, text, len(self.codes))

    def _decode(self, codes: list[list[int]]) -> Samples:
        with torch.inference_mode():
            codec = self._engine.codec
            samples = codec.decode(torch.tensor([codes], device=codec.tables.device), self._state)
        pcm: Samples = np.array(samples[0].cpu().numpy())
        self._listen(pcm.reshape(len(codes), -1))
        return pcm

    def _listen(self, frames: Samples) -> None:
        """End what has been silent for as long as a loop is listened to."""
        for frame in frames:
            self._quiet = self._quiet + 1 if _level(frame) < SILENCE else 0
        if self._quiet >= FRAMES:
            self.finish = self.finish or "repetition"

    def _next_frame(self, *, begin: bool = True) -> list[int] | None:
        """Say a frame of the part that is on; behind its last, of the next one, for which text may be waited for.

        What ended a part otherwise than well ends all. Returns None at the end, and for a part that is not to `begin`.
        """
        try:
            while self._part is not None and not self.finish and not self._cancelled:
                if (frame := self._part.next_frame()) is not None:
                    self.codes.append(frame)
                    return frame
                if not begin:
                    return None
                ended = self._part.finish
                self._part = self._next_part() if ended == "eos" else None
                self.finish = "" if self._part is not None else ended
        except Cancelled:
            pass
        if self._cancelled:
            self.finish = self.finish or "cancelled"
        return None


def _level(samples: Samples) -> float:
    """Return the root mean square."""
    return float(np.sqrt(np.mean(np.square(samples))))
