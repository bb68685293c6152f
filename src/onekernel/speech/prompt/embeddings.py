"""Ids and codes -> vectors of the talker's width H, in the type of the weights, rounded where the official ones are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F  # noqa: N812 (the field's name for it)
from torch import Tensor

from onekernel.speech.config import SpeechConfig

CPU_TILE, GPU_TILE = 1, 4096  # rows of text made by one product; on a CPU their places in it would change bits


class Embeddings:
    """The tables of a checkpoint: text, codec (code 0, speakers and tags), and one for each other code of a frame."""

    def __init__(self, config: SpeechConfig, tensors: Mapping[str, Tensor]) -> None:
        """Take the tensors by their names in the file."""
        groups = range(config.predictor.groups - 1)
        self._text = TextTable(tensors)
        self._codec = tensors["talker.model.codec_embedding.weight"]
        rest = [tensors[f"talker.code_predictor.model.codec_embedding.{group}.weight"] for group in groups]
        self._groups = [self._codec, *rest]

    def text(self, ids: Sequence[int]) -> Tensor:
        """Return text_projection(text_embedding) of text ids: [n, H]."""
        return self._text.rows(torch.as_tensor(ids, dtype=torch.long, device=self._codec.device))

    def codec(self, ids: Sequence[int]) -> Tensor:
        """Return rows of the codec embedding: [n, H]."""
        return self._codec[torch.as_tensor(ids, dtype=torch.long, device=self._codec.device)]

    def frames(self, codes: Tensor) -> Tensor:
        """Return the sum over all codes of each frame, rounded once: codes [T, groups] -> [T, H]."""
        return torch.stack([table[codes[:, group]] for group, table in enumerate(self._groups)], dim=1).sum(1)

    def like(self, vector: Tensor) -> Tensor:
        """Return a vector in the type and on the device of the weights."""
        return vector.to(self._codec)


class TextTable:
    """text_projection(text_embedding), row by row of the text vocabulary.

    A row has the same bits whatever it is asked for with, so that a text in pieces gives the prompt of the whole: rows
    are made all at once on a GPU, and each by itself when it is asked for on a CPU, where all would take half a minute.
    The official package makes the rows of a text together: it may round the last bit of one otherwise.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the tensors by their names in the file."""
        self._embedding = tensors["talker.model.text_embedding.weight"]
        self._layers = [
            (tensors[f"talker.text_projection.{name}.weight"], tensors[f"talker.text_projection.{name}.bias"])
            for name in ("linear_fc1", "linear_fc2")
        ]
        self._table = self._made(self._embedding, GPU_TILE) if self._embedding.is_cuda else None

    def rows(self, ids: Tensor) -> Tensor:
        """Return the rows of ids [n]: [n, H]."""
        return self._table[ids] if self._table is not None else self._made(self._embedding[ids], CPU_TILE)

    @torch.inference_mode()
    def _made(self, rows: Tensor, tile: int) -> Tensor:
        (first, one), (second, two) = self._layers
        made = rows.new_empty(len(rows), len(second))
        for start in range(0, len(rows), tile):
            part = F.pad(rows[start : start + tile], (0, 0, 0, max(0, start + tile - len(rows))))
            made[start : start + tile] = F.linear(F.silu(F.linear(part, first, one)), second, two)[: len(rows) - start]
        return made
