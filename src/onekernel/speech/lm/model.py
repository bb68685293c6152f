"""Talker and code predictor with their heads: one frame of sixteen codes after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812 (the field's name for it)
from torch import Tensor

from onekernel.speech.config import SpeechConfig
from onekernel.speech.lm.decoder import KVCache, Qwen3Decoder
from onekernel.speech.lm.sampling import Draw, choose, penalise, suppress
from onekernel.speech.prompt.embeddings import Embeddings
from onekernel.speech.request import Sampling

LEAST_FRAMES = 2  # before speech may end (min_new_tokens of the official package)

Finish = Literal["", "eos", "length"]


class LanguageModel:
    """Weights and what runs on them; it keeps nothing of a request."""

    def __init__(self, config: SpeechConfig, tensors: Mapping[str, Tensor], kept: torch.dtype | None = None) -> None:
        """Take the tensors by their names in the file; caches hold `kept` (None: as the weights)."""
        self.config, self.embeddings = config, Embeddings(config, tensors)
        self.talker = Qwen3Decoder(config.talker.decoder, tensors, "talker.model", kept)
        self.predictor = Qwen3Decoder(config.predictor.decoder, tensors, "talker.code_predictor.model", kept)
        groups = range(config.predictor.groups - 1)
        self._head = tensors["talker.codec_head.weight"]
        self._heads = [tensors[f"talker.code_predictor.lm_head.{group}.weight"] for group in groups]
        self._tables = [tensors[f"talker.code_predictor.model.codec_embedding.{group}.weight"] for group in groups]
        self._codec = tensors["talker.model.codec_embedding.weight"]
        projection = "talker.code_predictor.small_to_mtp_projection"
        self._projection = (tensors[f"{projection}.weight"], tensors[f"{projection}.bias"]) if config.projects else None

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the float32 logits [..., vocab] of code 0 for states [..., hidden] of the talker after its norm."""
        return F.linear(hidden, self._head).float()

    def rest_of_frame(self, hidden: Tensor, first: int, sampling: Sampling, draw: Draw | None, frame: int) -> list[int]:
        """Say codes 1 and later of a frame, each from those before it; positions begin at 0 in every frame."""
        cache = self.predictor.cache(self.config.predictor.groups)
        x = torch.stack((hidden, self._codec[first]))
        codes = list[int]()
        for group, head in enumerate(self._heads, 1):
            state = self.predictor(self._project(x), cache)[-1]
            race = partial(draw, frame=frame, codebook=group) if draw and sampling.sub_do_sample else None
            scores = F.linear(state, head).float()
            codes.append(choose(scores, race, sampling.sub_temperature, sampling.sub_top_k, sampling.sub_top_p))
            x = self._tables[group - 1][codes[-1]][None]
        return codes

    def _project(self, x: Tensor) -> Tensor:
        return x if self._projection is None else F.linear(x, *self._projection)


@dataclass
class Generation:
    """One request on its way: its cache, its state, and what it has said. `frame` says the next sixteen codes."""

    model: LanguageModel
    sampling: Sampling
    draw: Draw
    most_frames: int
    cache: KVCache
    hidden: Tensor  # of the last position
    logits: Tensor  # of code 0 of the next frame
    frames: int = 0
    finish: Finish = ""
    seen: set[int] = field(default_factory=set)

    def next_frame(self) -> list[int] | None:
        """Say the codes of the next frame; None when the request has ended, and `finish` says why."""
        if self.finish or self.frames == self.most_frames:
            self.finish = self.finish or "length"
            return None
        talker, sampling = self.model.config.talker, self.sampling
        scores = penalise(self.logits.clone(), self.seen, sampling.repetition_penalty)
        may_end = self.frames >= LEAST_FRAMES
        scores = suppress(scores, talker.codes, talker.codec_eos, end_allowed=may_end)
        race = partial(self.draw, frame=self.frames, codebook=0) if sampling.do_sample else None
        first = choose(scores, race, sampling.temperature, sampling.top_k, sampling.top_p)
        if first == talker.codec_eos:
            self.finish = "eos"
            return None
        self.seen.add(first)
        rest = self.model.rest_of_frame(self.hidden, first, sampling, self.draw, self.frames)
        self.frames += 1
        return [first, *rest]

    def advance(self, codes: Sequence[int], text: Tensor) -> None:
        """Take in a frame that was said, and the text [hidden] that goes with it."""
        frame = self.model.embeddings.frames(torch.tensor([list(codes)], device=text.device))[0]
        self.hidden = self.model.talker((frame + text)[None], self.cache)[-1]
        self.logits = self.model.logits(self.hidden)


def begin(
    model: LanguageModel,
    prefill: Tensor,
    sampling: Sampling,
    draw: Draw,
    *,
    most_frames: int,
    cache: KVCache | None = None,
) -> Generation:
    """Run a prompt [P, hidden], behind a cached prefix if there is one (which is used up).

    The head multiplies all positions, as the official one does: that product may round otherwise than one of the last.
    """
    cache = cache or model.talker.cache(len(prefill) + min(most_frames, 256))
    hidden = model.talker(prefill, cache)
    return Generation(model, sampling, draw, most_frames, cache, hidden[-1], model.logits(hidden)[-1])
