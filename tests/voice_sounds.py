"""Sounds for the tests of voices, the same on every machine: tones, sweeps, noise and pauses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SOUNDS = {  # name: seconds, rate, channels, how it is stored
    "two_seconds": (2.0, 24_000, 1, "FLOAT"),
    "half_second": (0.5, 24_000, 1, "FLOAT"),
    "ten_seconds": (10.0, 24_000, 1, "PCM_24"),
    "stereo_8k": (2.0, 8_000, 2, "FLOAT"),
    "int16_44k": (2.0, 44_100, 1, "PCM_16"),
}


def noise(seed: int, count: int) -> NDArray[np.float64]:
    """Draw uniform noise within -1..1 from the raw bits of a generator, which no version of numpy may change."""
    return (np.random.PCG64(seed).random_raw(count) >> np.uint64(11)) * 2.0**-52 - 1


def sound(name: str) -> NDArray[np.float32]:
    """Make a sound of `SOUNDS`, float32 [n, channels]."""
    seconds, rate, channels, _ = SOUNDS[name]
    return np.stack([_voice(seconds, rate, len(name) + channel) for channel in range(channels)], axis=1)


def write(folder: Path, name: str) -> Path:
    """Write a sound as a wav file."""
    import soundfile

    path = folder / f"{name}.wav"
    soundfile.write(path, sound(name), SOUNDS[name][1], SOUNDS[name][3])
    return path


def _voice(seconds: float, rate: int, seed: int) -> Any:
    """Make a hum with harmonics that glides, a sweep, and breath, with a pause in each second."""
    time = np.arange(int(seconds * rate)) / rate
    phase = 2 * np.pi * (90 + 20 * seed) * (time + 0.05 * np.sin(2 * np.pi * 0.7 * time))
    hum = sum(np.sin(k * phase) / k for k in range(1, 12))
    sweep = np.sin(2 * np.pi * rate * 0.45 * time**2 / (2 * seconds))
    loudness = np.clip(4 * np.sin(np.pi * time) ** 2, 0, 1)
    return (loudness * (0.15 * hum + 0.1 * sweep) + 0.02 * noise(seed, len(time))).astype(np.float32)
