"""The speaker encoder: speech -> x-vector. ECAPA-TDNN (Desplanques et al., 2020) over a log-mel spectrogram.

Written to round where the official module rounds, so that bf16 models agree in every bit on the same library.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F  # noqa: N812 (the field's name for it)
from torch import Tensor

from onekernel.speech.config import SpeakerEncoder as SpeakerConfig
from onekernel.speech.precision import full_precision
from onekernel.speech.voice.audio import Samples
from onekernel.speech.voice.mel import log_mel

PREFIX = "speaker_encoder."


class SpeakerEncoder:
    """Holds the tensors `speaker_encoder.*` of a Base checkpoint, on their device and in their dtype."""

    def __init__(self, config: SpeakerConfig, tensors: Mapping[str, Tensor]) -> None:
        self.config = config
        self._tensors = {name.removeprefix(PREFIX): x for name, x in tensors.items() if name.startswith(PREFIX)}

    @torch.no_grad()
    @full_precision()
    def x_vector(self, samples: Samples) -> Tensor:
        """Map mono speech [n] of the config's rate (`read_audio`) to [width] in the model's dtype."""
        mel = log_mel(torch.from_numpy(samples), self.config.mels, self.config.sample_rate)
        weight = self._tensors["fc.weight"]
        x = self._tdnn("blocks.0", mel[None].to(weight.device, weight.dtype), self.config.dilations[0])
        outputs = []
        for place in range(1, len(self.config.channels) - 1):
            x = self._block(f"blocks.{place}", x, self.config.dilations[place])
            outputs.append(x)
        x = self._tdnn("mfa", torch.cat(outputs, 1), self.config.dilations[-1])
        return self._conv("fc", self._pool(x))[0, :, 0]

    def _conv(self, name: str, x: Tensor, dilation: int = 1) -> Tensor:
        """Convolve [1, in, time] -> [1, out, time]; edges are reflected."""
        weight, bias = self._tensors[f"{name}.weight"], self._tensors[f"{name}.bias"]
        if edge := dilation * (weight.shape[2] - 1):
            x = F.pad(x, (edge // 2, edge - edge // 2), mode="reflect")
        return F.conv1d(x, weight, bias, dilation=dilation)

    def _tdnn(self, name: str, x: Tensor, dilation: int = 1) -> Tensor:
        return torch.relu(self._conv(f"{name}.conv", x, dilation))

    def _block(self, name: str, x: Tensor, dilation: int) -> Tensor:
        """Apply an SE-Res2Net block: each part of the channels also hears the part before it."""
        first, *parts = self._tdnn(f"{name}.tdnn1", x).chunk(self.config.res2net, 1)
        heard = [first]
        for number, part in enumerate(parts):
            part = part + heard[-1] if number else part
            heard.append(self._tdnn(f"{name}.res2net_block.blocks.{number}", part, dilation))
        y = self._tdnn(f"{name}.tdnn2", torch.cat(heard, 1))
        gate = torch.relu(self._conv(f"{name}.se_block.conv1", y.mean(2, keepdim=True)))
        return y * torch.sigmoid(self._conv(f"{name}.se_block.conv2", gate)) + x

    def _pool(self, x: Tensor) -> Tensor:
        """Pool [1, channels, time] -> [1, 2 channels, 1]: mean and deviation under attention over time."""
        ones = torch.ones_like(x[:, :1])
        even = _statistics(x, ones / ones.sum(2, keepdim=True))
        context = torch.cat([x, *(part.expand_as(x) for part in even)], 1)
        scores = self._conv("asp.conv", torch.tanh(self._tdnn("asp.tdnn", context)))
        return torch.cat(_statistics(x, torch.softmax(scores, 2)), 1)


def _statistics(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weighted mean and standard deviation over time, [1, channels, 1] each."""
    mean = (weight * x).sum(2, keepdim=True)
    return mean, torch.sqrt((weight * (x - mean).pow(2)).sum(2, keepdim=True).clamp(1e-12))
