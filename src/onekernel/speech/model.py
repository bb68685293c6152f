"""A speech model in memory, a checkpoint's parts put together: it tells its voices and languages, and speaks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path

try:
    import torch
except ModuleNotFoundError as error:
    from onekernel.errors import MissingExtra

    raise MissingExtra("torch", "speech") from error

from onekernel import settings
from onekernel.checkpoint import locate
from onekernel.errors import InvalidInput
from onekernel.speech.codec.decoder import CodecDecoder
from onekernel.speech.codec.encoder import CodecEncoder
from onekernel.speech.lm.model import LanguageModel
from onekernel.speech.prompt.build import (
    PromptText,
    VoicePrompt,
    build_prompt,
    languages,
    open_prompt,
)
from onekernel.speech.prompt.sentences import Parts
from onekernel.speech.prompt.tokenizer import TextTokenizer
from onekernel.speech.request import LONGEST_TEXT, SpeechRequest
from onekernel.speech.stream import Part, Speech
from onekernel.speech.text_feed import Pieces, TextFeed
from onekernel.speech.utterance import Engine
from onekernel.speech.voice import store
from onekernel.speech.voice.audio import Source, read_audio
from onekernel.speech.voice.speaker import SpeakerEncoder
from onekernel.speech.weights import load_weights

ENGINES = ("auto", "reference")


class SpeechModel:
    """Made by `load_speech`. Requests share nothing but the weights."""

    def __init__(self, folder: Path, device: str) -> None:
        """Read a checkpoint: bfloat16 on a GPU, float32 on a CPU. Raises what `load_weights` raises."""
        self._weights = weights = load_weights(
            folder, dtype="float32" if device == "cpu" else "bfloat16", device=device
        )
        self.config, self.device = weights.config, device
        lm = LanguageModel(weights.config, weights.tensors)
        codec = CodecDecoder(weights.codec_config.decoder, weights.codec)
        self.engine = Engine(lm, codec, weights.defaults.sampling)
        self.tokenizer = TextTokenizer(folder, weights.config)
        self.sample_rate = weights.codec_config.sample_rate

    @property
    def voices(self) -> list[str]:
        """Name the voices: those of the model, or those that were added for it."""
        if self.config.kind == "base":
            return store.names(store.default_folder())
        return list(self.config.talker.speakers)

    @property
    def languages(self) -> list[str]:
        """Name the languages, `auto` first."""
        return languages(self.config)

    def stream(self, text: str | Pieces, request: SpeechRequest | None = None) -> Speech:
        """Speak a text, or pieces of it as they arrive; returns an iterator of samples that also tells its state.

        Pieces, from an iterator or an asynchronous one, may be cut anywhere, bytes too; None says that the writer
        pauses, so that no word is waited for. A text in pieces streams; a long whole one is spoken part by part.
        Raises InvalidInput for what cannot be spoken.
        """
        request = request or SpeechRequest()
        said = text if isinstance(text, str) else TextFeed(text, request.idle_flush)
        with torch.inference_mode():
            reference, state = self._reference(request), self.engine.codec.start()
            if reference is not None and reference.ref_codes is not None:
                self.engine.codec.prime(reference.ref_codes[None], state)
        parts = self._parts(said, request, reference)
        return Speech(self.engine, state, request, parts, None if isinstance(said, str) else said)

    def read_voice(self, name: str, audio: Source, ref_text: str = "") -> store.Voice:
        """Hear a recording: its x-vector, and with its words its codes too. Raises InvalidInput for one of no use."""
        if self.config.kind != "base" or self.config.speaker_encoder is None:
            todo = (
                f"name one of its voices: {', '.join(self.voices)}" if self.voices else "describe the voice by instruct"
            )
            raise InvalidInput(expected="a base model, which copies voices", got=self.config.kind, todo=todo)
        samples = read_audio(audio)
        with torch.inference_mode():
            vector = SpeakerEncoder(self.config.speaker_encoder, self._weights.tensors).x_vector(samples)
            codes = self._encoder.encode(torch.from_numpy(samples).to(self.device)) if ref_text else None
        said = None if codes is None else codes.cpu().to(torch.int32).numpy()
        return store.Voice(name, vector.float().cpu().numpy(), self.config.size, ref_text or None, said)

    def _parts(self, text: str | TextFeed, request: SpeechRequest, reference: VoicePrompt | None) -> Iterator[Part]:
        """Build prompts: of the parts of a whole text one after another, or of a text that is still arriving."""
        whole = isinstance(text, str)
        if isinstance(text, str) and len(text) > LONGEST_TEXT:
            got = f"{len(text)} characters"
            raise InvalidInput(
                expected=f"at most {LONGEST_TEXT} characters", got=got, todo="speak it in several requests"
            )
        streams = not whole or request.text_mode == "streaming"
        streams = streams or (request.text_mode == "auto" and self.config.kind == "base")  # as the official defaults
        speaker = request.voice or self.voices[0] if self.config.kind == "custom_voice" else None
        asked = PromptText("", request.language, speaker, request.instruct or None, streams, reference)
        tools = self.config, self.engine.lm.embeddings, self.tokenizer
        for part in Parts([text] if isinstance(text, str) else text):
            if not whole:
                yield open_prompt(*tools, asked), part
            else:
                said = "".join(piece for piece in part if piece)
                yield build_prompt(*tools, replace(asked, text=said)), said

    def _reference(self, request: SpeechRequest) -> VoicePrompt | None:
        """Read the voice to copy: from a recording, or one that was added."""
        if request.ref_audio:
            voice = self.read_voice("reference", request.ref_audio, request.ref_text)
        elif self.config.kind == "base" and request.voice:
            voice = store.load(request.voice, store.default_folder(), self.config.talker.decoder.hidden)
        else:
            return None
        codes = None if voice.ref_codes is None else torch.from_numpy(voice.ref_codes).to(self.device, torch.long)
        return VoicePrompt(torch.from_numpy(voice.x_vector), voice.ref_text, codes)

    @cached_property
    def _encoder(self) -> CodecEncoder:
        return CodecEncoder(self._weights.codec_config, self._weights.codec)


def load_speech(model: str | Path | None = None, *, device: str | None = None, engine: str = "auto") -> SpeechModel:
    """Load a Qwen3-TTS checkpoint: a folder, or a hub id, which is downloaded (None: the setting ONEKERNEL_MODEL).

    `device`: "cpu" or "cuda" (None: the GPU if torch sees one). `engine`: "reference" is plain torch; "auto" is the
    fastest there is. Raises InvalidInput for a model that cannot be used.
    """
    if engine not in ENGINES:
        raise InvalidInput(expected=f"engine as {' or '.join(ENGINES)}", got=repr(engine), todo="leave it out")
    if (name := model or settings.load().model) is None:
        todo = "give one, such as Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice, or set ONEKERNEL_MODEL"
        raise InvalidInput(expected="a model", got="none", todo=todo)
    return SpeechModel(locate(name), device or ("cuda" if torch.cuda.is_available() else "cpu"))
