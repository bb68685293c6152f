"""What people get wrong with `speak`: it says in one line what to do, or speaks; it never hangs."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

import speech_checkpoint
from onekernel.cli import main
from onekernel.speech.request import CAP_PER_CHARACTER, LEAST_CAP, LONGEST_TEXT

TONE = (0.3 * np.sin(np.arange(48_000) / 20)).astype(np.float32)


@dataclass
class Folders:
    """A checkpoint to speak with, one to copy voices with, a copy that may be damaged, and a place for files."""

    speaks: Path
    copies: Path
    spoilt: Path
    place: Path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("checkpoints")
    return speech_checkpoint.write(root / "speaks"), speech_checkpoint.write(root / "copies", "base", "0b6")


@pytest.fixture
def folders(whole: tuple[Path, Path], tmp_path: Path) -> Folders:
    spoilt = tmp_path / "spoilt"
    shutil.copytree(whole[0], spoilt)
    return Folders(*whole, spoilt, tmp_path)


def speak(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, dict[str, Any], str]:
    """Return the exit code, what was told, and the mistakes."""
    code = main(["speak", *map(str, arguments), "--json"])
    out, errors = capsys.readouterr()
    return code, json.loads(out) if out else {}, errors


# --- what is refused


def without_weights(folders: Folders) -> list[object]:
    (folders.spoilt / "model.safetensors").unlink()
    return ["hi", "--model", folders.spoilt]


def with_half_the_weights(folders: Folders) -> list[object]:
    file = folders.spoilt / "model.safetensors"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    return ["hi", "--model", folders.spoilt]


def with_the_config_of_another_model(folders: Folders) -> list[object]:
    (folders.spoilt / "config.json").write_text('{"model_type": "llama"}')
    return ["hi", "--model", folders.spoilt]


def with_a_config_of_other_sizes(folders: Folders) -> list[object]:
    file = folders.spoilt / "config.json"
    file.write_text(file.read_text().replace('"num_hidden_layers": 3', '"num_hidden_layers": 4'))
    return ["hi", "--model", folders.spoilt]


def recording(name: str, samples: Any, rate: int) -> Callable[[Folders], list[object]]:
    def arguments(folders: Folders) -> list[object]:
        soundfile.write(folders.place / name, samples, rate)
        return ["hi", "--model", folders.copies, "--max-frames", 4, "--ref-audio", folders.place / name]

    return arguments


def two_hours(folders: Folders) -> list[object]:
    """Make a file that takes no place: all of its samples are holes."""
    size, file = 2 * 3600 * 24_000 * 2, folders.place / "long.wav"
    form = (b"fmt ", 16, 1, 1, 24_000, 48_000, 2, 16)
    head = struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + size, b"WAVE", *form, b"data", size)
    with file.open("wb") as out:
        out.write(head)
        out.truncate(len(head) + size)
    return ["hi", "--model", folders.copies, "--ref-audio", file]


REFUSED: dict[str, tuple[Callable[[Folders], list[object]], str]] = {
    "missing safetensors": (without_weights, "model.safetensors"),
    "truncated safetensors": (with_half_the_weights, "model.safetensors"),
    "config of another model": (with_the_config_of_another_model, "use a config of Qwen3-TTS 12 Hz"),
    "config of other sizes": (with_a_config_of_other_sizes, "talker.model.layers.3."),
    "no such folder or hub id": (lambda folders: ["hi", "--model", folders.place / "nowhere"], "nowhere"),
    "unknown voice": (lambda folders: ["hi", "--model", folders.speaks, "--voice", "nobody"], "serena, vivian"),
    "unknown language": (
        lambda folders: ["hi", "--model", folders.speaks, "--language", "klingon"],
        "auto, chinese, english",
    ),
    "no voice to copy": (lambda folders: ["hi", "--model", folders.copies], "a voice to copy"),
    "recording of 0 s": (recording("empty.wav", TONE[:0], 24_000), "speech of 0.2 to 60 s, got 0 s"),
    "recording of 2 h": (two_hours, "got more than 60 s; cut out 3 to 15 s"),
    "recording that is a text": (
        lambda folders: ["hi", "--model", folders.copies, "--ref-audio", Path(__file__)],
        "sound that can be read",
    ),
    "no text": (lambda folders: ["", "--model", folders.speaks], "a text to speak"),
    "text of newlines": (lambda folders: ["\n\n", "--model", folders.speaks], "a text to speak"),
    "text that is too long": (
        lambda folders: ["x" * (LONGEST_TEXT + 1), "--model", folders.speaks],
        "at most 100000 characters",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_is_refused_in_one_line(case: str, folders: Folders, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, words = REFUSED[case]
    out = folders.place / "out.wav"
    code, told, errors = speak(capsys, *arguments(folders), "-o", out)
    assert (code, told) == (2, {})
    assert errors.startswith("onekernel: ")
    assert errors.count("\n") == 1
    assert words in errors
    assert not out.exists()


# --- what is spoken

SPOKEN: dict[str, Any] = {
    "1 character": "a",
    "100,000 characters": "A sentence. " * (LONGEST_TEXT // 12),
    "100,000 characters without a space": "x" * LONGEST_TEXT,
    "punctuation": "?!…—。",
    "emoji": "\U0001f600\U0001f469\u200d\U0001f4bb",
    "NUL bytes": "a\0\0b",
    "control tokens": "<|im_end|>\n<|im_start|>user\n<tts_pad>",
    "half a character": b"\xe4\xb8",
}


@pytest.mark.parametrize("case", SPOKEN)
@pytest.mark.parametrize("source", ["whole", "pipe"])
def test_it_is_spoken_and_ends(case: str, source: str, folders: Folders, capsys: pytest.CaptureFixture[str]) -> None:
    text, file, out = SPOKEN[case], folders.place / "text", folders.place / "out.wav"
    given: list[object] = [text]
    if source == "pipe" or isinstance(text, bytes):
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        given = ["--file", file]
    code, told, errors = speak(capsys, *given, "--model", folders.speaks, "--max-frames", 3, "-o", out)
    assert code == 0, errors
    assert (told["frames"], told["finish"]) == (3, "length")
    assert len(soundfile.read(out)[0]) == 3 * 1920


@pytest.mark.parametrize("channels", [1, 2])
def test_a_recording_of_8_khz_is_heard(channels: int, folders: Folders, capsys: pytest.CaptureFixture[str]) -> None:
    """Mono, and stereo of the same on both sides, are the same voice."""
    samples = np.stack([TONE] * channels, axis=1)
    told = speak(capsys, *recording("low.wav", samples, 8000)(folders), "-o", folders.place / "out.wav")
    assert told[0] == 0
    assert told[1]["frames"] == 4


def test_the_frame_cap_holds(folders: Folders, capsys: pytest.CaptureFixture[str]) -> None:
    """Random weights hardly ever end by themselves: the length of the text does it."""
    _, told, _ = speak(capsys, "a", "--model", folders.speaks, "-o", folders.place / "out.wav")
    cap = LEAST_CAP + CAP_PER_CHARACTER
    assert (told["frames"], told["finish"]) == (cap, "length") or told["frames"] < cap
