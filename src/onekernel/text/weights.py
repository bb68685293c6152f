"""The tensors of a text checkpoint: checked against its config, and by the names of the program `greedy_decoder`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from onekernel.checkpoint import read_tensors
from onekernel.megakernel.pack import layer_weight
from onekernel.text.config import TextConfig

TABLE, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"


def text_layout(config: TextConfig) -> dict[str, tuple[int, ...]]:
    """Name every tensor of a checkpoint with its shape."""
    s = config.shape
    wide, narrow = s.heads * s.head_dim, s.kv_heads * s.head_dim
    each: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj": (wide, s.hidden),
        "self_attn.k_proj": (narrow, s.hidden),
        "self_attn.v_proj": (narrow, s.hidden),
        "self_attn.o_proj": (s.hidden, wide),
        "mlp.gate_proj": (s.inner, s.hidden),
        "mlp.up_proj": (s.inner, s.hidden),
        "mlp.down_proj": (s.hidden, s.inner),
        "input_layernorm": (s.hidden,),
        "post_attention_layernorm": (s.hidden,),
    }
    if s.head_norms:
        each |= {"self_attn.q_norm": (s.head_dim,), "self_attn.k_norm": (s.head_dim,)}
    layers = {f"model.layers.{n}.{name}.weight": shape for n in range(s.layers) for name, shape in each.items()}
    head = {} if config.tied else {HEAD: (s.vocab, s.hidden)}
    return {TABLE: (s.vocab, s.hidden), **layers, NORM: (s.hidden,), **head}


def read_weights(folder: Path, config: TextConfig) -> dict[str, Tensor]:
    """Map FOLDER/model.safetensors, or its shards, on the CPU: nothing is copied, dtypes are those of the file.

    A head that is tied may stand in the file again, and old files hold rotary frequencies: neither is read. Raises
    what `read_tensors` raises.
    """
    rotary = {f"model.layers.{layer}.self_attn.rotary_emb.inv_freq" for layer in range(config.shape.layers)}
    spare = rotary | ({HEAD} if config.tied else set())
    dtypes = ("BF16", "F16", "F32")
    return read_tensors(folder / "model.safetensors", text_layout(config), dtypes=dtypes, spare=spare)


class TextWeights:
    """The tensors by the names of `greedy_decoder`, each with the number of its layer: of the shape's kind.

    Rows of gate and up take turns. Nothing is kept: what is asked for is moved and rounded then, so that the device
    never has the checkpoint beside what is packed of it.
    """

    def __init__(self, config: TextConfig, tensors: Mapping[str, Tensor], device: str | torch.device) -> None:
        """Take the tensors by their names in the file."""
        self._tensors, self._device = tensors, device
        self._head, self._kind = TABLE if config.tied else HEAD, getattr(torch, config.shape.weights)

    def __call__(self, name: str, index: tuple[int, ...]) -> Tensor:
        """Return a matrix [rows, columns] or a vector [width]."""
        if name == "head":
            return self._moved(self._head)
        if name == "final_norm":
            return self._moved(NORM)
        return layer_weight(name, lambda part: self._moved(f"model.layers.{index[0]}.{part}.weight"))

    def table(self) -> Tensor:
        """Return the row of each token, [vocab, hidden], at an address that the kernel can read 16 bytes from."""
        table = self._moved(TABLE)
        return table.clone() if table.data_ptr() % 16 else table  # a file aligns tensors to 8

    def _moved(self, name: str) -> Tensor:
        return self._tensors[name].to(self._device).to(self._kind)
