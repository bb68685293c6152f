"""A speech checkpoint as a program of the megakernel: its shape from the config, its weights by the program's names."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from onekernel.megakernel.decoder import DecoderShape, SpeechShape
from onekernel.megakernel.pack import layer_weight
from onekernel.speech.config import Decoder, SpeechConfig


def speech_shape(config: SpeechConfig, kept: str = "bfloat16", weights: str = "bfloat16") -> SpeechShape:
    """Return the sizes of talker and predictor; how they keep keys and values, and the kind of their weights."""
    talker, predictor, kinds = config.talker, config.predictor, {"kept": kept, "weights": weights}
    return SpeechShape(
        talker=_shape(talker.decoder, talker.vocab, kinds), predictor=_shape(predictor.decoder, predictor.vocab, kinds),
        places=predictor.groups, codes=talker.codes, end=talker.codec_eos,
    )  # fmt: skip


def _shape(decoder: Decoder, vocab: int, kinds: dict[str, str]) -> DecoderShape:
    return DecoderShape(
        decoder.layers, decoder.hidden, decoder.intermediate, decoder.heads, decoder.kv_heads, decoder.head_dim, vocab,
        head_norms=True, epsilon=decoder.eps, theta=decoder.theta, **kinds,
    )  # fmt: skip


class ProgramWeights:
    """The tensors of a checkpoint by the names of `speech_decoder`, each with the numbers of its loops.

    Names that begin with `sub_` are the predictor's. Rows of gate and up take turns. Tables of codes that the predictor
    reads have gone through its projection, in float32.
    """

    def __init__(self, config: SpeechConfig, tensors: Mapping[str, Tensor]) -> None:
        """Take the tensors by their names in the file."""
        self._config, self._tensors = config, tensors

    def __call__(self, name: str, index: tuple[int, ...]) -> Tensor:
        """Return a matrix or a vector."""
        sub = name.removeprefix("sub_")
        model = "talker.model" if sub == name else "talker.code_predictor.model"
        if name == "head":
            return self._tensors["talker.codec_head.weight"]
        if name == "sub_head":  # the first place has none, and is never multiplied
            return self._tensors[f"talker.code_predictor.lm_head.{max(index[0] - 1, 0)}.weight"]
        if name in ("projection", "projection_bias"):
            part = "bias" if name.endswith("bias") else "weight"
            return self._tensors[f"talker.code_predictor.small_to_mtp_projection.{part}"]
        if sub == "final_norm":
            return self._tensors[f"{model}.norm.weight"]
        return layer_weight(sub, lambda part: self._tensors[f"{model}.layers.{index[0]}.{part}.weight"])

    def table(self, place: int) -> Tensor:
        """Return what the talker adds for each code of a place: [codes, hidden]."""
        model = (
            "talker.model.codec_embedding" if place == 0 else f"talker.code_predictor.model.codec_embedding.{place - 1}"
        )
        return self._tensors[f"{model}.weight"]

    def sub_table(self, place: int) -> Tensor:
        """Return what the predictor is given for each code of a place: float32 [codes, hidden]."""
        table = self.table(place).float()
        if not self._config.projects:
            return table
        weight, bias = self("projection", ()).float(), self("projection_bias", ()).float()
        return torch.nn.functional.linear(table, weight, bias)
