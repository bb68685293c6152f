"""What the talker is given before the first frame and with each later one: text and voice as vectors of its width H.

A prompt is a prefix that does not depend on the text (instruction, role, condition: its cache may be kept), then rows
of text on top of the codec's own. Text comes whole, all of it before the first frame, or streams, one token a frame.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from onekernel.errors import InvalidInput
from onekernel.speech.config import SpeechConfig
from onekernel.speech.prompt.embeddings import Embeddings
from onekernel.speech.prompt.tokenizer import StreamingTokenizer, TextTokenizer

AUTO = "auto"
_TAKES = {"base": ("reference",), "custom_voice": ("speaker", "instruct"), "voice_design": ("instruct",)}


@dataclass(frozen=True, eq=False)
class VoicePrompt:
    """A voice to copy: its x-vector [H], and if the words of the reference are known, those and its codes."""

    x_vector: Tensor
    ref_text: str | None = None
    ref_codes: Tensor | None = None  # [frames, groups]


@dataclass(frozen=True, eq=False)
class PromptText:
    """What to say, and how. Names of languages and speakers may have capital letters."""

    text: str
    language: str = AUTO
    speaker: str | None = None
    instruct: str | None = None
    streaming: bool = False
    reference: VoicePrompt | None = None


@dataclass(frozen=True, eq=False)
class SpeechPrompt:
    """A prompt with all of its text: prefill [P, H], then trailing [L, H] to add to the first frames, then pad [H]."""

    prefill: Tensor
    trailing: Tensor
    pad: Tensor
    prefix: int  # rows of the prefill that do not depend on the text
    notes: tuple[str, ...] = ()  # what was asked for and is not done

    def next_text(self, frame: int) -> Tensor:
        """Return the vector [H] to add to a frame."""
        return self.trailing[frame] if frame < len(self.trailing) else self.pad


class OpenPrompt:
    """A streaming prompt whose text still arrives. `prefix` [n, H] can run at once, `rest` as soon as it is known.

    One thread may add text while another speaks.
    """

    def __init__(self, parts: _Parts, embeddings: Embeddings, tokens: StreamingTokenizer) -> None:
        self.prefix, self.notes = parts.prefix, parts.notes
        self._parts, self._embeddings, self._tokens = parts, embeddings, tokens
        self._rows = list(embeddings.text(parts.before))
        self._ended = False

    def push(self, piece: str | bytes) -> None:
        """Add text, cut anywhere. Raises InvalidInput behind `close`."""
        self._rows += self._embeddings.text(self._tokens.push(piece))

    def flush(self) -> None:
        """Take all that was pushed as final, as if no word went on."""
        self._rows += self._embeddings.text(self._tokens.flush())

    def close(self) -> None:
        """End the text. Raises InvalidInput if there was none."""
        self._rows += self._embeddings.text(self._tokens.close())
        if len(self._rows) == len(self._parts.before):
            raise _no_text()
        if not self._ended:
            self._rows.append(self._parts.eos)
        self._ended = True

    def rest(self) -> Tensor | None:
        """Return the rows of the prefill behind the prefix [1 or more, H], or None while they are not known."""
        text = [row for place in range(len(self._parts.lead)) if (row := self._row(place)) is not None]
        return torch.stack(text) + self._parts.lead if len(text) == len(self._parts.lead) else None

    def next_text(self, frame: int) -> Tensor | None:
        """Return the vector [H] to add to a frame; None while it is not known."""
        return self._row(len(self._parts.lead) + frame)

    def _row(self, place: int) -> Tensor | None:
        ended = self._ended  # read first: rows that come between must not be taken for the end
        return self._rows[place] if place < len(self._rows) else self._parts.pad if ended else None


def build_prompt(
    config: SpeechConfig, embeddings: Embeddings, tokenizer: TextTokenizer, request: PromptText
) -> SpeechPrompt:
    """Build the prompt of a text. Raises InvalidInput for what the model cannot do or does not know."""
    parts, body = _parts(config, embeddings, tokenizer, request), tokenizer.encode(request.text)
    if not body:
        raise _no_text()
    text = torch.cat((embeddings.text([*parts.before, *body]), parts.eos[None]))
    lead, pad = parts.lead, parts.pad[None]
    if request.streaming:
        text = torch.cat((text, pad.expand(max(len(lead) + 1 - len(text), 0), -1)))
        rest, trailing = text[: len(lead)] + lead, text[len(lead) :]
    else:
        rest, trailing = torch.cat((text + embeddings.codec([config.talker.codec_pad]), lead + pad)), pad
    return SpeechPrompt(torch.cat((parts.prefix, rest)), trailing, parts.pad, len(parts.prefix), parts.notes)


def open_prompt(
    config: SpeechConfig, embeddings: Embeddings, tokenizer: TextTokenizer, request: PromptText
) -> OpenPrompt:
    """Begin a streaming prompt with the text that is known, or none yet. Raises InvalidInput as `build_prompt`."""
    opened = OpenPrompt(_parts(config, embeddings, tokenizer, request), embeddings, tokenizer.stream())
    opened.push(request.text)
    return opened


def languages(config: SpeechConfig) -> list[str]:
    """List the languages that may be named; a dialect comes with its speaker."""
    return [AUTO, *(name for name in config.talker.languages if "dialect" not in name)]


@dataclass(frozen=True, eq=False)
class _Parts:
    """The parts of a prompt that do not depend on its text."""

    prefix: Tensor
    lead: Tensor  # of the codec, under the text of a streaming prompt: the beginning, and the frames of a reference
    before: list[int]  # ids of the reference's words
    eos: Tensor
    pad: Tensor
    notes: tuple[str, ...]


def _parts(config: SpeechConfig, embeddings: Embeddings, tokenizer: TextTokenizer, request: PromptText) -> _Parts:
    _check_takes(config, request)
    bos, eos, pad = embeddings.text([config.tts_bos, config.tts_eos, config.tts_pad])
    voice, talker = _voice(config, embeddings, request), config.talker
    condition = torch.cat((embeddings.codec(_tags(config, request)), voice, embeddings.codec([talker.codec_pad])))
    condition = condition + torch.cat((pad.expand(len(condition) - 1, -1), bos[None]))
    instruct, notes = request.instruct, tuple[str, ...]()
    if instruct and config.kind == "custom_voice" and config.size == "0b6":
        instruct, notes = None, ("instruct is not followed by the small model (0b6) and was left out",)
    rows = [embeddings.text(tokenizer.wrap(instruct, "user"))] if instruct else []
    prefix = torch.cat((*rows, embeddings.text(tokenizer.role), condition))
    lead, before = embeddings.codec([talker.codec_bos]), list[int]()
    if request.reference and request.reference.ref_codes is not None:
        codes = _codes(config, request.reference.ref_codes)
        lead = torch.cat((lead, embeddings.frames(codes.to(lead.device, torch.long))))
        before = tokenizer.encode(request.reference.ref_text or "")
    return _Parts(prefix, lead, before, eos, pad, notes)


def _check_takes(config: SpeechConfig, request: PromptText) -> None:
    for name in ("speaker", "instruct", "reference"):
        if getattr(request, name) and name not in _TAKES[config.kind]:
            takes = " and ".join(_TAKES[config.kind])
            todo = f"leave it out: a {config.kind} model takes {takes}"
            raise InvalidInput(expected=f"no {name} for this model", got="one", todo=todo)


def _tags(config: SpeechConfig, request: PromptText) -> list[int]:
    """Return the codec ids that name the language, or leave it open."""
    talker, name = config.talker, request.language.lower()
    if name not in languages(config):
        raise _unknown("language", request.language, languages(config))
    if name in (AUTO, "chinese"):
        name = talker.dialects.get((request.speaker or "").lower(), name)
    if name == AUTO:
        return [talker.nothink, talker.think_bos, talker.think_eos]
    return [talker.think, talker.think_bos, talker.languages[name], talker.think_eos]


def _voice(config: SpeechConfig, embeddings: Embeddings, request: PromptText) -> Tensor:
    """Return the row of the speaker [1, H], or none [0, H] where the instruction alone describes the voice."""
    if config.kind == "voice_design":
        return embeddings.codec([])
    if config.kind == "custom_voice":
        known = config.talker.speakers
        if (speaker := (request.speaker or "").lower()) not in known:
            raise _unknown("speaker", request.speaker or "none", list(known))
        return embeddings.codec([known[speaker]])
    if request.reference is None:
        todo = "give a reference recording, or a voice that was made from one"
        raise InvalidInput(expected="a voice to copy", got="none", todo=todo)
    vector, width = request.reference.x_vector, config.talker.decoder.hidden
    if vector.shape != (width,):
        todo = "make the voice again with this model"
        raise InvalidInput(expected=f"an x-vector of {width} numbers", got=f"shape {list(vector.shape)}", todo=todo)
    if (request.reference.ref_codes is None) != (not request.reference.ref_text):
        got, todo = "one of them", "give what the reference says, and its codes, or only the x-vector"
        raise InvalidInput(expected="the words and the codes of the reference, or neither", got=got, todo=todo)
    return embeddings.like(vector)[None]


def _codes(config: SpeechConfig, codes: Tensor) -> Tensor:
    groups, size = config.predictor.groups, config.predictor.vocab
    fits = codes.ndim == 2 and codes.shape[1] == groups and len(codes) > 0 and not codes.is_floating_point()
    if not fits or int(codes.min()) < 0 or int(codes.max()) >= size:
        expected = f"codes [frames, {groups}] from 0 to {size - 1}"
        got = f"{codes.dtype} {list(codes.shape)}" if not fits else f"{int(codes.min())} to {int(codes.max())}"
        raise InvalidInput(expected=expected, got=got, todo="encode the reference with the codec of this model")
    return codes


def _no_text() -> InvalidInput:
    return InvalidInput(expected="a text to speak", got="an empty one", todo="give at least one word")


def _unknown(what: str, got: str, known: list[str]) -> InvalidInput:
    return InvalidInput(expected=f"a {what} of this model", got=got, todo=f"name one of {', '.join(known)}")
