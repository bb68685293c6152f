"""One prompt spoken, frame by frame: text is heard when it is needed, and a loop is seen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from onekernel.speech.codec.decoder import CodecDecoder
from onekernel.speech.lm.model import Generation, LanguageModel, begin
from onekernel.speech.lm.sampling import Draw, by_counter
from onekernel.speech.prompt.build import OpenPrompt, SpeechPrompt
from onekernel.speech.request import Sampling, SpeechRequest
from onekernel.speech.text_feed import Piece
from onekernel.speech.watchdog import FRAMES, is_stuck

END: Any = object()
Finish = Literal["", "eos", "length", "cancelled", "repetition"]


@dataclass(frozen=True)
class Engine:
    """What speaks: plain torch, one request at a time. `defaults` are the checkpoint's."""

    lm: LanguageModel
    codec: CodecDecoder
    defaults: Sampling


class Utterance:
    """Says the frames of a prompt; `finish` says why it ended. `before` frames of the request were said by others."""

    def __init__(
        self,
        engine: Engine,
        prompt: SpeechPrompt | OpenPrompt,
        request: SpeechRequest,
        text: str | Iterable[Piece],
        before: int = 0,
    ) -> None:
        self.finish: Finish = ""
        self._engine, self._prompt, self._request, self._before = engine, prompt, request, before
        self._pieces: Iterator[Piece] = iter(()) if isinstance(text, str) else iter(text)
        self._heard = len(text) if isinstance(text, str) else 0  # characters
        self._generation: Generation | None = None
        self._said: list[list[int]] = []

    def next_frame(self) -> list[int] | None:
        """Say the next sixteen codes; None behind the last."""
        if self.finish:
            return None
        with torch.inference_mode():
            frame = self._advanced().next_frame()
        if frame is None:
            assert self._generation is not None
            self.finish = self._generation.finish
            return None
        self._said.append(frame)
        if is_stuck([codes[0] for codes in self._said[-FRAMES:]]):
            self.finish = "repetition"
        return frame

    def _advanced(self) -> Generation:
        """Bring the talker to where the next frame is said: through the prompt, or past the frame before."""
        if self._generation is None:
            self._generation = self._begin()
        else:
            self._generation.advance(self._said[-1], self._text(len(self._said) - 1))
        return self._generation

    def _begin(self) -> Generation:
        request, prompt = self._request, self._prompt
        prefill = prompt.prefill if isinstance(prompt, SpeechPrompt) else torch.cat((prompt.prefix, self._rest(prompt)))
        sampling, most = request.sampling(self._engine.defaults), request.frame_cap(self._heard)
        return begin(self._engine.lm, prefill, sampling, self._draw(), most_frames=most - self._spent(most))

    def _draw(self) -> Draw:
        draw, before = by_counter(self._request.seed), self._before
        return lambda probabilities, frame, codebook: draw(probabilities, before + frame, codebook)

    def _spent(self, most: int) -> int:
        """Return how many frames of a cap of the user's are gone; one by the length of the text is for this text."""
        return min(self._before, most) if self._request.max_frames else 0

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
        """Take in the next piece of text, a pause, or the end; the longer the text, the later speech is cut off."""
        piece = next(self._pieces, END)
        if piece is END:
            prompt.close()
        elif piece is None:
            prompt.flush()
        else:
            self._heard += len(piece)
            prompt.push(piece)
        if self._generation is not None:
            self._generation.most_frames = self._request.frame_cap(self._heard)
