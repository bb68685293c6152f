"""The log-mel spectrogram that the speaker encoder hears; torch and numpy only."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (the field's name for it)
from numpy.typing import NDArray
from torch import Tensor

WINDOW, HOP = 1024, 256  # samples
FLOOR = 1e-5  # of a band before its logarithm


def log_mel(samples: Tensor, bands: int, rate: int) -> Tensor:
    """Map float32 [n] to float32 [bands, frames], one frame each `HOP` samples; n > 384.

    The magnitude of a periodic Hann STFT over reflected edges, in mel bands from 0 Hz to half the rate.
    """
    edge = (WINDOW - HOP) // 2
    padded = F.pad(samples[None, None], (edge, edge), mode="reflect")[0, 0]
    window = torch.hann_window(WINDOW, device=samples.device)
    spectrum = torch.stft(padded, WINDOW, HOP, window=window, center=False, return_complex=True)
    magnitude = torch.sqrt(torch.view_as_real(spectrum).pow(2).sum(-1) + 1e-9)
    filters = torch.from_numpy(mel_filters(bands, rate)).to(samples.device)
    return torch.log(torch.clamp(filters @ magnitude, min=FLOOR))


@lru_cache
def mel_filters(bands: int, rate: int) -> NDArray[np.float32]:
    """Make triangles [bands, WINDOW/2 + 1] of equal area, evenly spaced on the mel scale up to half the rate.

    Formula: Slaney, Auditory Toolbox (1998), as librosa.filters.mel; rounded to float32 where it rounds.
    """
    edges = hertz(np.linspace(0.0, mel(rate / 2), bands + 2))
    bins = np.arange(WINDOW // 2 + 1) * (rate / WINDOW)
    ramps = edges[:, None] - bins
    widths = np.diff(edges)[:, None]
    triangles = np.maximum(0.0, np.minimum(-ramps[:-2] / widths[:-1], ramps[2:] / widths[1:])).astype(np.float32)
    return (triangles * (2.0 / (edges[2:] - edges[:-2]))[:, None]).astype(np.float32)


# Slaney's scale: 3 mel for 200 Hz up to 1000 Hz, then 27 mel for a factor of 6.4.
_STEP, _BREAK, _LOG_STEP = 200.0 / 3, 1000.0, np.log(6.4) / 27.0


def mel(frequency: float) -> float:
    """Map Hz to mel (Slaney)."""
    if frequency < _BREAK:
        return frequency / _STEP
    return float(_BREAK / _STEP + np.log(frequency / _BREAK) / _LOG_STEP)


def hertz(mels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Map mel to Hz (Slaney)."""
    above = mels - _BREAK / _STEP
    return np.where(above < 0, _STEP * mels, _BREAK * np.exp(_LOG_STEP * np.maximum(above, 0.0)))
