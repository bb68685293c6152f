"""Text in, sound out, piece by piece: frames are said, and decoded as soon as a piece of audio is full."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from onekernel.speech.codec.decoder import CodecDecoder
from onekernel.speech.codec.state import State
from onekernel.speech.lm.model import Generation, LanguageModel, begin
from onekernel.speech.lm.sampling import by_counter
from onekernel.speech.prompt import OpenPrompt, SpeechPrompt
from onekernel.speech.request import Sampling, SpeechRequest
from onekernel.speech.voice.audio import Samples
from onekernel.speech.watchdog import is_stuck

SILENCE = 1e-3  # root mean square of a frame, full scale being 1: -60 dB
Finish = Literal["", "eos", "length", "cancelled", "repetition"]


@dataclass(frozen=True)
class Engine:
    """What speaks: plain torch, one request at a time. `defaults` are the checkpoint's."""

    lm: LanguageModel
    codec: CodecDecoder
    defaults: Sampling


class Speech(Iterator[Samples]):
    """Iterates over pieces of sound, float32 [n] at the model's rate. `finish` says why it ended, "" while it goes on.

    `codes` are those of all frames so far. Work is done in the thread that iterates; `cancel` may come from another.
    """

    def __init__(
        self,
        engine: Engine,
        state: State,
        prompt: SpeechPrompt | OpenPrompt,
        request: SpeechRequest,
        text: str | Iterable[str | bytes],
    ) -> None:
        """Begin; a text that is not whole arrives in pieces."""
        self.finish: Finish = ""
        self.codes: list[list[int]] = []
        self.notes = prompt.notes
        self._engine, self._state, self._prompt, self._request = engine, state, prompt, request
        self._pieces: Iterator[str | bytes] = iter(()) if isinstance(text, str) else iter(text)
        self._heard = len(text) if isinstance(text, str) else 0  # characters
        self._chunks, self._cancelled, self._silent = request.chunks(), False, request.skip_silence
        self._generation: Generation | None = None
        self._last: list[int] | None = None
        self._first_codes: list[int] = []

    def cancel(self) -> None:
        """End within a frame; what is said up to there is still handed out."""
        self._cancelled = True

    def __next__(self) -> Samples:
        while self._silent and (frame := self._next_frame()) is not None:
            pcm = self._decode([frame])
            self._silent = bool(np.sqrt(np.mean(np.square(pcm))) < SILENCE)
            if not self._silent:
                return pcm
        size, codes = self._chunks.next(), list[list[int]]()
        while len(codes) < size and (frame := self._next_frame()) is not None:
            codes.append(frame)
        if not codes:
            raise StopIteration
        return self._decode(codes)

    def _decode(self, codes: list[list[int]]) -> Samples:
        self.codes += codes
        with torch.inference_mode():
            codec = self._engine.codec
            samples = codec.decode(torch.tensor([codes], device=codec.tables.device), self._state)
        pcm: Samples = np.array(samples[0].cpu().numpy())
        return pcm

    def _next_frame(self) -> list[int] | None:
        if self._cancelled:
            self.finish = self.finish or "cancelled"
        if self.finish:
            return None
        with torch.inference_mode():
            generation = self._advanced()
            frame = generation.next_frame()
        self._last, self.finish = frame, generation.finish
        self._first_codes += [frame[0]] if frame else []
        if is_stuck(self._first_codes):
            self.finish = "repetition"
        return frame

    def _advanced(self) -> Generation:
        """Bring the talker to where the next frame is said: through the prompt, or past the frame before."""
        if self._generation is None:
            self._generation = self._begin()
        else:
            assert self._last is not None
            self._generation.advance(self._last, self._text(self._generation.frames - 1))
        return self._generation

    def _begin(self) -> Generation:
        request, prompt = self._request, self._prompt
        prefill = prompt.prefill if isinstance(prompt, SpeechPrompt) else torch.cat((prompt.prefix, self._rest(prompt)))
        draw, sampling = by_counter(request.seed), request.sampling(self._engine.defaults)
        most = request.frame_cap(self._heard)
        return begin(self._engine.lm, prefill, sampling, draw, most_frames=most)

    def _rest(self, prompt: OpenPrompt) -> Tensor:
        while (rest := prompt.rest()) is None:
            self._hear(prompt)
        return rest

    def _text(self, frame: int) -> Tensor:
        """Return the text that goes with a frame, waiting for more of it where it is not known yet."""
        while (row := self._prompt.next_text(frame)) is None:
            assert isinstance(self._prompt, OpenPrompt)
            self._hear(self._prompt)
        return row

    def _hear(self, prompt: OpenPrompt) -> None:
        """Take in the next piece of text, or its end; the longer the text, the later speech is cut off."""
        piece: Any = next(self._pieces, None)
        if piece is None:
            prompt.close()
        else:
            self._heard += len(piece)
            prompt.push(piece)
        if self._generation is not None:
            self._generation.most_frames = self._request.frame_cap(self._heard)
