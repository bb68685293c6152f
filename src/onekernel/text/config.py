"""What a checkpoint of a Llama- or Qwen3-class decoder says of itself; what we do not compute is refused by name.

Names follow config.json of transformers 4 and 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onekernel.megakernel.decoder import DecoderShape
from onekernel.section import Section

MODEL = "Llama or Qwen3"
FAMILIES = ("llama", "qwen3")
# What a field must be where it stands in a config; a config without it means the same.
_ONLY = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "use_sliding_window": False,
    "partial_rotary_factor": 1.0,
}


@dataclass(frozen=True)
class TextConfig:
    """A decoder: RMSNorm, grouped-query attention with half-split RoPE, SwiGLU; Qwen3 also norms queries and keys."""

    family: str  # one of FAMILIES
    shape: DecoderShape
    tied: bool  # the head is the table of the tokens
    positions: int  # that the model was made for
    ends: tuple[int, ...]  # tokens that end a text; there may be none


def read_text(folder: Path) -> TextConfig:
    """Read FOLDER/config.json, and from generation_config.json, if there is one, which tokens end a text.

    Raises InvalidInput for a file that is missing, unreadable, or of a model that is computed in another way.
    """
    root = Section.of(folder / "config.json", MODEL)
    if (family := root.get("model_type")) not in FAMILIES:
        raise root.wrong("model_type", " or ".join(FAMILIES), family)
    _refuse(root)
    shape = _shape(root, normed=family == "qwen3")
    tied = root.get("tie_word_embeddings", False)
    if not isinstance(tied, bool):
        raise root.wrong("tie_word_embeddings", "true or false", tied)
    return TextConfig(family, shape, tied, root.size("max_position_embeddings"), _ends(folder, root, shape.vocab))


def _refuse(root: Section) -> None:
    """Raise InvalidInput for what would need other arithmetic."""
    for name, only in _ONLY.items():
        if (value := root.get(name, only)) != only:
            raise root.wrong(name, repr(only), value)
    if (quantized := root.values.get("quantization_config")) is not None:
        raise root.wrong("quantization_config", "nothing: weights as bfloat16, float16 or float32", quantized)
    kinds = root.get("layer_types", ["full_attention"])
    if not isinstance(kinds, list) or set(map(str, kinds)) != {"full_attention"}:
        raise root.wrong("layer_types", "full_attention in every layer", kinds)


def _shape(root: Section, *, normed: bool) -> DecoderShape:
    hidden, heads = root.size("hidden_size"), root.size("num_attention_heads")
    kv_heads = root.size("num_key_value_heads", heads)
    if heads % kv_heads:
        raise root.wrong("num_key_value_heads", f"a divisor of the {heads} heads", kv_heads)
    head_dim = root.size("head_dim", None if normed else max(1, hidden // heads))  # Qwen3's is no quotient
    if head_dim % 2:
        raise root.wrong("head_dim", "an even number", head_dim)
    return DecoderShape(
        root.size("num_hidden_layers"), hidden, root.size("intermediate_size"), heads, kv_heads, head_dim,
        root.size("vocab_size"), head_norms=normed, epsilon=root.number("rms_norm_eps", 1e-6), theta=_theta(root),
        weights="float16" if root.get("torch_dtype", root.get("dtype", "")) == "float16" else "bfloat16",
    )  # fmt: skip


def _theta(root: Section) -> float:
    """Return the base of the rotary frequencies. Raises InvalidInput where they are scaled."""
    for name in ("rope_parameters", "rope_scaling"):  # of transformers 5, of 4
        if root.values.get(name) is None:
            continue
        rope = root.section(name)
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind != "default":
            raise rope.wrong("rope_type", "default, frequencies that are not scaled", kind)
        if (part := rope.get("partial_rotary_factor", 1.0)) != 1.0:
            raise rope.wrong("partial_rotary_factor", "1.0", part)
        if "rope_theta" in rope.values:
            return rope.number("rope_theta")
    return root.number("rope_theta", 1e4)


def _ends(folder: Path, root: Section, vocab: int) -> tuple[int, ...]:
    """Return the tokens that end a text: a number or a list; what the generation config says goes first."""
    file = folder / "generation_config.json"
    parts = [Section.of(file, MODEL), root] if file.is_file() else [root]
    for part in parts:
        if (value := part.values.get("eos_token_id")) is not None:
            ends = value if isinstance(value, list) else [value]
            if not all(_is_token(end, vocab) for end in ends):
                raise part.wrong("eos_token_id", f"whole numbers from 0 to {vocab - 1}", value)
            return tuple(ends)
    return ()


def _is_token(value: Any, vocab: int) -> bool:
    return type(value) is int and 0 <= value < vocab
