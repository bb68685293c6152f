"""The demo's own parts: phonemes to ids, the sound file, and that it fails when it should."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import pytest

from examples.piper_voice import demo
from examples.piper_voice.phonemes import to_ids, to_ipa
from onekernel.errors import InvalidInput
from onekernel.verify.compare import compare
from onekernel.verify.limits import LIMITS, find

TABLE = {"^": [1], "_": [0], "$": [2], "a": [14], "ɪ": [74], "ˈ": [120]}


@pytest.mark.parametrize(
    ("source", "ipa"),
    [
        ("kwˈɪk bɹˈWn fˈɑks", "kwˈɪk bɹˈaʊn fˈɑːks"),
        ("ʤˈʌmps ˈOvəɹ lˈAzi", "dʒˈʌmps ˈoʊvɚ lˈeɪzi"),
        ("kˈɜɹnᵊl θˈɜɹTi sˈi", "kˈɜːnəl θˈɜːɾi sˈiː"),
        ("bˈYz — nˈIn", "bˈɔɪz, nˈaɪn"),
    ],
)
def test_sounds_are_respelled(source: str, ipa: str) -> None:
    assert to_ipa(source) == ipa


def test_ids_are_joined_between_start_and_end() -> None:
    ids = to_ids("ˈaɪ", TABLE)
    assert ids.dtype == np.int64
    assert ids.tolist() == [[1, 0, 120, 0, 14, 0, 74, 0, 2]]


def test_unknown_phoneme_is_refused() -> None:
    with pytest.raises(InvalidInput, match="ʘ"):
        to_ids("aʘ", TABLE)


def test_sound_file_holds_the_samples(tmp_path: Path) -> None:
    demo.write_wav(tmp_path / "a.wav", np.asarray([[0.0, 0.5, 2.0, -2.0]], np.float32), 22050)
    with wave.open(str(tmp_path / "a.wav")) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (22050, 1, 2)
        assert np.frombuffer(file.readframes(4), "<i2").tolist() == [0, 16383, 32767, -32767]


@pytest.mark.parametrize(
    ("chains", "after", "passed"),
    [(36, 1.0, True), (35, 1.0, False), (36, 1.001, False), (36, np.nan, False)],
)
def test_demo_fails_when_it_should(chains: int, after: float, passed: bool) -> None:
    before = np.ones((1, 1, 1, 8), np.float32)
    audio = compare("audio", before * np.float32(after), before, find(LIMITS, "model", "float32"))
    assert demo.Outcome(chains, 396, chains, audio).passed is passed
