"""Sound that comes in: resampled as the official package does, or refused with what to do."""

from __future__ import annotations

import io
import math
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

import voice_sounds
from onekernel.errors import InvalidInput, MissingExtra
from onekernel.speech.voice.audio import LONGEST, QUIETEST, SHORTEST, read_audio

GOLDEN = Path(__file__).parent / "golden" / "speech" / "voice_sound.npz"
STRIDE = 37  # of voice_golden.py


def tone(seconds: float = 1.0, rate: int = 24_000, peak: float = 0.5) -> Any:
    return (peak * np.sin(2 * np.pi * 220 * np.arange(round(seconds * rate)) / rate)).astype(np.float32)


def encoded(samples: Any, rate: int = 24_000, **options: Any) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, **{"format": "WAV", "subtype": "FLOAT", **options})
    return file.getvalue()


@pytest.mark.parametrize("name", voice_sounds.SOUNDS)
def test_speech_is_what_the_official_package_hears(name: str, tmp_path: Path) -> None:
    got = read_audio(voice_sounds.write(tmp_path, name))
    with np.load(GOLDEN) as golden:
        assert len(got) == golden[f"{name}.count"]
        assert np.abs(got[::STRIDE] - golden[f"{name}.samples"]).max() < 1e-6
    assert got.dtype == np.float32


@pytest.mark.parametrize("name", ["two_seconds", "stereo_8k"])
def test_a_path_its_text_its_bytes_and_its_array_are_the_same(name: str, tmp_path: Path) -> None:
    path = voice_sounds.write(tmp_path, name)
    whole = read_audio(path)
    array = (voice_sounds.sound(name), voice_sounds.SOUNDS[name][1])
    for source in (str(path), path.read_bytes(), array, (array[0].astype(np.float64), np.int64(array[1]))):
        assert np.array_equal(read_audio(source), whole)


@pytest.mark.parametrize(("dtype", "subtype"), [(np.int16, "PCM_16"), (np.int32, "PCM_32"), (np.uint8, "PCM_U8")])
def test_integers_are_scaled_as_those_of_a_file(dtype: Any, subtype: str) -> None:
    sound = encoded(tone(), subtype=subtype)
    scale = 2.0 ** (8 * np.dtype(dtype).itemsize - 1)
    integers = (read_audio(sound).astype(np.float64) * scale + (scale if dtype is np.uint8 else 0)).astype(dtype)
    assert np.array_equal(read_audio((integers, 24_000)), read_audio(sound))
    assert np.abs(read_audio((integers, 24_000))).max() == pytest.approx(0.5, abs=0.01)


def test_channels_are_averaged() -> None:
    left, right = tone(), tone(peak=0.1)
    assert np.allclose(read_audio((np.stack([left, right], axis=1), 24_000)), (left + right) / 2, atol=1e-7)


@pytest.mark.parametrize(
    ("form", "subtype", "limit"),
    [("WAV", "PCM_16", 1e-4), ("FLAC", "PCM_24", 1e-6), ("MP3", "MPEG_LAYER_III", 0.05), ("OGG", "OPUS", 0.05)],
)
def test_forms(form: str, subtype: str, limit: float) -> None:
    got = read_audio(encoded(tone(2.0), format=form, subtype=subtype))
    assert len(got) == pytest.approx(48_000, abs=10)
    assert np.abs(got[5000:40_000] - tone(2.0)[5000:40_000]).max() < limit


def test_a_pipe_is_read() -> None:
    reading, writing = os.pipe()
    sound = encoded(tone())

    def send() -> None:
        with open(writing, "wb") as file:
            file.write(sound)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    assert np.array_equal(read_audio(f"/dev/fd/{reading}"), tone())
    sender.join()
    os.close(reading)


@given(st.integers(1_000, 768_000), st.integers(0, 50))
def test_any_rate_gives_24_khz(rate: int, extra: int) -> None:
    count = math.ceil(0.25 * rate) + extra
    got = read_audio((tone(count / rate, rate), rate))
    assert len(got) == math.ceil(count * (24_000 / rate))
    assert np.isfinite(got).all()
    assert np.abs(got).max() == pytest.approx(0.5, rel=0.2)


@pytest.mark.parametrize("seconds", [SHORTEST, LONGEST])
def test_the_limits_are_within(seconds: float) -> None:
    assert len(read_audio((tone(seconds, 8000), 8000))) == seconds * 24_000


def broken(value: float) -> Any:
    samples = tone()
    samples[100] = value
    return samples


REFUSED: dict[str, tuple[Any, str]] = {
    "nan": ((broken(np.nan), 24_000), "got NaN or infinity"),
    "infinity in a file": (encoded(broken(-np.inf)), "got NaN or infinity"),
    "more than float32 holds": ((tone().astype(np.float64) * 1e300, 24_000), "got NaN or infinity"),
    "no samples": ((np.zeros(0, np.float32), 24_000), "speech of 0.2 to 60 s, got 0 s"),
    "a file of no samples": (encoded(np.zeros(0, np.float32)), "got 0 s"),
    "too short": ((tone(0.199), 24_000), "got 0.199 s; give 3 to 15 s"),
    "too long": ((tone(60.01, 1000), 1000), "got more than 60 s; cut out 3 to 15 s"),
    "a file that is too long": (encoded(tone(61, 8000), 8000, format="FLAC", subtype="PCM_16"), "got more than 60 s"),
    "silence": ((tone(peak=0.9 * QUIETEST), 24_000), "silence .a peak of 0.0009"),
    "zeros": ((np.zeros(24_000, np.int16), 24_000), "silence"),
    "channels that cancel": ((np.stack([tone(), -tone()], axis=1), 24_000), "silence"),
    "integers as floats": ((tone() * 32768, 24_000), "got a peak of 16384; divide by the full scale"),
    "channels first": ((np.stack([tone(), tone()]), 24_000), "1 to 8 channels, got 24000; .* an array is"),
    "no channels": ((np.zeros((24_000, 0)), 24_000), "1 to 8 channels, got 0"),
    "three axes": ((np.zeros((2, 2, 2)), 24_000), r"got float64 \[2, 2, 2\]"),
    "booleans": ((np.ones(24_000, bool), 24_000), "got bool"),
    "complex numbers": ((np.ones(24_000, complex), 24_000), "got complex128"),
    "words": ((["a", "b"], 24_000), "got <U1"),
    "rate 0": ((tone(), 0), "a rate of 1000 to 768000 Hz, got 0"),
    "a negative rate": ((tone(), -24_000), "got -24000"),
    "rate in kHz": ((tone(), 24), "got 24"),
    "no integer rate": ((tone(), 22_050.5), "got 22050.5"),
    "no rate": ((tone(), None), "got None"),
    "a file of a low rate": (encoded(tone(1, 800), 800), "got 800"),
    "a file of many channels": (encoded(np.zeros((9600, 9), np.float32)), "1 to 8 channels, got 9"),
    "no file": ("/no/such/file.wav", "'/no/such/file.wav': No such file"),
    "a folder": ("/", "Is a directory"),
    "no path": ("", "directory"),
    "a path that cannot be": ("a\0b.wav", "null byte"),
    "an array without a rate": (3, "sound that can be read"),
    "no bytes": (b"", "0 bytes: "),
    "text": (b"This is no sound. " * 100, "1800 bytes: .*; give a wav, flac, mp3, ogg or opus file"),
    "half a header": (encoded(tone())[:20], "20 bytes: "),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    source, words = REFUSED[case]
    with pytest.raises(InvalidInput, match=words):
        read_audio(source)


def test_a_raw_file_is_refused(tmp_path: Path) -> None:
    """Its rate is not known; soundfile itself raises TypeError."""
    (tmp_path / "a.raw").write_bytes(bytes(96_000))
    with pytest.raises(InvalidInput, match="sound that can be read"):
        read_audio(tmp_path / "a.raw")


@given(st.binary(max_size=300), st.sampled_from(["WAV", "FLAC", "OGG", "MP3"]), st.integers(0, 2000))
def test_damaged_bytes_are_read_or_refused(damage: bytes, form: str, place: int) -> None:
    subtype = {"WAV": "PCM_16", "FLAC": "PCM_16", "OGG": "OPUS", "MP3": "MPEG_LAYER_III"}[form]
    sound = bytearray(encoded(tone(), format=form, subtype=subtype))
    sound[place : place + len(damage)] = damage
    try:
        got = read_audio(bytes(sound))
    except InvalidInput:
        return
    assert np.isfinite(got).all()


@pytest.mark.parametrize("library", ["soundfile", "soxr"])
def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    monkeypatch.setitem(__import__("sys").modules, library, None)
    source = encoded(tone()) if library == "soundfile" else (tone(rate=8000), 8000)
    with pytest.raises(MissingExtra, match=rf"{library}.*onekernel\[speech\]"):
        read_audio(source)
