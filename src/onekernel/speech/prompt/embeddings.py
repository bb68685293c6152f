"""Ids and codes -> vectors of the talker's width H, in the type of the weights, rounded where the official ones are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F  # noqa: N812 (the field's name for it)
from torch import Tensor

from onekernel.speech.config import SpeechConfig


class Embeddings:
    """The tables of a checkpoint: text, codec (code 0, speakers and tags), and one for each other code of a frame."""

    def __init__(self, config: SpeechConfig, tensors: Mapping[str, Tensor]) -> None:
        """Take the tensors by their names in the file."""
        groups = range(config.predictor.groups - 1)
        self._text = tensors["talker.model.text_embedding.weight"]
        self._fc1, self._fc2 = (
            (tensors[f"talker.text_projection.{name}.weight"], tensors[f"talker.text_projection.{name}.bias"])
            for name in ("linear_fc1", "linear_fc2")
        )
        self._codec = tensors["talker.model.codec_embedding.weight"]
        rest = [tensors[f"talker.code_predictor.model.codec_embedding.{group}.weight"] for group in groups]
        self._groups = [self._codec, *rest]

    def text(self, ids: Sequence[int]) -> Tensor:
        """Return text_projection(text_embedding) of text ids: [n, H]."""
        return F.linear(F.silu(F.linear(self._rows(self._text, ids), *self._fc1)), *self._fc2)

    def codec(self, ids: Sequence[int]) -> Tensor:
        """Return rows of the codec embedding: [n, H]."""
        return self._rows(self._codec, ids)

    def frames(self, codes: Tensor) -> Tensor:
        """Return the sum over all codes of each frame, rounded once: codes [T, groups] -> [T, H]."""
        return torch.stack([table[codes[:, group]] for group, table in enumerate(self._groups)], dim=1).sum(1)

    def like(self, vector: Tensor) -> Tensor:
        """Return a vector in the type and on the device of the weights."""
        return vector.to(self._codec)

    def _rows(self, table: Tensor, ids: Sequence[int]) -> Tensor:
        return table[torch.as_tensor(ids, dtype=torch.long, device=table.device)]
