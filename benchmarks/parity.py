"""Ours against what the official package said on one checkpoint (tests/official/full_size.py): differences by name.

Every row has a number that should be small, and its limit where it must be.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch

from onekernel.speech.codec.decoder import CodecDecoder
from onekernel.speech.codec.encoder import CodecEncoder
from onekernel.speech.lm.model import LanguageModel, begin
from onekernel.speech.lm.sampling import Draw, by_counter, by_generator
from onekernel.speech.model import SpeechModel
from onekernel.speech.prompt.build import PromptText, SpeechPrompt, VoicePrompt, build_prompt
from onekernel.speech.prompt.tokenizer import TextTokenizer
from onekernel.speech.request import Sampling, SpeechRequest
from onekernel.speech.voice.speaker import SpeakerEncoder
from onekernel.speech.weights import Weights, load_weights

TEXT, SEED = "Hello there, tiny model.", 42  # these and ASKED: as tests/official/lm_golden.py asks
ASKED: dict[str, dict[str, Any]] = {
    "icl": {"language": "English"},
    "xvec": {"language": "English"},
    "voice": {"language": "English", "speaker": "Ryan", "instruct": "Very happy."},
}
REFERENCE_TEXT = "Reference words."
GREEDY = Sampling(do_sample=False, sub_do_sample=False)
CHUNKS = ([1], [1, 2, 3, 5], [4], [7], [300])  # frames
SOUND = 3e-6  # of samples in [-1, 1], from float64
APART = 2 * SOUND  # two that are both so near
ULP = 2**-7  # bfloat16, of values from 1 to 2
LIMITS = {"float32": {"x-vector": 1e-6, "prompt": 1e-5, "logits": 1e-3},
          "bfloat16": {"x-vector": ULP, "prompt": ULP, "logits": 0.0}}  # fmt: skip
PARTS = ("prefill", "trailing", "pad")
Row = dict[str, Any]


def row(what: str, measured: float, limit: float | None = None, **more: Any) -> Row:
    """Make a row; one without a limit is told and judged by nobody."""
    return {"what": what, "measured": float(measured), "limit": limit, **more}


def compare(folder: Path, official: dict[str, Any], device: str) -> Iterator[Row]:
    """Compare all parts of a checkpoint, in both types of the language model."""
    start = time.perf_counter()
    model = SpeechModel(folder, device)
    yield row("seconds to load", time.perf_counter() - start)
    yield from streaming(model)
    yield from codec(load_weights(folder, device=device), official)
    for dtype in LIMITS:
        weights = load_weights(folder, dtype=dtype, device=device)  # type: ignore[arg-type]
        said = {key.removeprefix(f"{dtype}/"): value for key, value in official.items() if key.startswith(f"{dtype}/")}
        tokenizer = TextTokenizer(folder, weights.config)
        for found in Language(weights, tokenizer, said, official).rows():
            limit = LIMITS[dtype].get(found["what"], found["limit"])
            yield {**found, "limit": limit, "dtype": dtype}


def streaming(model: SpeechModel) -> Iterator[Row]:
    """Text in characters against the whole text, sound in any chunks: the same samples."""
    request = {"text_mode": "streaming", "max_frames": 16}
    if model.config.kind == "base":
        return
    whole = _sound(model, TEXT, SpeechRequest(**request))
    yield row(
        "text in characters: samples that differ",
        (_sound(model, iter(TEXT), SpeechRequest(**request)) != whole).sum(),
        0,
    )
    for size in (1, 3, 16):
        said = _sound(model, TEXT, SpeechRequest(**request, first_chunk=size, chunk=size))
        yield row(f"sound in chunks of {size}: samples that differ", (said != whole).sum(), 0)


def _sound(model: SpeechModel, text: Any, request: SpeechRequest) -> Any:
    return np.concatenate(list(model.stream(text, request)))


def codec(weights: Weights, official: dict[str, Any]) -> Iterator[Row]:
    """Samples of random codes, and codes of a recording."""
    decoder = CodecDecoder(weights.codec_config.decoder, weights.codec)
    codes = torch.from_numpy(official["codec/codes"])[None]
    whole = decoder.decode(codes, decoder.start()).cpu()
    exact = CodecDecoder(weights.codec_config.decoder, weights.codec, torch.float64)
    expected, theirs = exact.decode(codes, exact.start())[0].cpu().numpy(), official["codec/samples"]
    yield row("codec, whole: from float64", np.abs(whole[0].numpy() - expected).max(), SOUND)
    yield row("codec, whole: the official one from float64", np.abs(theirs - expected).max())
    yield row("codec, whole: from the official one", np.abs(whole[0].numpy() - theirs).max(), APART)
    for sizes in CHUNKS:
        state, places, parts = decoder.start(), 0, list[torch.Tensor]()
        for size in cycle(sizes):
            parts.append(decoder.decode(codes[:, places : places + size], state).cpu())
            if (places := places + size) >= codes.shape[1]:
                break
        differ = (torch.cat(parts, 1) != whole).sum()
        yield row(f"codec in chunks of {', '.join(map(str, sizes))}: samples that differ", differ, 0)
    if "reference/codes" in official:
        sound = torch.from_numpy(official["reference/sound"]).to(decoder.tables.device)
        heard = CodecEncoder(weights.codec_config, weights.codec).encode(sound).cpu().numpy()
        yield row("recording: codes that differ", (heard != official["reference/codes"]).sum(), 0, codes=heard.size)


class Language:
    """The language model in one type, and all that the official package said in that type."""

    def __init__(
        self, weights: Weights, tokenizer: TextTokenizer, said: dict[str, Any], official: dict[str, Any]
    ) -> None:
        self.weights, self.tokenizer, self.said = weights, tokenizer, said
        self.reference = {
            key: official[f"reference/{key}"] for key in ("codes", "sound") if f"reference/{key}" in official
        }
        self.lm = LanguageModel(weights.config, weights.tensors)
        self.codec = CodecDecoder(weights.codec_config.decoder, weights.codec)

    def rows(self) -> Iterator[Row]:
        """Compare the voice, then every way to ask."""
        if (config := self.weights.config.speaker_encoder) is not None:
            heard = SpeakerEncoder(config, self.weights.tensors).x_vector(self.reference["sound"])
            yield row("x-vector", np.abs(heard.float().cpu().numpy() - self.said["x_vector"]).max())
        for asked in sorted({key.partition("/")[0] for key in self.said if "/" in key}):
            said = {key.partition("/")[2]: value for key, value in self.said.items() if key.startswith(f"{asked}/")}
            yield from ({**found, "asked": asked} for found in self._asked(asked, said))

    def _asked(self, asked: str, said: dict[str, Any]) -> Iterator[Row]:
        """Compare prompts; then, both given the official prompt, what is said and how it sounds."""
        ours = self._prompt(asked)
        off = np.concatenate([np.abs(getattr(ours, part).float().cpu().numpy() - said[part]).ravel() for part in PARTS])
        yield row("prompt", off.max(), differing=float((off > 0).mean()))
        theirs = SpeechPrompt(*(torch.from_numpy(said[part]).to(ours.pad) for part in PARTS), prefix=0)
        codes, sampled = said["codes"], said["sampled"]
        start = time.perf_counter()
        found, logits = self._speak(theirs, GREEDY, by_counter(0), len(codes))
        yield row(
            "seconds of all frames", time.perf_counter() - start, official=float(said["seconds"]), frames=len(codes)
        )
        yield row("logits", np.abs(logits - said["logits"]).max())
        yield row("likeliest codes that differ", (found != codes).sum(), 0, codes=codes.size)
        torch.manual_seed(SEED)
        drawn, _ = self._speak(theirs, Sampling(), by_generator(), len(sampled))
        yield row("drawn codes that differ", (drawn != sampled).sum(), 0, codes=sampled.size)
        by_ours, _ = self._speak(ours, GREEDY, by_counter(0), len(codes))
        yield row("likeliest codes of our own prompt that differ", (by_ours != codes).sum(), codes=codes.size)
        yield row(
            "sound", np.abs(self._sound(asked, codes) - said["sound"][-self.codec.frame * len(codes) :]).max(), APART
        )

    def _prompt(self, asked: str) -> SpeechPrompt:
        kind, _, mode = asked.partition("_")
        reference = None
        if "x_vector" in self.said:
            words, codes = (
                (REFERENCE_TEXT, torch.from_numpy(self.reference["codes"])) if kind == "icl" else (None, None)
            )
            reference = VoicePrompt(torch.from_numpy(self.said["x_vector"]), words, codes)
        text = PromptText(TEXT, streaming=mode == "stream", reference=reference, **ASKED[kind])
        return build_prompt(self.weights.config, self.lm.embeddings, self.tokenizer, text)

    def _speak(self, prompt: SpeechPrompt, sampling: Sampling, draw: Draw, frames: int) -> tuple[Any, Any]:
        """Return up to `frames` frames of codes, then filled with -1, and the logits before each."""
        generation = begin(self.lm, prompt.prefill, sampling, draw, most_frames=frames)
        codes, logits = np.full((frames, self.weights.config.predictor.groups), -1), list[Any]()
        for place in range(frames):
            logits.append(generation.logits.cpu().numpy())
            if (frame := generation.next_frame()) is None:
                break
            codes[place] = frame
            generation.advance(frame, prompt.next_text(place))
        return codes, np.stack(logits)

    def _sound(self, asked: str, codes: Any) -> Any:
        state = self.codec.start()
        if asked.startswith("icl"):
            self.codec.prime(torch.from_numpy(self.reference["codes"])[None], state)
        return self.codec.decode(torch.from_numpy(codes.astype(np.int64))[None], state)[0].cpu().numpy()
