"""What can be asked of a speech model: every option with its name, default, range and meaning, in one place.

The command line, the HTTP interface and Python read this; a test compares them with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

from onekernel.errors import InvalidInput

LEAST_CAP, CAP_PER_CHARACTER = 64, 12  # frames: speech that goes on for longer than this has lost its way
LONGEST_TEXT = 100_000  # characters
TEXT_MODES = ("auto", "whole", "streaming")


@dataclass(frozen=True)
class Sampling:
    """How codes are chosen: those of the talker (code 0), and those of the predictor (`sub_`), which has no penalty."""

    do_sample: bool = True
    temperature: float = 0.9
    top_k: int = 50
    top_p: float = 1.0
    repetition_penalty: float = 1.05
    sub_do_sample: bool = True
    sub_temperature: float = 0.9
    sub_top_k: int = 50
    sub_top_p: float = 1.0


def _option(default: Any, meaning: str, *, low: float | None = None, high: float | None = None) -> Any:
    """Declare an option; a number lies in low .. high, both included."""
    metadata = {"meaning": meaning, "low": low, "high": high}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class SpeechRequest:
    """How a text is spoken; None is what the model's files say. Raises InvalidInput for a value out of its range."""

    voice: str | None = _option(None, "a voice of the model, or one that was added; the first one if it is left out")
    language: str = _option("auto", "the language of the text, or auto")
    instruct: str = _option("", "how to speak, in words, where the model follows instructions")
    ref_audio: str = _option("", "a recording of the voice to copy: 3 to 15 s of clear speech")
    ref_text: str = _option("", "the words of the recording, which make the copy better")
    text_mode: str = _option("auto", "whole: all text is heard before speaking; streaming: a token with each frame")
    seed: int = _option(0, "equal seeds sound the same", low=0, high=2**63 - 1)
    temperature: float | None = _option(None, "how freely codes are chosen; 0 takes the likeliest", low=0.0, high=2.0)
    top_k: int | None = _option(None, "how many of the likeliest are chosen from; 0 = all", low=0, high=3072)
    top_p: float | None = _option(None, "the share of likelihood that is chosen from", low=0.01, high=1.0)
    repetition_penalty: float | None = _option(None, "above 1, sounds made before are avoided", low=0.5, high=2.0)
    first_chunk: int = _option(
        1, "frames of 80 ms in the first piece of audio; the next are twice as long", low=1, high=64
    )
    chunk: int = _option(8, "frames in a piece of audio at most", low=1, high=64)
    max_frames: int = _option(0, "frames at most; 0 = by the length of the text", low=0, high=32_768)
    idle_flush: float = _option(
        0.0, "seconds without new text after which a word that may go on is spoken; 0 = never", low=0.0, high=60.0
    )
    skip_silence: bool = _option(False, "leave out silent frames at the start")

    def __post_init__(self) -> None:
        for item in fields(self):
            value, low, high = getattr(self, item.name), item.metadata["low"], item.metadata["high"]
            if low is not None and value is not None and not low <= value <= high:
                expected = f"{item.name} from {low:g} to {high:g}"
                raise InvalidInput(expected=expected, got=str(value), todo=f"{item.name} is {item.metadata['meaning']}")
        if self.text_mode not in TEXT_MODES:
            todo = "leave it out for what the model was made for"
            raise InvalidInput(expected=f"text_mode as {', '.join(TEXT_MODES)}", got=repr(self.text_mode), todo=todo)

    def sampling(self, defaults: Sampling) -> Sampling:
        """Put what was asked for over the defaults of a model; the predictor follows the talker."""
        asked: dict[str, Any] = {"top_k": self.top_k, "top_p": self.top_p}
        if self.temperature is not None:
            asked["do_sample"] = self.temperature > 0
            asked["temperature"] = self.temperature or None
        both = {name: value for name, value in asked.items() if value is not None}
        both |= {f"sub_{name}": value for name, value in both.items()}
        if self.repetition_penalty is not None:
            both["repetition_penalty"] = self.repetition_penalty
        return replace(defaults, **both)

    def frame_cap(self, characters: int) -> int:
        """Return after how many frames speech is cut off: it had its chance to end by itself."""
        return self.max_frames or LEAST_CAP + CAP_PER_CHARACTER * characters

    def chunks(self) -> ChunkPolicy:
        """Return how many frames each piece of audio has."""
        return ChunkPolicy(self.first_chunk, self.chunk)


@dataclass
class ChunkPolicy:
    """Short pieces first, so that sound starts early, then longer ones, which cost less: 1, 2, 4, 8, 8, ..."""

    size: int
    most: int

    def next(self) -> int:
        """Return the frames of the next piece."""
        now = min(self.size, self.most)
        self.size = min(2 * now, self.most)
        return now
