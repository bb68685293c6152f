"""Sound that a user gives, checked: a file, its bytes or an array become mono float32 at 24 kHz.

Mixing and resampling are those of the official package (librosa: the mean of the channels, then soxr HQ).
"""

from __future__ import annotations

import io
import math
import os
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from onekernel.errors import InvalidInput, MissingExtra

Samples = NDArray[np.float32]
Source = str | os.PathLike[str] | bytes | tuple[Any, int]

RATE = 24_000  # Hz, what every Qwen3-TTS model hears and makes
SHORTEST, LONGEST = 0.2, 60.0  # seconds of a reference
QUIETEST = 1e-3  # the least peak that can be speech: -60 dB of full scale
LOUDEST = 8.0  # a larger peak is not a loud recording, but integers that were never scaled
MOST_CHANNELS = 8
RATES = range(1_000, 768_001)  # Hz


def read_audio(source: Source) -> Samples:
    """Read speech as float32 [n], mono at 24 kHz.

    `source` is a path or the bytes of what soundfile reads (wav, flac, mp3, ogg, opus), or (samples, rate) with
    samples [n] or [n, channels]: floats within -1..1, or integers of full scale. Raises InvalidInput for what is no
    speech: unreadable, not finite, silent, shorter than `SHORTEST` or longer than `LONGEST`.
    """
    samples, rate = _of_array(*source) if isinstance(source, tuple) else _of_file(source)
    if not SHORTEST <= (seconds := len(samples) / rate) <= LONGEST:
        got = f"more than {LONGEST:g} s" if seconds > LONGEST else f"{seconds:.3g} s"
        todo = "cut out 3 to 15 s of clear speech" if seconds > LONGEST else "give 3 to 15 s of clear speech"
        raise InvalidInput(expected=f"speech of {SHORTEST:g} to {LONGEST:g} s", got=got, todo=todo)
    if not np.isfinite(samples).all():
        raise InvalidInput(expected="finite samples", got="NaN or infinity", todo="record or export it again")
    if (peak := np.abs(samples).max()) > LOUDEST:
        todo = "divide by the full scale, 32768 for 16 bits"
        raise InvalidInput(expected="samples within -1..1", got=f"a peak of {peak:.6g}", todo=todo)
    mono: Samples = np.mean(samples, axis=1)
    if (peak := np.abs(mono).max()) < QUIETEST:
        raise InvalidInput(expected="speech", got=f"silence (a peak of {peak:.2g})", todo="give a louder recording")
    return _resampled(mono, rate)


def _of_file(source: str | os.PathLike[str] | bytes) -> tuple[Samples, int]:
    """Return the samples [n, channels] of a file, as many as may be used and one more, and their rate."""
    name = f"{len(source)} bytes" if isinstance(source, bytes) else repr(str(source))
    try:
        import soundfile  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingExtra("soundfile", "speech") from error
    try:
        with _opened(source) as file, soundfile.SoundFile(file) as sound:
            _check(sound.samplerate, sound.channels)
            return sound.read(int(LONGEST * sound.samplerate) + 1, dtype="float32", always_2d=True), sound.samplerate
    except (OSError, RuntimeError, TypeError, ValueError) as error:  # the last two: a .raw file, a path that cannot be
        got = (error.strerror if isinstance(error, OSError) else None) or str(error).rstrip(".")
        todo = "give a wav, flac, mp3, ogg or opus file"
        raise InvalidInput(expected="sound that can be read", got=f"{name}: {got}", todo=todo) from error


def _opened(source: str | os.PathLike[str] | bytes) -> BinaryIO:
    """Open for reading at any place; what comes through a pipe is read whole."""
    if isinstance(source, bytes):
        return io.BytesIO(source)
    path = Path(source)
    return path.open("rb") if path.is_file() else io.BytesIO(path.read_bytes())


def _of_array(values: Any, rate: Any) -> tuple[Samples, int]:
    """Return samples [n, channels] and their rate; integers are scaled as soundfile scales those of a file."""
    array = np.asarray(values)
    if array.ndim not in (1, 2) or array.dtype.kind not in "fiu":
        got = f"{array.dtype} {list(array.shape)}"
        raise InvalidInput(expected="samples [n] or [n, channels]", got=got, todo="give an array of numbers")
    array = array[:, None] if array.ndim == 1 else array
    _check(rate, array.shape[1])
    if array.dtype.kind != "f":
        bits = 8 * array.itemsize
        middle = 2 ** (bits - 1) if array.dtype.kind == "u" else 0
        array = (array.astype(np.float64) - middle) / 2 ** (bits - 1)
    with np.errstate(over="ignore"):  # what float32 cannot hold is found to be infinite
        return array.astype(np.float32), int(rate)


def _check(rate: Any, channels: int) -> None:
    if not isinstance(rate, int | np.integer) or int(rate) not in RATES:
        expected = f"a rate of {RATES[0]} to {RATES[-1]} Hz"
        raise InvalidInput(expected=expected, got=repr(rate), todo="give the rate that it was recorded at")
    if not 1 <= channels <= MOST_CHANNELS:
        todo = "mix it down to mono; an array is [samples, channels]"
        raise InvalidInput(expected=f"1 to {MOST_CHANNELS} channels", got=str(channels), todo=todo)


def _resampled(mono: Samples, rate: int) -> Samples:
    """Bring [n] to 24 kHz: soxr HQ, and as many samples as librosa.resample makes."""
    if rate == RATE:
        return mono
    try:
        import soxr  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingExtra("soxr", "speech") from error
    count = math.ceil(len(mono) * (RATE / rate))
    made: Samples = soxr.resample(mono, rate, RATE, quality="HQ")[:count]
    return np.pad(made, (0, count - len(made)))
